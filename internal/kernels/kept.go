package kernels

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// leads returns an error unless operand i has an integer type, and has the given shape or only its last dimension.
func (j *operands) leads(i int, shape []int64) error {
	o, n := j.Ins[i], len(shape)
	if !o.DType.IsInt() || !slices.Equal(o.Shape, shape) && !(n > 0 && slices.Equal(o.Shape, shape[n-1:])) {
		return fmt.Errorf("operand %d is %s%v, which does not fit rows of shape %v", i, o.DType, o.Shape, shape)
	}
	return nil
}

// lead returns the strides of operand i along n dimensions; they are 0 for the dimensions that it lacks.
func (j *operands) lead(i, n int) []int64 {
	s := j.Ins[i].Strides
	return append(make([]int64, n-len(s)), s...)
}

// densely returns the operand o unchanged if it is dense. Otherwise it returns a dense copy in scratch memory, and the
// launches that make the copy.
func (j *job) densely(o Operand) (Operand, []launch, error) {
	if o.isDense() || o.elements() == 0 {
		return o, nil, nil
	}
	addr, err := j.scratch(o.elements()*o.DType.Size(), false)
	if err != nil {
		return o, nil, err
	}
	to := o.dense(addr)
	l, err := moved(to, o)
	return to, l, err
}

// indexCopy plans an index_copy: rows, the first operand, are written into the result at positions, the second operand.
// A first kernel checks the positions, and a second kernel copies if no fault was reported.
func indexCopy(j *job, op device.IndexCopy) ([]launch, error) {
	if err := j.count(2, 2); err != nil {
		return nil, err
	}
	out, in, n := j.Out, j.Ins[0], len(j.Out.Shape)
	axis := op.Axis
	if err := device.AxisIn(axis, n); err != nil {
		return nil, err
	}
	want := slices.Clone(out.Shape)
	if len(in.Shape) == n {
		want[axis] = in.Shape[axis]
	}
	if in.DType != out.DType || !slices.Equal(in.Shape, want) {
		return nil, fmt.Errorf("rows %s%v into %s%v", in.DType, in.Shape, out.DType, out.Shape)
	}
	if err := j.leads(1, in.Shape[:axis+1]); err != nil {
		return nil, err
	}
	if j.Ins[1].elements() == 0 {
		return nil, nil
	}
	at, launches, err := j.densely(j.Ins[1])
	if err != nil {
		return nil, err
	}
	j.Ins[1] = at
	count := in.Shape[axis]
	var positions words
	positions.addr(at.Addr)
	positions.ints(truth(at.DType == ir.I64), count, out.Shape[axis], at.elements())
	positions.addr(j.fault)
	positions.bits(j.tag)
	grid, err := exactGrid(at.elements() / count * ceil(count, threads))
	if err != nil {
		return nil, err
	}
	launches = append(launches, launch{blocks: grid, args: positions, code: code{files: []string{"sync", "map", "kept"},
		symbol: symbol("positions"), args: "PositionArgs", body: "positions", lets: true}})
	if in.elements() == 0 {
		return launches, nil
	}
	copies, err := j.copyRows(axis, positions)
	return append(launches, copies...), err
}

// copyRows plans the kernel of indexCopy that copies after the positions were checked.
func (j *job) copyRows(axis int, positions words) ([]launch, error) {
	out, in := j.Out, j.Ins[0]
	to := slices.Clone(out.Strides[:axis+1])
	to[axis] = 0 // the position, not a stride, determines the index along the axis
	lead, err := padded(shared(in.Shape[:axis+1], to, in.Strides[:axis+1], j.lead(1, axis+1)), 3)
	if err != nil {
		return nil, err
	}
	inner := shared(in.Shape[axis+1:], out.Strides[axis+1:], in.Strides[axis+1:])
	if inner, err = padded(inner, 2); err != nil {
		return nil, err
	}
	v := j.pieces(lead, inner, out.Strides[axis])
	last := len(inner) - 1
	inner[last].n /= v
	for d := range last {
		inner[d].s = []int64{inner[d].s[0] / v, inner[d].s[1] / v}
	}
	rows := Operand{Shape: in.Shape[:axis+1]}.elements()
	args := slices.Clone(positions)
	args.addr(out.Addr, in.Addr)
	args.ints(rows, out.Strides[axis], in.elements()/rows/v)
	args.ints(extents(lead)...)
	for o := range 3 {
		args.ints(column(lead, o)...)
	}
	args.ints(extents(inner)...)
	args.ints(column(inner, 0)...)
	args.ints(column(inner, 1)...)
	size := out.DType.Size()
	piece := fmt.Sprint("u", 8*v*size)
	if v*size == 16 {
		piece = "Pack<u64, 2>"
	}
	grid, err := exactGrid(ceil(rows, 8))
	return []launch{{blocks: grid, args: args, code: code{files: []string{"sync", "map", "kept"},
		symbol: symbol("index_copy", fmt.Sprintf("b%ds%dr%dd%d", v*size, size, len(lead), len(inner))),
		args:   fmt.Sprintf("IndexCopyArgs<%d, %d>", len(lead), len(inner)),
		body:   fmt.Sprintf("indexCopy<%s, %d, %d, %d>", piece, size, len(lead), len(inner)),
		lets:   true,
	}}}, err
}

