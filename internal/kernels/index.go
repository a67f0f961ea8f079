package kernels

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
)

// along is a kernel over rows of a result along an axis, and over those of its operands, which have the same extents but
// along the axis.
type along struct {
	name   string
	number uint64 // Start's
	first  int64
	n, m   int64 // elements of a row of the operand, and of the result
	rows   int64
}

// alongAxis checks an axis and the shapes of operands, of which there may be one, and another of indices.
func (j *job) alongAxis(name string, axis int) (along, error) {
	if err := device.AxisIn(axis, len(j.Out.Shape)); err != nil {
		return along{}, err
	}
	a := along{name: name, m: j.Out.Shape[axis], rows: 1}
	for d, e := range j.Out.Shape {
		if d != axis {
			a.rows *= e
		}
	}
	for i, in := range j.Ins {
		want := slices.Clone(j.Out.Shape)
		if len(in.Shape) == len(want) {
			want[axis] = in.Shape[axis]
		}
		if !slices.Equal(in.Shape, want) {
			return a, fmt.Errorf("operand %d has shape %v, the result %v", i, in.Shape, j.Out.Shape)
		}
	}
	if len(j.Ins) > 0 {
		a.n = j.Ins[0].Shape[axis]
	}
	return a, nil
}

// launch is the kernel's, with so many blocks, over elements of a type of the sources.
func (a along) launch(j *job, axis int, t string, blocks int64) ([]launch, error) {
	all := append([]Operand{j.Out}, j.Ins...)
	strides, step := make([][]int64, 3), make([]int64, 3)
	addr := make([]uint64, 3)
	for o := range strides {
		strides[o] = make([]int64, len(j.Out.Shape)-1)
		if o < len(all) {
			strides[o] = slices.Delete(slices.Clone(all[o].Strides), axis, axis+1)
			addr[o], step[o] = uint64(all[o].Addr), all[o].Strides[axis]
		}
	}
	lead, err := padded(shared(slices.Delete(slices.Clone(j.Out.Shape), axis, axis+1), strides...), 3)
	if err != nil {
		return nil, err
	}
	grid, err := exactGrid(blocks)
	if err != nil {
		return nil, err
	}
	var args words
	args = append(args, addr...)
	args.ints(a.n, a.m, a.rows)
	args.ints(step...)
	args.bits(a.number)
	args.ints(a.first)
	args.addr(j.fault)
	args.bits(j.tag)
	args.ints(extents(lead)...)
	for o := range 3 {
		args.ints(column(lead, o)...)
	}
	return []launch{{blocks: grid, args: args, code: code{files: []string{"sync", "map", "index"},
		symbol: symbol(a.name, t, fmt.Sprintf("b%d", len(lead))),
		args:   fmt.Sprintf("AlongArgs<%d>", len(lead)),
		body:   fmt.Sprintf("%s<%s, %d>", a.name, t, len(lead)),
	}}}, nil
}

// counting counts along an axis.
func counting(j *job, op device.Iota) ([]launch, error) {
	if err := j.count(0, 0); err != nil {
		return nil, err
	}
	a, err := j.alongAxis("iota", op.Axis)
	if err != nil || j.Out.elements() == 0 {
		return nil, err
	}
	start, ok := op.Start.For(j.Out.DType)
	if !ok {
		return nil, fmt.Errorf("%v is no %s", op.Start.Float, j.Out.DType)
	}
	if a.number = uint64(start.Int); !j.Out.DType.IsInt() {
		a.number = math.Float64bits(op.Start.Float)
	}
	a.first = op.First
	return a.launch(j, op.Axis, ctype(j.Out.DType), int64(blocksFor(j.Out.elements())))
}
