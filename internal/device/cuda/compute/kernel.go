package compute

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
)

// kernel is a device.Kernel with its operands resolved.
type kernel struct {
	device.Kernel
	ins []strided.View
	out strided.View
	// stored holds all results except the last one, which is in out.
	stored []strided.View
}

// resolve resolves the operands. The last operand of an index_copy must be the same view as the result; resolve removes
// it from k.ins.
func (k *kernel) resolve(l Launch) error {
	outs, ins, err := device.Resolve(&k.Kernel, l.Resolve)
	if err != nil {
		return err
	}
	last := len(outs) - 1
	k.out, k.stored, k.ins = outs[last], outs[:last], ins
	if _, ok := k.Op.(device.IndexCopy); !ok {
		return nil
	}
	last = len(k.ins) - 1
	if last != 2 || !k.ins[last].Same(&k.out) {
		return fmt.Errorf("the operand into which rows are copied must be the result's memory, %s%v, and updated in place", k.out.DType, k.out.Shape)
	}
	k.ins = k.ins[:last]
	return nil
}

// alike returns an error unless all operands have the result's element type.
func (k *kernel) alike() error {
	for i := range k.ins {
		in := &k.ins[i]
		if in.DType != k.out.DType {
			return fmt.Errorf("operand %d has type %s, but the result has type %s", i, in.DType, k.out.DType)
		}
	}
	return nil
}

// problem returns k as the Computation from which package kernels generates code.
func (k *kernel) problem() kernels.Computation {
	p := kernels.Computation{Op: k.Op, Out: k.out.Operand()}
	for i := range k.ins {
		p.Ins = append(p.Ins, k.ins[i].Operand())
	}
	for i := range k.stored {
		p.Stored = append(p.Stored, k.stored[i].Operand())
	}
	return p
}

// copies is a predicate: it reports whether k is a copy between views of one shape that do not overlap.
func (k *kernel) copies() bool {
	return len(k.ins) == 1 && !k.ins[0].Overlaps(&k.out) && slices.Equal(k.ins[0].Shape, k.out.Shape) &&
		strided.CheckCopy(&k.out, &k.ins[0]) == nil
}

// checkOverlap returns an error for a fused kernel with a result that overlaps an operand: some threads would read
// elements that others have already written. Copying the operand first would cost more than fusing saves. An operand
// that is the same view as a result is permitted, unless the argument none is true. checkOverlap also returns an error
// for results that overlap each other, because threads store in any order.
func (k *kernel) checkOverlap(none bool) error {
	outs := append(k.stored[:len(k.stored):len(k.stored)], k.out)
	for o := range outs {
		out := &outs[o]
		for i := range k.ins {
			in := &k.ins[i]
			if in.N > 0 && in.Overlaps(out) && (none || !in.Same(out)) {
				return fmt.Errorf("%w: operand %d overlaps the result", device.ErrUnsupported, i)
			}
		}
		for i := range outs[:o] {
			if out.N > 0 && out.Overlaps(&outs[i]) {
				return fmt.Errorf("%w: results %d and %d overlap", device.ErrUnsupported, i, o)
			}
		}
	}
	return nil
}

// reports is a predicate: it reports whether a kernel of k checks its data and may report a fault in them.
func (k *kernel) reports() bool {
	switch op := k.Op.(type) {
	case device.Embedding, device.IndexAdd, device.IndexCopy, device.TakeAlong, device.GroupedLinear, device.UnevenMove,
		device.UnevenReduce:
		return true
	case device.Ropes:
		return op.Keeps()
	case device.Attention:
		return len(k.ins) > 3 // with lengths or a mask
	}
	return false
}

// aliasable reports whether an operand may be the same view as the result.
func (k *kernel) aliasable() bool {
	switch op := k.Op.(type) {
	case device.Elementwise, device.Chain, device.ReduceOperands:
		return true
	case device.Copy:
		return op.Op.Info().Elementwise
	}
	return false
}
