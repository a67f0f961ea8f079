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
// If there are more than checkedMost positions, a first kernel checks them, and a second kernel copies if no fault was
// reported.
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
	positions := j.positionWords(at, count, out.Shape[axis])
	grid, err := exactGrid(at.elements() / count * ceil(count, threads))
	if err != nil {
		return nil, err
	}
	checks := at.elements() <= checkedMost && in.elements() > 0 // the kernel that copies checks the positions
	if !checks {
		launches = append(launches, launch{blocks: grid, args: positions, code: code{files: []string{"sync", "map", "kept"},
			symbol: symbol("positions"), args: "PositionArgs", body: "positions", lets: true}})
	}
	if in.elements() == 0 {
		return launches, nil
	}
	copies, err := j.copyRows(axis, positions, checks)
	return append(launches, copies...), err
}

// checkedMost is the largest number of positions that each block of a kernel that copies checks itself: one for each
// thread.
const checkedMost = threads

// positionWords returns the words of PositionArgs for positions at, which are dense: lists of count positions each, in
// a tensor with room rows.
func (j *job) positionWords(at Operand, count, room int64) words {
	var w words
	w.addr(at.Addr)
	w.ints(truth(at.DType == ir.I64), count, room, at.elements())
	w.addr(j.fault)
	w.bits(j.tag)
	return w
}

