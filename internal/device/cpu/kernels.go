package cpu

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/pointwise"
	"hocket.example/hocket/ir"
)

// kernel is a checked kernel: its loops read ins and write out. All that may
// overlap has been taken care of, except that an elementwise kernel's input may
// be its output.
type kernel struct {
	device.Kernel
	w   *world
	ins []ref
	out ref
	// verify, where set, looks at the operands' contents before each run.
	verify func(k *kernel) error
}

// loops computes a kernel.
type loops func(k *kernel)

// makers check a kernel's operands and choose its loops, for operations that package pointwise does not have.
var makers = map[ir.Op]func(k *kernel) (loops, error){
	ir.OpLinear: makeLinear,
	ir.OpMatmul: makeMatmul,
	ir.OpSum:    makeAxes,
	ir.OpMax:    makeAxes,
	ir.OpMin:    makeAxes,
	ir.OpMean:   makeAxes,

	ir.OpSoftmax:     makeSoftmax,
	ir.OpRMSNorm:     makeNorm,
	ir.OpLayerNorm:   makeNorm,
	ir.OpAttention:   makeAttention,
	ir.OpEmbedding:   makeEmbedding,
	ir.OpConcat:      makeConcat,
	ir.OpReduceSlots: makeSlots,
	ir.OpIndexCopy:   makeIndexCopy,
	ir.OpRope:        makeRope,
	ir.OpArgmax:      makeArgmax,
	ir.OpCast:        makeCast,

	ir.OpAllGatherV:     makeUneven,
	ir.OpReduceScatterV: makeUneven,
	ir.OpAllToAllV:      makeUneven,

	// The views of values come as strided operands: only a copy is left to do.
	ir.OpCopy:      makeCopy,
	ir.OpChunk:     makeCopy,
	ir.OpSlice:     makeCopy,
	ir.OpSelect:    makeCopy,
	ir.OpTranspose: makeCopy,
	ir.OpReshape:   makeCopy,
	ir.OpClaim:     makeCopy,
	ir.OpExpand:    makeCopy,
}

func kernelName(k device.Kernel) string {
	switch {
	case k.Red > ir.Avg:
		return "unknown reduction"
	case k.Joins():
		return "reduction " + k.Red.String()
	}
	return k.Op.String()
}

// prepare checks k and returns what runs it.
func (d *dev) prepare(dk device.Kernel) (func() error, error) {
	if dk.User != nil {
		return d.prepareUser(dk)
	}
	k := &kernel{Kernel: dk, w: d.w}
	maker := makers[dk.Op]
	if _, is := pointwise.Of(dk.Op); is {
		maker = makeElementwise
	}
	if dk.Joins() {
		maker = makeReduction
	}
	if maker == nil {
		return nil, fmt.Errorf("%w: the CPU machine has no such kernel", device.ErrUnsupported)
	}
	var err error
	if k.out, k.ins, err = device.Resolve(&k.Kernel, d.resolve); err != nil {
		return nil, err
	}
	do, err := maker(k)
	if err != nil {
		return nil, err
	}
	return k.runner(do), nil
}

// runner stages operands that overlap the result otherwise than by being it:
// so every kernel computes from what was there before it began.
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

// content is the error about an element of an integer operand.
func (k *kernel) content(element, value int64, format string, args ...any) error {
	return &device.ContentError{Op: k.Op, Element: element, Value: value, Text: fmt.Sprintf(format, args...)}
}

// aliasable reports whether operand i may be the result.
func (k *kernel) aliasable(i int) bool {
	return k.Op.Info().Elementwise || k.Joins() || k.Op == ir.OpReduceSlots && i == 1 || k.Op == ir.OpIndexCopy && i == 2
}

// count checks the number of operands.
func (k *kernel) count(least, most int) error {
	if n := len(k.ins); n < least || n > most {
		return fmt.Errorf("%d operands, %d to %d are needed", n, least, most)
	}
	return nil
}

// shapes returns the shapes of the operands.
func (k *kernel) shapes() [][]int64 {
	list := make([][]int64, len(k.ins))
	for i, in := range k.ins {
		list[i] = in.shape
	}
	return list
}

// alike checks that all operands have the result's element type, and shape if asked.
func (k *kernel) alike(shapes bool) error {
	for i, in := range k.ins {
		if in.dt != k.out.dt {
			return fmt.Errorf("operand %d is %s, the result %s", i, in.dt, k.out.dt)
		}
		if shapes && !slices.Equal(in.shape, k.out.shape) {
			return fmt.Errorf("operand %d has shape %v, the result %v", i, in.shape, k.out.shape)
		}
	}
	return nil
}

// byAccum picks the instance of generic loops for the type that dt computes in.
func byAccum(dt ir.DType, f32, f64, i64 loops) loops {
	switch dt.Accum() {
	case ir.F32:
		return f32
	case ir.F64:
		return f64
	}
	return i64
}

func makeCopy(k *kernel) (loops, error) {
	if err := k.count(1, 1); err != nil {
		return nil, err
	}
	if k.ins[0].dt != k.out.dt || k.ins[0].n != k.out.n || k.Op != ir.OpReshape && !slices.Equal(k.ins[0].shape, k.out.shape) {
		return nil, fmt.Errorf("%s%v from %s%v", k.out.dt, k.out.shape, k.ins[0].dt, k.ins[0].shape)
	}
	return func(k *kernel) {
		c := copier{k.out, k.ins[0], k.w}
		if !c.dst.same(c.src) {
			c.parallel(c.src)
		}
	}, nil
}
