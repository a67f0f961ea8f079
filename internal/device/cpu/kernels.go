package cpu

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// kernel is a kernel whose operands were checked. Its loops read ins and write out. The function runner copies operands
// that overlap the result beforehand. It does not copy an operand of an elementwise kernel that is the same tensor as
// the result.
type kernel struct {
	operands
	w *world
	// verify, if not nil, checks the contents of operands before each run.
	verify func(k *kernel) error
}

// loops computes a kernel.
type loops func(k *kernel)

// loops checks the operands of k, and returns the loops that compute its result.
func (k *kernel) loops() (loops, error) {
	switch op := k.Op.(type) {
	case device.Elementwise:
		return makeElementwise(k, op)
	case device.Cast:
		return makeCast(k)
	case device.Copy:
		return makeCopy(k, op)
	case device.Concat:
		return makeConcat(k, op)
	case device.IndexCopy:
		return makeIndexCopy(k, op)
	case device.Embedding:
		return makeEmbedding(k, op)
	case device.ReduceAxes:
		return makeAxes(k, op)
	case device.ReduceSlots:
		return makeSlots(k, op)
	case device.ReduceOperands:
		return makeReduction(k, op)
	case device.Argmax:
		return makeArgmax(k, op)
	case device.Iota:
		return makeIota(k, op)
	case device.Sorted:
		return makeSorted(k, op)
	case device.TakeAlong:
		return makeTakeAlong(k)
	case device.IndexAdd:
		return makeIndexAdd(k, op)
	case device.Bincount:
		return makeBincount(k)
	case device.Softmax:
		return makeSoftmax(k, op)
	case device.RMSNorm:
		return makeRMSNorm(k, op)
	case device.NormGrad:
		return makeNormGrad(k, op)
	case device.LayerNorm:
		return makeLayerNorm(k, op)
	case device.Rope:
		return makeRope(k, op)
	case device.Attention:
		return makeAttention(k, op)
	case device.AttentionGrad:
		return makeAttentionGrad(k, op)
	case device.Linear:
		return makeLinear(k, op)
	case device.Scales:
		return makeScales(k, op)
	case device.Quantize:
		return makeQuantize(k, op)
	case device.GroupedLinear:
		return makeGrouped(k, op)
	case device.Matmul:
		return makeMatmul(k, op)
	case device.UnevenMove:
		return uneven{op: op.Op, axis: op.Axis, member: op.Member}.loops(k)
	case device.UnevenReduce:
		return uneven{op: ir.OpReduceScatterV, red: op.Red, axis: op.Axis, member: op.Member}.loops(k)
	}
	return nil, errNoKernel
}

var errNoKernel = fmt.Errorf("%w: the CPU machine has no such kernel", device.ErrUnsupported)

// prepare checks k and returns a function that runs it.
func (d *dev) prepare(dk device.Kernel) (func() error, error) {
	if u, ok := dk.Op.(*device.UserKernel); ok {
		return d.prepareUser(dk, u)
	}
	k := &kernel{operands: operands{Kernel: dk}, w: d.w}
	outs, ins, err := device.Resolve(&k.Kernel, d.resolve)
	if err != nil {
		return nil, err
	}
	k.out, k.ins = outs[0], ins
	do, err := k.loops()
	if err != nil {
		return nil, err
	}
	return k.runner(do), nil
}

// runner returns a function that executes the loops do. The function first copies operands that overlap the result, so
// that every kernel reads the original contents of its operands. If the kernel permits it, an operand that is the same
// tensor as the result is not copied.
func (k *kernel) runner(do loops) func() error {
	var risky []int
	for i, in := range k.ins {
		if in.overlaps(k.out) && !(k.aliasable(i) && in.same(k.out)) {
			risky = append(risky, i)
		}
	}
	if len(risky) == 0 {
		return func() error { return k.run(do) }
	}
	return func() error {
		safe := *k
		safe.ins = slices.Clone(k.ins)
		for _, i := range risky {
			tmp, done := stage(k.ins[i])
			defer done()
			safe.ins[i] = tmp
		}
		return safe.run(do)
	}
}

func (k *kernel) run(do loops) error {
	if k.verify != nil {
		if err := k.verify(k); err != nil {
			return err
		}
	}
	do(k)
	return nil
}

// content returns an error that describes an invalid element of an integer operand of op.
func content(op ir.Op, element, value int64, format string, args ...any) error {
	return &device.ContentError{Op: op, Element: element, Value: value, Text: fmt.Sprintf(format, args...)}
}

// operands are the operands and the result of a kernel. The methods check them.
type operands struct {
	device.Kernel
	ins []ref
	out ref
}

// aliasable reports whether operand i may be in the memory of the result.
func (k *operands) aliasable(i int) bool {
	switch op := k.Op.(type) {
	case device.Elementwise, device.Cast, device.ReduceOperands:
		return true
	case device.Copy:
		return op.Op.Info().Elementwise
	case device.ReduceSlots:
		return i == 1
	case device.IndexCopy:
		return i == 2
	}
	return false
}

// count checks the number of operands.
func (k *operands) count(least, most int) error {
	if n := len(k.ins); n < least || n > most {
		return fmt.Errorf("it has %d operands, but needs %d to %d", n, least, most)
	}
	return nil
}

// shapes returns the shapes of the operands.
func (k *operands) shapes() [][]int64 {
	list := make([][]int64, len(k.ins))
	for i, in := range k.ins {
		list[i] = in.shape
	}
	return list
}

// alike checks that all operands have the element type of the result and, if shapes is set, its shape.
func (k *operands) alike(shapes bool) error {
	for i, in := range k.ins {
		if in.dt != k.out.dt {
			return fmt.Errorf("operand %d has type %s, but the result has type %s", i, in.dt, k.out.dt)
		}
		if shapes && !slices.Equal(in.shape, k.out.shape) {
			return fmt.Errorf("operand %d has shape %v, but the result has shape %v", i, in.shape, k.out.shape)
		}
	}
	return nil
}

// byAccum returns f32, f64 or i64: the instance of generic loops for the type in which kernels compute with
// elements of type dt.
func byAccum(dt ir.DType, f32, f64, i64 loops) loops {
	switch dt.Accum() {
	case ir.F32:
		return f32
	case ir.F64:
		return f64
	}
	return i64
}

func makeCopy(k *kernel, op device.Copy) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if k.ins[0].dt != k.out.dt || k.ins[0].n != k.out.n ||
		op.Op != ir.OpReshape && !slices.Equal(k.ins[0].shape, k.out.shape) {
		return nil, fmt.Errorf("cannot compute %s%v from %s%v", k.out.dt, k.out.shape, k.ins[0].dt, k.ins[0].shape)
	}
	return func(k *kernel) {
		c := copier{k.out, k.ins[0], k.w}
		if !c.dst.same(c.src) {
			c.parallel(c.src)
		}
	}, nil
}
