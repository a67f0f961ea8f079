package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// copies plans the operations that only change the strides of their operand.
func copies(j *job, op device.Copy) ([]launch, error) {
	if err := j.count(1, 1); err != nil {
		return nil, err
	}
	out, in := j.Out, j.Ins[0]
	if in.DType != out.DType || in.elements() != out.elements() ||
		op.Op != ir.OpReshape && !slices.Equal(in.Shape, out.Shape) {
		return nil, fmt.Errorf("cannot copy %[3]s%[4]v to %[1]s%[2]v", out.DType, out.Shape, in.DType, in.Shape)
	}
	if slices.Equal(in.Shape, out.Shape) {
		return moved(out, in)
	}
	return j.reshaped(out, in)
}

// reshaped plans a copy between views of different shapes. If one of the views is dense, which is usual, it is treated
// as a view of the other's shape. Otherwise the copy goes through dense scratch memory.
func (j *job) reshaped(out, in Operand) ([]launch, error) {
	switch {
	case in.isDense():
		in.Shape = out.Shape
		return moved(out, in.dense(in.Addr))
	case out.isDense():
		out.Shape = in.Shape
		return moved(out.dense(out.Addr), in)
	}
	at, err := j.scratch(in.elements()*in.DType.Size(), false)
	if err != nil {
		return nil, err
	}
	first, err := moved(in.dense(at), in)
	if err != nil {
		return nil, err
	}
	second, err := moved(out, Operand{DType: out.DType, Shape: out.Shape}.dense(at))
	return append(first, second...), err
}

// isDense reports whether the elements are in row-major order without gaps.
func (o Operand) isDense() bool {
	for d, s := range rowMajor(o.Shape) {
		if o.Shape[d] > 1 && o.Strides[d] != s {
			return false
		}
	}
	return true
}

// concat plans copies of the operands to consecutive positions of the result.
func concat(j *job, op device.Concat) ([]launch, error) {
	if err := j.alike(); err != nil {
		return nil, err
	}
	d := op.Axis
	if err := device.AxisIn(d, len(j.Out.Shape)); err != nil {
		return nil, err
	}
	var all []launch
	from := int64(0)
	for i, in := range j.Ins {
		if len(in.Shape) != len(j.Out.Shape) || from+in.Shape[d] > j.Out.Shape[d] {
			return nil, fmt.Errorf("operand %d of shape %v does not fit into the result's shape %[5]v at index %[3]d of axis %[4]d", i,
				in.Shape, from, d, j.Out.Shape)
		}
		l, err := moved(j.Out.at(d, from, in.Shape[d]), in)
		if err != nil {
			return nil, fmt.Errorf("operand %d: %w", i, err)
		}
		all = append(all, l...)
		from += in.Shape[d]
	}
	if from != j.Out.Shape[d] {
		return nil, fmt.Errorf("the operands fill only %d of %d elements along axis %d", from, j.Out.Shape[d], d)
	}
	return all, nil
}

// moved plans a copy between views of one shape.
func moved(out, in Operand) ([]launch, error) {
	if !slices.Equal(out.Shape, in.Shape) {
		return nil, fmt.Errorf("cannot copy a tensor of shape %[2]v to one of shape %[1]v", out.Shape, in.Shape)
	}
	if out.elements() == 0 {
		return nil, nil
	}
	axes := shared(out.Shape, out.Strides, in.Strides)
	if rows, ok := crossed(axes); ok {
		l, err := tiled(axes, rows, out, in)
		return []launch{l}, err
	}
	raw := rawType(out.DType)
	m := mapping{label: "copy", functor: functor{name: "OpSame"}, to: raw, from: raw}
	return m.launches(out, []Operand{in})
}

// crossed returns the axis along which the source is contiguous, if that is not the axis along which the destination is
// contiguous, and both are long enough for tiles.
func crossed(axes []axis) (rows int, ok bool) {
	const least = 16
	last := len(axes) - 1
	if last < 1 || axes[last].s[0] != 1 || axes[last].s[1] == 1 || axes[last].n < least {
		return 0, false
	}
	for i, a := range axes[:last] {
		if a.s[1] == 1 && a.n >= least {
			return i, true
		}
	}
	return 0, false
}

// tiled plans a copy by square tiles. The columns of a tile are along the last axis, and the rows along the axis rows.
func tiled(axes []axis, rows int, out, in Operand) (launch, error) {
	size := int64(32)
	if out.DType.Size() == 2 {
		size = 64
	}
	r, c := axes[rows], axes[len(axes)-1]
	rest := slices.Delete(slices.Clone(axes[:len(axes)-1]), rows, rows+1)
	rest, err := padded(rest, 2)
	if err != nil {
		return launch{}, err
	}
	tileRows, tileCols := ceil(r.n, size), ceil(c.n, size)
	var args words
	args.addr(out.Addr, in.Addr)
	args.ints(r.n, c.n, r.s[0], c.s[1], tileRows, tileCols)
	args.ints(extents(rest)...)
	args.ints(column(rest, 0)...)
	args.ints(column(rest, 1)...)
	blocks := tileRows * tileCols
	for _, a := range rest {
		blocks *= a.n
	}
	grid, err := exactGrid(blocks)
	raw := rawType(out.DType)
	return launch{blocks: grid, args: args, code: code{
		files:  []string{"tile"},
		symbol: symbol("transpose", raw, fmt.Sprintf("b%d", len(rest))),
		args:   fmt.Sprintf("TileArgs<%d>", len(rest)),
		body:   fmt.Sprintf("tile<%s, %d, %d>", raw, len(rest), size),
	}}, err
}
