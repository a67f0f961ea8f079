package compute

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/ir"
)

// addJoint computes linears of one x at once: by one kernel where that is measured to be faster than one after the
// other, else side by side where they are small. One after the other is what stays where bits must not follow from
// a measurement.
func (b *builder) addJoint(dk *device.Kernel) error {
	decline := func(why string) error { return fmt.Errorf("%w: linears at once: %s", device.ErrUnsupported, why) }
	linears := len(dk.Ins) - 1
	results := linears
	if dk.Gated {
		results++
	}
	switch {
	case linears < 2 || len(dk.Outs) != results || dk.Gated && linears != 2 || dk.Op != ir.OpLinear:
		return fmt.Errorf("%d operands and %d results are no linears at once", len(dk.Ins), len(dk.Outs))
	case dk.Fixed || b.site.FixedProducts:
		return decline("products are fixed")
	}
	list := members(dk)
	for _, k := range list {
		if err := k.resolve(b); err != nil {
			return err
		}
	}
	j := gemm.Joint{Gated: dk.Gated}
	if dk.Gated {
		gate := list[2]
		if err := gate.checkOverlap(); err != nil {
			return err
		}
		if !slices.Equal(gate.out.Strides, list[0].out.Strides) {
			return decline("results that lie otherwise than the gated")
		}
		j.Out = gate.out.Addr
	}
	for i, k := range list[:linears] {
		if err := k.checkGEMM(); err != nil {
			return err
		}
		for _, o := range list {
			if o != k && o.Op == ir.OpLinear && k.out.Overlaps(&o.out) || o.out.Overlaps(&k.ins[0]) ||
				o.out.Overlaps(&k.ins[1]) {
				return decline("operands that overlap results")
			}
		}
		p := k.product()
		p.Merge()
		g, ok := p.Problem()
		if !ok || !b.Reaches(&k.ins[0]) || !b.Reaches(&list[i].ins[1]) {
			return decline("operands that cuBLASLt does not take")
		}
		g.Timed, g.Constant = dk.Timed, dk.Constant
		j.List = append(j.List, g)
	}
	own, err := b.site.GEMMs.PrepareJoint(j)
	if err != nil {
		return err
	}
	if own != nil {
		b.AddOwn(own)
		return nil
	}
	beside, err := b.site.GEMMs.PrepareBeside(j.List)
	if err != nil {
		return err
	}
	if beside == nil {
		return decline("one after the other is no slower")
	}
	b.AddProduct(beside)
	if dk.Gated {
		return b.build(list[2])
	}
	return nil
}

// members are what linears at once compute, one after the other.
func members(dk *device.Kernel) (list []*kernel) {
	for i, weight := range dk.Ins[1:] {
		list = append(list, &kernel{Kernel: device.Kernel{Op: ir.OpLinear, Ins: []device.View{dk.Ins[0], weight},
			Outs: dk.Outs[i : i+1], Red: ir.NoRed, Constant: dk.Constant, Timed: dk.Timed}})
	}
	if dk.Gated {
		dt := dk.Outs[2].DType
		list = append(list, &kernel{Kernel: device.Kernel{Op: ir.OpMul, Ins: dk.Outs[:2], Outs: dk.Outs[2:], Red: ir.NoRed,
			Links: []device.Link{{Op: ir.OpSilu, Args: []int{0}, DType: dt}, {Op: ir.OpMul, Args: []int{^0, 1}, DType: dt}}}})
	}
	return list
}

// addJointOrApart is for linears that were at once, and stay one launch also where processes have agreed that they are
// computed one after the other.
func (b *builder) addJointOrApart(dk *device.Kernel) error {
	err := b.addJoint(dk)
	if !errors.Is(err, device.ErrUnsupported) {
		return err
	}
	for _, k := range members(dk) {
		if err := b.build(k); err != nil {
			return err
		}
	}
	return nil
}
