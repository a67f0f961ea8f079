package kernels

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// along describes a kernel that processes rows along an axis of its operands. The result and the operands have equal
// extents except along the axis.
type along struct {
	name   string
	number uint64 // value of the field Start in the kernel's argument
	first  int64
	n, m   int64 // numbers of elements of a row: n of the operand, m of the result
	rows   int64
}

// alongAxis describes a kernel along an axis. It checks the axis, and the shapes of the operands: at most one tensor
// and one tensor of indices.
func (j *operands) alongAxis(name string, axis int) (along, error) {
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
			return a, fmt.Errorf("operand %d has shape %v, but the result has shape %v", i, in.Shape, j.Out.Shape)
		}
	}
	if len(j.Ins) > 0 {
		a.n = j.Ins[0].Shape[axis]
	}
	return a, nil
}

// launch returns the kernel's launch with the given number of blocks. The params are the first parameters of its
// template, before the number of dimensions.
func (a along) launch(j *job, axis int, blocks int64, params ...string) ([]launch, error) {
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
	return []launch{{blocks: grid, args: args, code: code{files: []string{"sync", "map", "rows", "index"},
		symbol: symbol(append(append([]string{a.name}, params...), fmt.Sprintf("b%d", len(lead)))...),
		args:   fmt.Sprintf("AlongArgs<%d>", len(lead)),
		body:   fmt.Sprintf("%s<%s, %d>", a.name, strings.Join(params, ", "), len(lead)),
	}}}, nil
}

// counting plans an iota along an axis: the numbers Start, Start+1, ….
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
	return a.launch(j, op.Axis, int64(blocksFor(j.Out.elements())), ctype(j.Out.DType))
}

// sortedMost is the largest number of comparisons in a launch of the kernel sorted, which compares each element of a
// row with all others.
const sortedMost = 1 << 42

// sorted plans the sorting of rows along the last axis. Each thread compares one element with all elements of its row.
// The comparisons determine the element's position in the result.
func sorted(j *job, op device.Sorted) ([]launch, error) {
	if err := j.count(1, 1); err != nil {
		return nil, err
	}
	in := j.Ins[0]
	if err := device.CheckSorted(op, in.DType, j.Out.DType, in.Shape, j.Out.Shape); err != nil {
		return nil, err
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	last := len(in.Shape) - 1
	a, err := j.alongAxis("sorted", last)
	if err != nil {
		return nil, err
	}
	if float64(a.rows)*float64(a.n)*float64(a.n) > sortedMost {
		return nil, fmt.Errorf("%w: sorting %d rows of %d elements by comparing all pairs would take too long: sort slices "+
			"of the rows, or first reduce their length with max or a smaller last dimension",
			device.ErrUnsupported, a.rows, a.n)
	}
	up, values := "false", "false"
	if op.Op == ir.OpArgsort {
		up = "true"
	}
	if op.Op == ir.OpTopK {
		values = "true"
	}
	return a.launch(j, last, a.rows*ceil(a.n, threads), ctype(in.DType), up, values)
}

// takeAlong plans the selection of elements of rows along the last axis of the first operand, by the indices in the
// second.
func takeAlong(j *job) ([]launch, error) {
	if err := j.count(2, 2); err != nil {
		return nil, err
	}
	x, at := j.Ins[0], j.Ins[1]
	if x.DType != j.Out.DType || !at.DType.IsInt() {
		return nil, fmt.Errorf("cannot select elements of type %s by indices of type %s into type %s", x.DType, at.DType,
			j.Out.DType)
	}
	if err := device.CheckTakeAlong(x.Shape, at.Shape, j.Out.Shape); err != nil {
		return nil, err
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	last := len(x.Shape) - 1
	a, err := j.alongAxis("takeAlong", last)
	if err != nil {
		return nil, err
	}
	return a.launch(j, last, int64(blocksFor(j.Out.elements())), rawType(x.DType), ctype(at.DType))
}

// bincount plans a launch with one thread block for each index of the result. The block counts how often the operand
// contains the index.
func bincount(j *job) ([]launch, error) {
	if err := j.count(1, 1); err != nil {
		return nil, err
	}
	ids := j.Ins[0]
	if !ids.DType.IsInt() || j.Out.DType != ir.I32 || len(j.Out.Shape) != 1 {
		return nil, fmt.Errorf("cannot count values of %s%v into %s%v", ids.DType, ids.Shape, j.Out.DType, j.Out.Shape)
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	ids, launches, err := j.densely(ids)
	if err != nil {
		return nil, err
	}
	grid, err := exactGrid(j.Out.Shape[0])
	if err != nil {
		return nil, err
	}
	var args words
	args.addr(j.Out.Addr, ids.Addr)
	args.ints(j.Out.Strides[0], ids.elements())
	return append(launches, launch{blocks: grid, args: args, code: code{files: []string{"sync", "map", "rows", "index"},
		symbol: symbol("bincount", ctype(ids.DType)), args: "BincountArgs",
		body: "bincount<" + ctype(ids.DType) + ">"}}), nil
}

// addedMost is the largest number of comparisons in a launch of indexAdd, in which each thread block may compare its id
// with all others.
const addedMost = 1 << 42

// addedColumns is the number of columns that a thread block of indexAdd adds, as in index.cuh.
const addedColumns = 4 * threads

// indexAdd plans an index_add: rows of the operand that have the same id are added to the result's row with this
// number. A first kernel writes zeros. A second kernel has a thread block for each row of the operand. If the row is
// the first with its id, the block adds all rows with this id, in their order.
func indexAdd(j *job, op device.IndexAdd) ([]launch, error) {
	if err := j.count(2, 2); err != nil {
		return nil, err
	}
	x, ids, out := j.Ins[0], j.Ins[1], j.Out
	if err := device.CheckIndexAdd(op, out.DType, x.DType, ids.DType, out.Shape, x.Shape, ids.Shape); err != nil {
		return nil, err
	}
	x, launches, err := j.densely(x)
	if err != nil {
		return nil, err
	}
	ids, more, err := j.densely(ids)
	if err != nil {
		return nil, err
	}
	launches = append(launches, more...)
	width := out.Shape[1]
	tiles := max(1, ceil(width, addedColumns))
	if n := float64(ids.elements()); n*n*float64(tiles) > addedMost {
		return nil, fmt.Errorf("%w: %d ids of rows of %d elements take too long to search: add slices of the "+
			"ids, and add the results", device.ErrUnsupported, ids.elements(), width)
	}
	var args words
	args.addr(out.Addr, x.Addr, ids.Addr, j.fault)
	args.bits(j.tag)
	args.ints(ids.elements(), width, out.Shape[0], op.First, op.Rows, out.Strides[0], out.Strides[1], tiles)
	raw := code{files: []string{"sync", "map", "rows", "index"}, args: "IndexAddArgs"}
	if out.elements() > 0 {
		zeros := raw
		zeros.symbol, zeros.body = symbol("noRows", rawType(out.DType)), "noRows<"+rawType(out.DType)+">"
		launches = append(launches, launch{blocks: uint32(blocksFor(out.elements())), args: args, code: zeros})
	}
	grid, err := exactGrid(ids.elements() * tiles)
	if err != nil || grid == 0 {
		return launches, err
	}
	t, id := ctype(out.DType), ctype(ids.DType)
	raw.symbol, raw.body = symbol("indexAdd", t, id), "indexAdd<"+t+", "+id+">"
	return append(launches, launch{blocks: grid, args: args, code: raw}), nil
}