// pieces returns how many elements of a row move by one access of at most 16 bytes.
func (j *operands) pieces(lead, inner []axis, along int64) int64 {
	last, size := inner[len(inner)-1], j.Out.DType.Size()
	for v := 16 / size; v > 1; v /= 2 {
		whole := last.n%v == 0 && last.s[0] == 1 && last.s[1] == 1 && along%v == 0
		for o, x := range []Operand{j.Out, j.Ins[0]} {
			whole = whole && uint64(x.Addr)%uint64(v*size) == 0
			for _, a := range append(slices.Clone(lead), inner[:len(inner)-1]...) {
				whole = whole && a.s[o]%v == 0
			}
		}
		if whole {
			return v
		}
	}
	return 1
}

// ropeMost is the largest number of elements of a head: the frequencies of its pairs are arguments of the kernel.
const ropeMost = 768

// rope plans a rope: pairs of x[…, T, H, Dh], the first operand, are rotated by the angles of positions […, T] or [T],
// with frequencies [R] if given.
func rope(j *job, op device.Rope) ([]launch, error) {
	if err := j.count(2, 3); err != nil {
		return nil, err
	}
	if err := j.floats(); err != nil {
		return nil, err
	}
	out, in, n := j.Out, j.Ins[0], len(j.Out.Shape)
	if in.DType != out.DType || n < 3 || !slices.Equal(in.Shape, out.Shape) || len(j.Ins) == 2 &&
		out.Shape[n-1]%2 != 0 {
		return nil, fmt.Errorf("%s%v into %s%v", in.DType, in.Shape, out.DType, out.Shape)
	}
	dh, heads := out.Shape[n-1], out.Shape[n-2]
	half, steps, freqs := dh/2, []float64(nil), Operand{Strides: []int64{0}}
	if len(j.Ins) == 3 {
		freqs = j.Ins[2]
		if freqs.DType != ir.F32 || len(freqs.Shape) != 1 || freqs.Shape[0] == 0 || 2*freqs.Shape[0] > dh {
			return nil, fmt.Errorf("frequencies %s%v do not fit heads of %d elements", freqs.DType, freqs.Shape, dh)
		}
		half = freqs.Shape[0]
	} else if !(op.Theta > 0) {
		return nil, fmt.Errorf("a base of %v", op.Theta)
	}
	if err := j.leads(1, out.Shape[:n-2]); err != nil {
		return nil, err
	}
	if out.elements() == 0 {
		return nil, nil
	}
	if dh > ropeMost {
		return nil, fmt.Errorf("%w: heads of %d elements; at most %d are supported", device.ErrUnsupported, dh, ropeMost)
	}
	if len(j.Ins) == 2 {
		steps = op.Frequencies(dh)
	}
	if heads*dh > 1<<30 {
		return nil, fmt.Errorf("%w: %d heads of %d elements are too many", device.ErrUnsupported, heads, dh)
	}
	lead, err := padded(shared(out.Shape[:n-2], out.Strides[:n-2], in.Strides[:n-2], j.lead(1, n-2)), 3)
	if err != nil {
		return nil, err
	}
	var args words
	args.addr(out.Addr, in.Addr, j.Ins[1].Addr)
	args.ints(truth(j.Ins[1].DType == ir.I64), heads)
	args.ints(out.Strides[n-2:]...)
	args.ints(in.Strides[n-2:]...)
	args.ints(extents(lead)...)
	for o := range 3 {
		args.ints(column(lead, o)...)
	}
	args.addr(freqs.Addr)
	args.ints(freqs.Strides[0], dh-2*half)
	args.float(cmp.Or(op.Scale, 1))
	if steps == nil {
		steps = make([]float64, half)
	}
	for _, f := range steps {
		args.float(f)
	}
	v := j.pairs(lead, half)
	grid, err := exactGrid(out.elements() / (heads * dh))
	return []launch{{blocks: grid, args: args, code: code{files: []string{"sync", "map", "kept"},
		symbol: symbol("rope", ctype(out.DType), fmt.Sprintf("b%dh%dv%d", len(lead), half, v)),
		args:   fmt.Sprintf("RopeArgs<%d, %d>", len(lead), half),
		body:   fmt.Sprintf("rope<%s, %d, %d, %d>", ctype(out.DType), len(lead), half, v),
		lets:   true,
	}}}, err
}

