package compute

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// kernel is a device.Kernel with its operands resolved.
type kernel struct {
	device.Kernel
	ins []strided.View
	out strided.View
}

// resolve finds the operands. The last of an index_copy is the result, and none of them then.
func (k *kernel) resolve(l Launch) (err error) {
	if k.out, k.ins, err = device.Resolve(&k.Kernel, l.Resolve); err != nil || k.Op != ir.OpIndexCopy {
		return err
	}
	last := len(k.ins) - 1
	if last != 2 || !k.ins[last].Same(&k.out) {
		return fmt.Errorf("rows go into %s%v, which is to be updated in place", k.out.DType, k.out.Shape)
	}
	k.ins = k.ins[:last]
	return nil
}

// alike checks that all operands have the result's element type.
func (k *kernel) alike() error {
	for i := range k.ins {
		in := &k.ins[i]
		if in.DType != k.out.DType {
			return fmt.Errorf("operand %d is %s, the result %s", i, in.DType, k.out.DType)
		}
	}
	return nil
}

// checkGEMM checks a linear's or matmul's operands.
func (k *kernel) checkGEMM() error {
	if err := k.alike(); err != nil {
		return err
	}
	shapes := make([][]int64, len(k.ins))
	for i := range k.ins {
		shapes[i] = k.ins[i].Shape
	}
	if k.Op == ir.OpMatmul {
		return device.CheckMatmul(k.out.Shape, shapes, k.TA, k.TB)
	}
	return device.CheckLinear(k.out.Shape, shapes)
}

// problem is k as kernels take it.
func (k *kernel) problem() kernels.Problem {
	p := kernels.Problem{Op: k.Op, Red: k.Red, Links: k.Links, Out: k.out.Operand(), Attrs: k.Attrs, Fixed: k.Fixed, Member: k.Member}
	for i := range k.ins {
		p.Ins = append(p.Ins, k.ins[i].Operand())
	}
	return p
}

// isCopy reports whether op is only a copy: the views of values come as strided
// operands.
func isCopy(op ir.Op) bool {
	return op == ir.OpCopy || op == ir.OpExpand || op.Info().Class == ir.ClassView
}

// copies reports whether k is a copy between views of one shape that lie apart.
func (k *kernel) copies() bool {
	return len(k.ins) == 1 && !k.ins[0].Overlaps(&k.out) && slices.Equal(k.ins[0].Shape, k.out.Shape) &&
		strided.CheckCopy(&k.out, &k.ins[0]) == nil
}

// checkOverlap declines several operations as one where the result overlaps an operand
// that it does not replace, element for element: some threads would read what
// others have written, and copying the operand first costs what it saves.
func (k *kernel) checkOverlap() error {
	for i := range k.ins {
		in := &k.ins[i]
		if in.N > 0 && in.Overlaps(&k.out) && (k.Relu || !in.Same(&k.out)) {
			return fmt.Errorf("%w: operand %d overlaps the result", device.ErrUnsupported, i)
		}
	}
	return nil
}

// reports reports whether a kernel of k looks at its data and may find that wrong.
func (k *kernel) reports() bool {
	switch k.Op {
	case ir.OpEmbedding:
		return k.Red == ir.NoRed
	case ir.OpIndexCopy:
		return true
	case ir.OpAttention:
		return len(k.ins) == 4 // with lengths
	}
	return k.Op.Uneven()
}
