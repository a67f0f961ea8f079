package compute

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gemm"
	"hocket.example/hocket/internal/device/cuda/strided"
)

// addJoint computes several linears of the same x together. Of three ways, addJoint uses the first that applies: one
// kernel for all linears, if it was measured to be faster than separate launches; one batched GEMM of cuBLASLt for the
// two linears of a gated pair, if that was faster; concurrent GEMMs, if they are small. Otherwise it returns
// ErrUnsupported, and the linears are computed one after the other. It also returns ErrUnsupported if products are
// fixed (Options.FixedProducts), because then bits must not depend on a measurement.
func (b *builder) addJoint(dk *device.Kernel, op device.Linears) error {
	decline := func(why string) error { return fmt.Errorf("%w: linears at once: %s", device.ErrUnsupported, why) }
	linears := op.Count(dk)
	results := linears
	if op.Gated {
		results++
	}
	switch {
	case linears < 2 || op.Scaled && len(dk.Ins) != 2*linears+2 || len(dk.Outs) != results || op.Gated && linears != 2:
		return fmt.Errorf("%d operands and %d results are not those of linears of one operand", len(dk.Ins), len(dk.Outs))
	case op.Fixed || b.site.FixedProducts:
		return decline("products are fixed")
	}
	list, gate := members(dk, op)
	var outs []*strided.View
	for _, k := range list {
		if err := k.resolve(b); err != nil {
			return err
		}
		outs = append(outs, &k.out)
	}
	j := gemm.Joint{Gated: op.Gated}
	if gate != nil {
		if err := gate.resolve(b); err != nil {
			return err
		}
		if err := gate.checkOverlap(false); err != nil {
			return err
		}
		if !slices.Equal(gate.out.Strides, list[0].out.Strides) {
			return decline("results whose layouts differ from the gated result's")
		}
		j.Out = gate.out.Addr
		outs = append(outs, &gate.out)
	}
	for i, k := range list {
		p := &product{kernel: k, linear: true}
		if err := p.check(); err != nil {
			return err
		}
		for o, out := range outs {
			if o != i && o < linears && k.out.Overlaps(out) ||
				slices.ContainsFunc(k.ins, func(in strided.View) bool { return out.Overlaps(&in) }) {
				return decline("operands that overlap results")
			}
		}
		if op.Scaled {
			continue
		}
		m := p.gemm()
		m.Merge()
		g, ok := m.Problem()
		if !ok || !b.Reaches(&k.ins[0]) || !b.Reaches(&k.ins[1]) {
			return decline("operands that cuBLASLt does not support")
		}
		g.Timed, g.Constant = op.Timed, op.Constant
		j.List = append(j.List, g)
	}
	if op.Scaled {
		return b.addDequantizing(op.Constant, list, gate)
	}
	own, err := b.site.GEMMs.PrepareJoint(j)
	if err != nil {
		return err
	}
	if own != nil {
		b.AddOwn(own)
		return nil
	}
	if gate != nil {
		inOrder(&j, gate)
	}
	beside, err := b.site.GEMMs.PrepareBeside(j)
	if err != nil {
		return err
	}
	if beside == nil {
		return decline("computing them one after the other is as fast")
	}
	b.AddProduct(beside)
	if gate != nil {
		return b.build(gate)
	}
	return nil
}

// inOrder sorts two gated linears by the addresses of their weights. If the results have another order, it exchanges
// them, which no other computation reads. The order matters because the steps between the matrices of a batch must be
// positive.
func inOrder(j *gemm.Joint, gate *kernel) {
	one, two := &j.List[0], &j.List[1]
	if one.B < two.B != (one.Out < two.Out) {
		one.Out, two.Out = two.Out, one.Out
		gate.Ins = []device.View{gate.Ins[1], gate.Ins[0]} // which build resolves again
	}
	if one.B > two.B {
		*one, *two = *two, *one
	}
}

// members returns the computations that the joint linears dk replaces: the linears, and the computation of the gate if
// they are gated.
func members(dk *device.Kernel, op device.Linears) (linears []*kernel, gate *kernel) {
	each := device.Linear{Product: device.Product{Timed: op.Timed}, Constant: op.Constant}
	n := op.Count(dk)
	for i := range n {
		ins := []device.View{dk.Ins[0], dk.Ins[1+i]}
		if op.Scaled {
			ins = append(ins, dk.Ins[1+n], dk.Ins[2+n+i])
		}
		linears = append(linears, &kernel{Kernel: device.Kernel{Op: each, Ins: ins, Outs: dk.Outs[i : i+1]}})
	}
	if op.Gated {
		gate = &kernel{Kernel: device.Kernel{Op: device.SiluMul(dk.Outs[2].DType), Ins: dk.Outs[:2], Outs: dk.Outs[2:]}}
	}
	return linears, gate
}

// addJointOrApart adds joint linears after the processes have agreed on how to compute products. If the agreed choice
// is to compute the linears one after the other, it adds them in this way, to the same Launch.
func (b *builder) addJointOrApart(dk *device.Kernel, op device.Linears) error {
	err := b.addJoint(dk, op)
	if !errors.Is(err, device.ErrUnsupported) {
		return err
	}
	linears, gate := members(dk, op)
	for _, k := range linears {
		if err := b.build(k); err != nil {
			return err
		}
	}
	if gate != nil {
		return b.build(gate)
	}
	return nil
}