// pairs returns how many pairs of a rope move by one access.
func (j *operands) pairs(lead []axis, half int64) int64 {
	n, size := len(j.Out.Shape), j.Out.DType.Size()
	for v := 16 / size; v > 1; v /= 2 {
		whole := half%v == 0
		for o, x := range []Operand{j.Out, j.Ins[0]} {
			whole = whole && uint64(x.Addr)%uint64(v*size) == 0 && x.Strides[n-1] == 1 && x.Strides[n-2]%v == 0
			for _, a := range lead {
				whole = whole && a.s[o]%v == 0
			}
		}
		if whole {
			return v
		}
	}
	return 1
}

// argmax splits a row into at most argmaxParts parts. Each has at least argmaxLeast elements, so that a thread block
// has some for each thread.
const (
	argmaxLeast = 4096
	argmaxParts = 64
)

// argmax plans the computation of the index of the first largest element along an axis.
func argmax(j *job, op device.Argmax) ([]launch, error) {
	if err := j.count(1, 1); err != nil {
		return nil, err
	}
	out, in := j.Out, j.Ins[0]
	d := op.Axis
	if err := device.AxisIn(d, len(in.Shape)); err != nil {
		return nil, err
	}
	kept := slices.Delete(slices.Clone(in.Shape), d, d+1)
	if out.DType != ir.I32 || !slices.Equal(kept, out.Shape) || in.Shape[d] == 0 {
		return nil, fmt.Errorf("the argmax of shape %v along axis %d does not have the result's type and shape, %s%v", in.Shape, d, out.DType, out.Shape)
	}
	outs, n, along := out.elements(), in.Shape[d], in.Strides[d]
	if outs == 0 {
		return nil, nil
	}
	if n > 1<<31 {
		return nil, fmt.Errorf("%w: the indices of %d elements do not fit into i32", device.ErrUnsupported, n)
	}
	rows, err := padded(shared(kept, out.Strides, slices.Delete(slices.Clone(in.Strides), d, d+1)), 2)
	if err != nil {
		return nil, err
	}
	acc := in.DType.Accum()
	v := 16 / in.DType.Size()
	odd := slices.ContainsFunc(rows, func(a axis) bool { return a.s[1]%v != 0 })
	if odd || along != 1 || n%v != 0 || uint64(in.Addr)%16 != 0 {
		v = 1
	}
	parts := min(argmaxParts, ceil(n, argmaxLeast))
	per := ceil(ceil(n, parts), v) * v
	parts = ceil(n, per)
	var scratch nvlib.Ptr
	if parts > 1 {
		if scratch, err = j.scratch(outs*parts*16, false); err != nil {
			return nil, err
		}
	}
	var args words
	args.addr(out.Addr, in.Addr, scratch)
	args.ints(n, per, parts, along, outs)
	args.ints(extents(rows)...)
	args.ints(column(rows, 0)...)
	args.ints(column(rows, 1)...)
	grid, err := exactGrid(outs * parts)
	if err != nil {
		return nil, err
	}
	c := code{files: []string{"sync", "map", "kept"}, args: fmt.Sprintf("ArgmaxArgs<%d>", len(rows)),
		symbol: symbol("argmax", ctype(in.DType), fmt.Sprintf("r%dv%d", len(rows), v)),
		body:   fmt.Sprintf("argmax<%s, %d, %d>", ctype(in.DType), len(rows), v)}
	all := []launch{{blocks: grid, args: args, code: c}}
	if parts > 1 {
		c.symbol = symbol("argmaxJoin", ctype(acc), fmt.Sprintf("r%d", len(rows)))
		c.body = fmt.Sprintf("argmaxJoin<%s, %d>", ctype(acc), len(rows))
		if grid, err = exactGrid(ceil(outs, threads)); err != nil {
			return nil, err
		}
		all = append(all, launch{blocks: grid, args: args, code: c})
	}
	return all, nil
}