// copyRows plans the kernel of indexCopy that copies. checks reports whether it also checks the positions.
func (j *job) copyRows(axis int, positions words, checks bool) ([]launch, error) {
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
		symbol: symbol("index_copy", fmt.Sprintf("b%ds%dr%dd%dc%d", v*size, size, len(lead), len(inner), truth(checks))),
		args:   fmt.Sprintf("IndexCopyArgs<%d, %d>", len(lead), len(inner)),
		body:   fmt.Sprintf("indexCopy<%s, %d, %d, %d, %t>", piece, size, len(lead), len(inner), checks),
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

// ropes is the state while a launch of ropes is planned.
type ropes struct {
	*job
	device.Ropes
	outs  []Operand
	n     int   // number of dimensions
	dh    int64 // elements of a head
	half  int64 // number of pairs of a head
	freqs Operand
	at    Operand // positions that determine angles
	rows  Operand // positions at which parts are stored
}

// rope plans a rope: pairs of x[…, T, H, Dh], the first operand, are rotated by the angles of positions […, T] or [T],
// with frequencies [R] if given.
func rope(j *job, op device.Rope) ([]launch, error) {
	if err := j.count(2, 3); err != nil {
		return nil, err
	}
	return ropesOf(j, device.Ropes{Rope: op, Parts: []device.RopePart{{Rotates: true}}}, nil)
}

// ropesOf plans one launch of several ropes, copies of rows to positions, and copies of rotated rows. See device.Ropes.
func ropesOf(j *job, op device.Ropes, stored []Operand) ([]launch, error) {
	r := &ropes{job: j, Ropes: op, outs: append(slices.Clone(stored), j.Out), n: len(j.Out.Shape)}
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.Ins[0].elements() == 0 && !op.Keeps() {
		return nil, nil
	}
	if r.dh > ropeMost {
		return nil, fmt.Errorf("%w: heads of %d elements; at most %d are supported", device.ErrUnsupported, r.dh, ropeMost)
	}
	for i := range r.outs {
		switch n := r.Ins[i].elements(); {
		case n == 0 || r.half == 0:
			return nil, fmt.Errorf("%w: one launch for a tensor of shape %v", device.ErrUnsupported, r.Ins[i].Shape)
		case n/r.tokens() > 1<<30:
			return nil, fmt.Errorf("%w: the %d heads of %v are too many", device.ErrUnsupported, r.Ins[i].Shape[r.n-2],
				r.Ins[i].Shape)
		}
	}
	if op.Keeps() && r.rows.elements() > checkedMost {
		return nil, fmt.Errorf("%w: %d positions; one launch supports at most %d", device.ErrUnsupported, r.rows.elements(),
			checkedMost)
	}
	return r.launches()
}

// tokens returns the number of tokens.
func (r *ropes) tokens() int64 { return Operand{Shape: r.Ins[0].Shape[:r.n-2]}.elements() }

// check assigns the operands, and checks that they fit.
func (r *ropes) check() error {
	if len(r.outs) != len(r.Parts) || len(r.Ins) < len(r.Parts) {
		return fmt.Errorf("%d results and %d operands are given for %d parts", len(r.outs), len(r.Ins), len(r.Parts))
	}
	if err := r.floats(); err != nil {
		return err
	}
	for i, p := range r.Parts {
		out, in := r.outs[i], r.Ins[i]
		want := slices.Clone(out.Shape)
		if p.Keeps && r.n >= 3 && len(in.Shape) == r.n {
			want[r.n-3] = in.Shape[r.n-3]
		}
		if in.DType != r.Out.DType || out.DType != r.Out.DType || r.n < 3 || len(out.Shape) != r.n ||
			!slices.Equal(in.Shape, want) {
			return fmt.Errorf("%s%v into %s%v", in.DType, in.Shape, out.DType, out.Shape)
		}
		if err := out.check(); err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
		r.dh = in.Shape[r.n-1]
		if first := r.Ins[0].Shape; !slices.Equal(in.Shape[:r.n-2], first[:r.n-2]) || r.dh != first[r.n-1] {
			return fmt.Errorf("one launch for tensors of shapes %v and %v", first, in.Shape)
		}
		if p.Keeps && out.Shape[r.n-3] != r.room() {
			return fmt.Errorf("one launch for tensors with %d and %d rows", r.room(), out.Shape[r.n-3])
		}
	}
	return r.checkPositions()
}

// room returns the number of rows of the tensors in which parts are stored at positions.
func (r *ropes) room() int64 {
	for i, p := range r.Parts {
		if p.Keeps {
			return r.outs[i].Shape[r.n-3]
		}
	}
	return 0
}

// checkPositions assigns the operands after the parts: positions that determine angles, frequencies, and positions at
// which parts are stored.
func (r *ropes) checkPositions() error {
	next, tokens := len(r.Parts), r.Ins[0].Shape[:r.n-2]
	given := len(r.Ins) - next - int(truth(r.Rotates())+truth(r.Keeps())) // 1 if frequencies are given
	if given < 0 || given > int(truth(r.Rotates())) {
		return fmt.Errorf("%d operands are given for %d parts", len(r.Ins), next)
	}
	r.half, r.freqs = r.dh/2, Operand{Strides: []int64{0}}
	if r.Rotates() {
		r.at = r.Ins[next]
		if given == 1 {
			r.freqs = r.Ins[next+1]
			if r.freqs.DType != ir.F32 || len(r.freqs.Shape) != 1 || r.freqs.Shape[0] == 0 || 2*r.freqs.Shape[0] > r.dh {
				return fmt.Errorf("frequencies %s%v do not fit heads of %d elements", r.freqs.DType, r.freqs.Shape,
					r.dh)
			}
			r.half = r.freqs.Shape[0]
		} else if r.dh%2 != 0 {
			return fmt.Errorf("%s%v into %s%v", r.Ins[0].DType, r.Ins[0].Shape, r.Out.DType, r.Out.Shape)
		} else if !(r.Rope.Theta > 0) {
			return fmt.Errorf("a base of %v", r.Rope.Theta)
		}
		if err := r.leads(next, tokens); err != nil {
			return err
		}
	}
	if r.Keeps() {
		r.rows = r.Ins[len(r.Ins)-1]
		return r.leads(len(r.Ins)-1, tokens)
	}
	return nil
}

// lead returns the strides of positions along the tokens' dimensions; they are 0 for the dimensions that o lacks.
func (r *ropes) lead(o Operand) []int64 {
	return append(make([]int64, r.n-2-len(o.Shape)), o.Strides...)
}

func (r *ropes) launches() ([]launch, error) {
	rows, launches, err := r.densely(r.rows)
	if err != nil {
		return nil, err
	}
	strides := [][]int64{r.lead(r.at), r.lead(rows)}
	for i, p := range r.Parts {
		to := slices.Clone(r.outs[i].Strides[:r.n-2])
		if p.Keeps {
			to[r.n-3] = 0 // the position determines the row
		}
		strides = append(strides, to, r.Ins[i].Strides[:r.n-2])
	}
	tokens := r.Ins[0].Shape[:r.n-2]
	lead, err := padded(shared(tokens, strides...), len(strides))
	if err != nil {
		return nil, err
	}
	n := int64(len(r.Parts))
	var args words
	args.addr(r.at.Addr)
	args.ints(truth(r.at.DType == ir.I64), r.tokens())
	args.ints(extents(lead)...)
	args.ints(column(lead, 0)...)
	args.ints(column(lead, 1)...)
	args.addr(r.freqs.Addr)
	args.ints(r.freqs.Strides[0], r.dh-2*r.half)
	args.float(cmp.Or(r.Rope.Scale, 1))
	args = append(args, r.positionWords(rows, tokens[len(tokens)-1], r.room())...)
	for i, p := range r.Parts {
		out, in := r.outs[i], r.Ins[i]
		args.addr(out.Addr, in.Addr)
		args.ints(in.Shape[r.n-2])
		args.ints(out.Strides[r.n-2:]...)
		args.ints(in.Strides[r.n-2:]...)
		args.ints(column(lead, 2+2*i)...)
		args.ints(column(lead, 3+2*i)...)
		args.ints(truth(p.Rotates), truth(p.Keeps), out.Strides[r.n-3])
	}
	steps := make([]float64, r.half)
	if r.freqs.Addr == 0 && r.Rotates() {
		steps = r.Rope.Frequencies(r.dh)
	}
	for _, f := range steps {
		args.float(f)
	}
	if bytes := 8 * len(args); bytes > argsMost {
		return nil, tooLongError{bytes}
	}
	v := r.pairs(lead)
	grid, err := exactGrid(r.tokens() * n)
	form := fmt.Sprintf("b%dh%dp%dk%dv%d", len(lead), r.half, n, truth(r.Keeps()), v)
	return append(launches, launch{blocks: grid, args: args, code: code{files: []string{"sync", "map", "kept"},
		symbol: symbol("rope", ctype(r.Out.DType), form),
		args:   fmt.Sprintf("RopeArgs<%d, %d, %d>", len(lead), r.half, n),
		body:   fmt.Sprintf("rope<%s, %d, %d, %d, %t, %d>", ctype(r.Out.DType), len(lead), r.half, n, r.Keeps(), v),
		lets:   true,
	}}), err
}

// pairs returns how many pairs move by one access.
func (r *ropes) pairs(lead []axis) int64 {
	size := r.Out.DType.Size()
	for v := 16 / size; v > 1; v /= 2 {
		whole := r.half%v == 0
		for i, p := range r.Parts {
			whole = whole && (!p.Keeps || r.outs[i].Strides[r.n-3]%v == 0)
			for o, x := range []Operand{r.outs[i], r.Ins[i]} {
				whole = whole && uint64(x.Addr)%uint64(v*size) == 0 && x.Strides[r.n-1] == 1 && x.Strides[r.n-2]%v == 0
				for _, a := range lead {
					whole = whole && a.s[2+2*i+o]%v == 0
				}
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
