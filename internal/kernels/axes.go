package kernels

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// exactGrid returns n as the number of thread blocks of a launch.
func exactGrid(n int64) (uint32, error) {
	if n > math.MaxInt32 {
		return 0, fmt.Errorf("%w: the grid has %d blocks, too many for a launch", device.ErrUnsupported, n)
	}
	return uint32(n), nil
}

// A thread folds at most chainMost elements; further elements form another part, which is folded concurrently. If at
// least warpLeast elements that a result reduces are contiguous, a warp folds them together; from wideLeast elements
// on, a whole thread block does. Otherwise a thread folds a part alone, and waits for one element after another. A part
// then has about as many elements as there are parts, but at least chainLeast. The constants determine the order of
// operations and therefore the bits.
const (
	chainLeast = 32
	chainMost  = 512
	warpLeast  = 64
	wideLeast  = 2048
)

// folding describes a reduction over axes.
type folding struct {
	j      *job
	fold   string // name of the fold in the sources: FoldSum, …
	kept   []axis // axes that remain, with strides of operand and result
	gone   []axis // axes that are reduced, with strides of the operand
	outs   int64
	count  int64
	dt     ir.DType
	first  uint64
	divide int64
}

// axesOf plans sum, max, min or mean over axes, which the result does not have.
func axesOf(j *job, op device.ReduceAxes) ([]launch, error) {
	if err := j.count(1, 1); err != nil {
		return nil, err
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	red, mean := ir.Sum, op.Op == ir.OpMean
	switch op.Op {
	case ir.OpSum:
	case ir.OpMean:
		red = ir.Avg
	case ir.OpMax:
		red = ir.Max
	case ir.OpMin:
		red = ir.Min
	default:
		return nil, errNoKernel
	}
	if mean {
		if err := j.floats(); err != nil {
			return nil, err
		}
	}
	f, err := newFolding(j, j.Ins[0], red, op.Axes)
	if err != nil || j.Out.elements() == 0 {
		return nil, err
	}
	if mean {
		if f.divide = f.count; f.count == 0 {
			f.first, f.divide = math.Float64bits(math.NaN()), 0 // 0/0
		}
	}
	if slots := f.apart(op.Axes); slots != nil {
		return joining{j: j, red: red, out: j.Out, ins: slots, count: f.count}.launches()
	}
	return f.passes(j.Ins[0].Addr, ctype(f.dt))
}

// apartMost is the largest number of elements that a result reduces for which the method apart splits the operand.
const apartMost = 16

// apart splits the operand along the reduced axis into separate operands if each result reduces only a few elements and
// these are not contiguous. An elementwise fold of these operands uses wide accesses, as for the slots of a
// reduce-scatter. The method apart returns nil for other operands.
func (f *folding) apart(axes []int) []Operand {
	if len(f.gone) != 1 || f.gone[0].s[0] <= 1 || f.count < 2 || f.count > apartMost {
		return nil
	}
	in := f.j.Ins[0]
	one := Operand{DType: in.DType, Shape: f.j.Out.Shape}
	for d := range in.Shape {
		if !slices.Contains(axes, d) {
			one.Strides = append(one.Strides, in.Strides[d])
		}
	}
	var slots []Operand
	for i := range f.count {
		slot := one
		slot.Addr = in.Addr + nvlib.Ptr(i*f.gone[0].s[0]*in.DType.Size())
		slots = append(slots, slot)
	}
	return slots
}

// newFolding checks the operands' shapes and returns the folding.
func newFolding(j *job, in Operand, red ir.Red, gone []int) (*folding, error) {
	f := &folding{j: j, outs: j.Out.elements(), count: 1, dt: in.DType}
	var kept, shape, keptStrides, goneShape, goneStrides []int64
	for d, n := range in.Shape {
		if slices.Contains(gone, d) {
			goneShape, goneStrides = append(goneShape, n), append(goneStrides, in.Strides[d])
			f.count *= n
			continue
		}
		kept, shape, keptStrides = append(kept, int64(d)), append(shape, n), append(keptStrides, in.Strides[d])
	}
	if len(kept)+len(gone) != len(in.Shape) {
		return nil, fmt.Errorf("axes %v are not distinct axes of a tensor of rank %d", gone, len(in.Shape))
	}
	if !slices.Equal(shape, j.Out.Shape) {
		return nil, fmt.Errorf("the result has shape %v, but shape %v without axes %v is %v", j.Out.Shape, in.Shape, gone,
			shape)
	}
	f.kept, f.gone = shared(shape, keptStrides, j.Out.Strides), shared(goneShape, goneStrides)
	f.fold, f.first = foldOf(red, in.DType)
	return f, nil
}

// foldOf returns the name of a reduction's fold in the sources, and the result of a fold without elements.
func foldOf(red ir.Red, dt ir.DType) (fold string, first uint64) {
	sign := 1
	switch red {
	case ir.Max:
		fold, sign = "FoldMax", -1
	case ir.Min:
		fold = "FoldMin"
	default:
		return "FoldSum", 0
	}
	switch {
	case dt == ir.I32 && sign < 0:
		return fold, uint64(1<<64 - 1<<31)
	case dt == ir.I32:
		return fold, math.MaxInt32
	case dt == ir.I64 && sign < 0:
		return fold, 1 << 63
	case dt == ir.I64:
		return fold, math.MaxInt64
	}
	return fold, math.Float64bits(math.Inf(sign))
}

// passes plans launches that fold the parts of all results concurrently into scratch memory. It adds launches until
// each result has only one part.
func (f *folding) passes(in nvlib.Ptr, from string) ([]launch, error) {
	var all []launch
	for {
		s := f.shape(from)
		if s.parts == 1 {
			l, err := f.launch(s, f.j.Out.Addr, in, from, ctype(f.dt))
			return append(all, l), err
		}
		acc := f.dt.Accum()
		to, err := f.j.scratch(s.parts*f.outs*acc.Size(), false)
		if err != nil {
			return nil, err
		}
		first := *f
		first.divide = 0
		first.kept = denseResult(f.kept)
		l, err := first.launch(s, to, in, from, ctype(acc))
		if err != nil {
			return nil, err
		}
		all = append(all, l)
		// The next pass folds the parts of each result, which are f.outs elements from each other.
		f.kept, f.gone = partsOf(f.kept), []axis{{s.parts, []int64{f.outs}}}
		f.count, in, from = s.parts, to, ctype(acc)
	}
}

// denseResult returns the axes in kept with the strides of a row-major result.
func denseResult(kept []axis) []axis {
	out := slices.Clone(kept)
	for i, s := range rowMajor(extents(kept)) {
		out[i].s = []int64{kept[i].s[0], s}
	}
	return out
}

// partsOf returns the axes in kept with the strides of a row-major operand.
func partsOf(kept []axis) []axis {
	out := slices.Clone(kept)
	for i, s := range rowMajor(extents(kept)) {
		out[i].s = []int64{s, kept[i].s[1]}
	}
	return out
}

// chains describes how threads divide the computation of results.
type chains struct {
	share      int64 // number of threads for each result
	v          int64 // partial folds of each thread
	per, parts int64
}

// shape returns how threads divide the computation. This depends only on the reduced axes, not on addresses or the
// number of results.
func (f *folding) shape(from string) chains {
	c := chains{share: 1, v: 1}
	if len(f.gone) == 1 && f.gone[0].s[0] == 1 && f.count >= warpLeast {
		c.share, c.v = 32, 16/sizeOf(from)
		if f.count >= wideLeast {
			c.share = threads
		}
	}
	c.per = c.share * c.v * chainMost
	if c.share == 1 {
		for c.per = chainLeast; c.per < chainMost && c.per*c.per < f.count; {
			c.per *= 2
		}
	}
	c.parts = max(1, ceil(f.count, c.per))
	return c
}

func sizeOf(ct string) int64 {
	dt, _ := ir.ParseDType(ct)
	return dt.Size()
}

func (f *folding) launch(c chains, out, in nvlib.Ptr, from, to string) (launch, error) {
	kept, err := padded(f.kept, 2)
	if err != nil {
		return launch{}, err
	}
	gone, err := padded(f.gone, 1)
	if err != nil {
		return launch{}, err
	}
	var args words
	args.addr(out, in)
	args.bits(f.first)
	args.ints(f.divide, f.outs, f.count, c.per, c.parts)
	args.ints(extents(kept)...)
	args.ints(column(kept, 1)...)
	args.ints(column(kept, 0)...)
	args.ints(extents(gone)...)
	args.ints(column(gone, 0)...)
	wide := f.wide(c, in, from)
	grid, err := exactGrid(ceil(f.outs*c.parts, threads/c.share))
	return launch{blocks: grid, args: args, code: code{
		files: []string{"axes"},
		symbol: symbol(map[string]string{"FoldSum": "sum", "FoldMax": "max", "FoldMin": "min"}[f.fold], from, to,
			fmt.Sprintf("k%dr%dg%dv%d%t", len(kept), len(gone), c.share, c.v, wide)),
		args: fmt.Sprintf("AxesArgs<%d, %d>", len(kept), len(gone)),
		body: fmt.Sprintf("axes<%s, %s, %s, %d, %d, %d, %d, %t>", f.fold, to, from, len(kept), len(gone), c.share, c.v, wide),
	}}, err
}

// wide reports whether each thread can load its elements with one access.
func (f *folding) wide(c chains, in nvlib.Ptr, from string) bool {
	if c.v == 1 || uint64(in)%16 != 0 {
		return false
	}
	for _, a := range f.kept {
		if a.n > 1 && a.s[0]*sizeOf(from)%16 != 0 {
			return false
		}
	}
	return true
}
