package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// asMatrix returns o as a matrix: its rows are those along the last axis of o, if the other axes can be merged.
// Otherwise it returns a dense copy in scratch memory, and the launches that make the copy.
func (j *job) asMatrix(o Operand) (matrix Operand, launches []launch, err error) {
	rows, cols := device.Matrix(o.Shape)
	matrix = Operand{Addr: o.Addr, DType: o.DType, Shape: []int64{rows, cols}, Strides: []int64{0, 1}}
	last := len(o.Shape) - 1
	if last < 0 {
		return matrix, nil, nil
	}
	switch lead := shared(o.Shape[:last], o.Strides[:last]); {
	case len(lead) == 0:
		matrix.Strides[1] = o.Strides[last]
	case len(lead) == 1 && slices.IsSortedFunc(o.Strides[:last], func(a, b int64) int { return int(b - a) }):
		matrix.Strides = []int64{lead[0].s[0], o.Strides[last]}
	default:
		at, err := j.scratch(o.elements()*o.DType.Size(), false)
		if err != nil {
			return matrix, nil, err
		}
		launches, err = moved(o.dense(at), o)
		return Operand{Addr: at, DType: o.DType, Shape: matrix.Shape, Strides: []int64{cols, 1}}, launches, err
	}
	return matrix, nil, nil
}

// grain appends the structure ScaleGrain that describes a matrix of scales. A stride is 0 if all blocks along that
// dimension share a scale.
func (w *words) grain(g device.Grain, scales Operand) {
	w.ints(g.Rows, g.Columns, scales.Strides[0], scales.Strides[1])
}

// scaleMatrix returns the scales as a matrix with one element for each block that shares a scale.
func (j *job) scaleMatrix(g device.Grain, rows int64, s Operand) (Operand, []launch, error) {
	if g.Columns != device.ScaleBlock || len(s.Shape) == 0 || s.Shape[len(s.Shape)-1] != g.Cols || ceil(rows, g.Rows)*g.Cols != s.elements() {
		s.Shape, s.Strides = append(slices.Clone(s.Shape), 1), append(slices.Clone(s.Strides), 0)
	}
	return j.asMatrix(s)
}

