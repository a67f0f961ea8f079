package compute

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/ir"
)

// addJoint computes linears of one x at once, where that is faster than one after the other, which is what stays where
// bits must not follow from a measurement, and where several processes would each make one of their own.
func (b *builder) addJoint(dk *device.Kernel) error {
	decline := func(why string) error { return fmt.Errorf("%w: linears at once: %s", device.ErrUnsupported, why) }
	results := len(dk.Ins) - 1
	if dk.Gated {
		results = 1
	}
	switch {
	case len(dk.Ins) < 3 || len(dk.Outs) != results || dk.Gated && len(dk.Ins) != 3 || dk.Op != ir.OpLinear:
		return fmt.Errorf("%d operands and %d results are no linears at once", len(dk.Ins), len(dk.Outs))
	case dk.Fixed || b.site.FixedProducts:
		return decline("products are fixed")
	case b.site.Shared:
		return decline("ranks of several processes")
	}
	var list []*kernel
	for i, weight := range dk.Ins[1:] {
		k := &kernel{Kernel: device.Kernel{Op: ir.OpLinear, Ins: []device.View{dk.Ins[0], weight},
			Outs: dk.Outs[min(i, results-1):][:1], Red: ir.NoRed}}
		if err := k.resolve(b); err != nil {
			return err
		}
		if err := k.checkGEMM(); err != nil {
			return err
		}
		list = append(list, k)
	}
	j := gemm.Joint{Gated: dk.Gated, Out: list[0].out.Addr}
	for i, k := range list {
		for _, o := range list {
			if k.out.Overlaps(&o.ins[0]) || k.out.Overlaps(&o.ins[1]) || o != k && !dk.Gated && k.out.Overlaps(&o.out) {
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
	if own == nil {
		return decline("one after the other is no slower")
	}
	b.AddOwn(own)
	return nil
}