// scalesOf plans the computation of scales from the largest magnitudes of blocks. If a single scale is for the whole
// tensor, scalesOf first computes the scales of rows, and then the largest of these.
func scalesOf(j *job, op device.Scales) ([]launch, error) {
	if err := j.count(1, 1); err != nil {
		return nil, err
	}
	in := j.Ins[0]
	g, err := device.CheckScales(op, in.DType, j.Out.DType, in.Shape, j.Out.Shape)
	if err != nil {
		return nil, err
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	x, before, err := j.asMatrix(in)
	if err != nil {
		return nil, err
	}
	out, after, err := j.scaleMatrix(g, x.Shape[0], j.Out)
	if err != nil {
		return nil, err
	}
	if after != nil { // without a copy, the scales cannot be viewed as a matrix
		if after, err = moved(j.Out, j.Out.dense(out.Addr)); err != nil {
			return nil, err
		}
	}
	if g.Rows > device.ScaleBlock || len(j.Out.Shape) == 0 && x.Shape[0] > 1 {
		at, err := j.scratch(4*x.Shape[0], false)
		if err != nil {
			return nil, err
		}
		rows := Operand{Addr: at, DType: ir.F32, Shape: []int64{x.Shape[0], 1}, Strides: []int64{1, 0}}
		first, err := scalesLaunch(x, rows, device.Grain{Rows: 1, Columns: max(1, x.Shape[1]), Cols: 1}, op.Max)
		if err != nil {
			return nil, err
		}
		before, op.Max = append(before, first), 1
		x = Operand{Addr: at, DType: ir.F32, Shape: []int64{1, x.Shape[0]}, Strides: []int64{0, 1}}
		g = device.Grain{Rows: 1, Columns: x.Shape[1], Cols: 1}
	}
	last, err := scalesLaunch(x, out, g, op.Max)
	return append(append(before, last), after...), err
}

func scalesLaunch(x, out Operand, g device.Grain, top float64) (launch, error) {
	group := int64(threads)
	if g.Rows == 1 && g.Columns <= device.ScaleBlock {
		group = 32
	}
	blocks := ceil(max(1, x.Shape[0]), g.Rows) * g.Cols
	var args words
	args.addr(out.Addr, x.Addr)
	args.float(top)
	args.ints(x.Shape[0], x.Shape[1], x.Strides[0], x.Strides[1], blocks, g.Cols)
	args.grain(g, out)
	grid, err := exactGrid(ceil(blocks, threads/group))
	dt := ctype(x.DType)
	return launch{blocks: grid, args: args, code: code{files: []string{"gemm", "scaled"},
		symbol: symbol("scales", dt, fmt.Sprint(group)), args: "ScalesArgs",
		body: fmt.Sprintf("scales<%s, %d>", dt, group)}}, err
}

// quantizeBlocks is the largest number of thread blocks of a launch of quantize; with more pieces, threads process
// several.
const quantizeBlocks = 1 << 16

func quantize(j *job, op device.Quantize) ([]launch, error) {
	if err := j.count(2, 2); err != nil {
		return nil, err
	}
	from, to := j.Ins[0].DType, j.Out.DType
	g, err := device.CheckQuantize(from, j.Ins[1].DType, to, j.Ins[0].Shape, j.Ins[1].Shape, j.Out.Shape)
	if err != nil {
		return nil, err
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	x, before, err := j.asMatrix(j.Ins[0])
	if err != nil {
		return nil, err
	}
	s, more, err := j.scaleMatrix(g, x.Shape[0], j.Ins[1])
	if err != nil {
		return nil, err
	}
	out, after, err := j.asMatrix(j.Out)
	if err != nil {
		return nil, err
	}
	before = append(before, more...)
	if op.Max != 0 {
		if len(before)+len(after) > 0 {
			return nil, fmt.Errorf("%w: quantize with scales of operands that are no matrices", device.ErrUnsupported)
		}
		return scaleAndQuantize(x, s, out, g, op.Max)
	}
	if after != nil { // without a copy, the result cannot be viewed as a matrix
		if after, err = moved(j.Out, j.Out.dense(out.Addr)); err != nil {
			return nil, err
		}
	}
	v := int64(8)
	for ; v > 1; v /= 2 {
		wide := func(o Operand) bool {
			bytes := v * o.DType.Size()
			return bytes <= 16 && o.Strides[1] == 1 && o.Strides[0]%v == 0 && int64(o.Addr)%bytes == 0
		}
		if x.Shape[1]%v == 0 && wide(x) && wide(out) {
			break
		}
	}
	var args words
	args.addr(out.Addr, x.Addr, s.Addr)
	args.ints(x.elements()/v, x.Shape[1]/v)
	args.ints(append(slices.Clone(out.Strides), x.Strides...)...)
	args.grain(g, s)
	blocks := uint32(min(ceil(x.elements()/v, threads), quantizeBlocks))
	body := fmt.Sprintf("quantize<%s, %s, %d>", ctype(to), ctype(from), v)
	l := launch{blocks: blocks, args: args, code: code{files: []string{"gemm", "scaled"},
		symbol: symbol("quantize", ctype(to), ctype(from), fmt.Sprint("v", v)), args: "QuantizeArgs", body: body}}
	return append(append(before, l), after...), nil
}

// scaleAndQuantize plans one launch that reads x once: it computes the scales of blocks of 128 elements of a row, and
// quantizes by these scales. The results have the same bits as by two launches.
func scaleAndQuantize(x, s, out Operand, g device.Grain, top float64) ([]launch, error) {
	aligned := func(o Operand) bool {
		return o.Strides[1] == 1 && o.Strides[0]%8 == 0 && int64(o.Addr)%(8*o.DType.Size()) == 0
	}
	if x.DType.Size() != 2 || g.Rows != 1 || g.Columns != device.ScaleBlock || x.Shape[1]%8 != 0 || !aligned(x) ||
		!aligned(out) {
		return nil, fmt.Errorf("%w: one launch cannot compute scales and values of %s%v", device.ErrUnsupported, x.DType, x.Shape)
	}
	const lanes = device.ScaleBlock / 8
	var args words
	args.addr(out.Addr, x.Addr, s.Addr)
	args.float(top)
	args.ints(x.Shape[0], x.Shape[1], g.Cols, out.Strides[0], x.Strides[0], s.Strides[0], s.Strides[1])
	grid, err := exactGrid(ceil(x.Shape[0]*g.Cols, threads/lanes))
	types := []string{ctype(out.DType), ctype(x.DType)}
	return []launch{{blocks: grid, args: args, code: code{files: []string{"gemm", "scaled", "warp", "quantize"},
		symbol: symbol("scaleAndQuantize", types[0], types[1]), args: "ScaleAndQuantizeArgs",
		body: fmt.Sprintf("scaleAndQuantize<%s, %s>", types[0], types[1])}}}, err
}

// checkScaled checks a linear with scales and returns the grains of the scales of x and w (the sizes of the blocks that
// share a scale).
func checkScaled(j *job) (x, w device.Grain, err error) {
	k := &device.Kernel{Outs: []device.View{{DType: j.Out.DType}}}
	for _, in := range j.Ins {
		k.Ins = append(k.Ins, device.View{DType: in.DType})
	}
	return device.CheckScaled(k, j.Out.Shape, j.shapes())
}

// scaledLinear plans a linear with scales without tensor cores, for operands that the vendor's library does not
// support.
func scaledLinear(j *job) ([]launch, error) {
	const tile = 64
	gx, gw, err := checkScaled(j)
	if err != nil {
		return nil, err
	}
	if j.Out.elements() == 0 {
		return nil, nil
	}
	x, before, err := j.asMatrix(j.Ins[0])
	if err != nil {
		return nil, err
	}
	w := j.Ins[1]
	sx, more, err := j.scaleMatrix(gx, x.Shape[0], j.Ins[2])
	if err != nil {
		return nil, err
	}
	sw, evenMore, err := j.scaleMatrix(gw, w.Shape[0], j.Ins[3])
	if err != nil {
		return nil, err
	}
	out, after, err := j.asMatrix(j.Out)
	if err != nil {
		return nil, err
	}
	if after != nil {
		if after, err = moved(j.Out, j.Out.dense(out.Addr)); err != nil {
			return nil, err
		}
	}
	before = append(append(before, more...), evenMore...)
	m, n, depth := x.Shape[0], w.Shape[0], w.Shape[1]
	cols := ceil(n, tile)
	piece := max(depth, 1)
	if gx.Columns == device.ScaleBlock || gw.Columns == device.ScaleBlock {
		piece = device.ScaleBlock
	}
	var args words
	args.addr(out.Addr, x.Addr, w.Addr, sx.Addr, sw.Addr)
	args.ints(m, n, depth, cols, piece)
	for _, o := range []Operand{out, x, w} {
		args.ints(o.Strides...)
	}
	args.grain(gx, sx)
	args.grain(gw, sw)
	grid, err := exactGrid(ceil(m, tile) * cols)
	types := []string{ctype(j.Out.DType), ctype(x.DType), ctype(w.DType)}
	l := launch{blocks: grid, args: args, code: code{files: []string{"gemm", "scaled"},
		symbol: symbol(append([]string{"scaled"}, types...)...), args: "ScaledArgs",
		body: fmt.Sprintf("scaled<%s, %s, %s>", types[0], types[1], types[2])}}
	return append(append(before, l), after...), err
}
