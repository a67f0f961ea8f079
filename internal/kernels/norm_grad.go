package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// normParts is the number of groups of rows whose sums normDW computes concurrently. If a group would have more than
// normRows rows (NORM_ROWS in the source), there are more groups. Both constants determine the order of sums and
// therefore the bits.
const normParts, normRows = 256, 512

// normGrad plans rms_norm_dx and rms_norm_dw.
func normGrad(j *job, op device.NormGrad) ([]launch, error) {
	if err := device.CheckNormGrad(op, j.Out.DType, j.Out.Shape, j.types(), j.shapes()); err != nil {
		return nil, err
	}
	x, dy, out := j.Ins[0], j.Ins[len(j.Ins)-1], j.Out
	last := len(x.Shape) - 1
	n := x.Shape[last]
	dx := op.Op == ir.OpRMSNormDX
	if n == 0 || dx && x.elements() == 0 {
		return nil, nil
	}
	rows := x.elements() / n
	if !dx && rows == 0 { // a sum of nothing
		return axesOf(&job{operands: operands{Ins: []Operand{{Addr: out.Addr, DType: out.DType, Shape: []int64{0, n},
			Strides: []int64{n, 1}}}, Out: out}}, device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}})
	}
	blocks, per, weight := rows, int64(1), Operand{}
	if dx {
		weight = j.Ins[1]
	} else { // each thread block writes a row of partial sums, which are then added
		per = min(ceil(rows, normParts), normRows)
		blocks = ceil(rows, per)
		at, err := j.scratch(blocks*n*out.DType.Size(), false)
		if err != nil {
			return nil, err
		}
		out = Operand{Addr: at, DType: out.DType, Shape: x.Shape, Strides: make([]int64, last+1)}
		out.Strides[last] = 1
	}
	lead, err := padded(shared(x.Shape[:last], out.Strides[:last], x.Strides[:last], dy.Strides[:last]), 3)
	if err != nil {
		return nil, err
	}
	all := []Operand{x, dy}
	if dx {
		all = append(all, out, weight)
	}
	v, w := 16/x.DType.Size(), normHeld(all...)
	var args words
	args.addr(out.Addr, x.Addr, weight.Addr, dy.Addr)
	args.float(op.Eps)
	args.ints(n, rows, per, out.Strides[last], x.Strides[last], weight.step(), dy.Strides[last])
	args.ints(extents(lead)...)
	for i := range 3 {
		args.ints(column(lead, i)...)
	}
	grid, err := exactGrid(blocks)
	name := map[bool]string{true: "normDX", false: "normDW"}[dx]
	launches := []launch{{blocks: grid, args: args, code: code{
		files:  []string{"map", "rows", "norm_grad"},
		symbol: symbol(name, ctype(x.DType), fmt.Sprintf("b%dw%d", len(lead), w)),
		args:   fmt.Sprintf("NormGradArgs<%d>", len(lead)),
		body:   fmt.Sprintf("%s<%s, %d, %d, %d>", name, ctype(x.DType), len(lead), v, w),
		// This limits the registers, so that other blocks load their rows while a block waits.
		residents: normResidents(dx, w),
	}}}
	if dx || err != nil {
		return launches, err
	}
	sum := *j
	sum.Ins = []Operand{{Addr: out.Addr, DType: out.DType, Shape: []int64{blocks, n}, Strides: []int64{n, 1}}}
	added, err := axesOf(&sum, device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}})
	return append(launches, added...), err
}

// normResidents returns the number of thread blocks that must fit on a multiprocessor at once; 0 for any.
func normResidents(dx bool, w int64) int {
	switch {
	case w == 0 || w > 4:
		return 0
	case dx && w <= 2:
		return 4
	}
	return 2
}

// normHeld returns the number of wide accesses with which a thread loads its part of a row of each operand; 0 if it
// cannot, as in held.
func normHeld(all ...Operand) int64 {
	w := int64(0)
	for _, o := range all {
		d := len(o.Shape) - 1
		var rows []axis
		for i := range d {
			if o.Shape[i] > 1 {
				rows = append(rows, axis{o.Shape[i], []int64{o.Strides[i], o.Strides[i]}})
			}
		}
		if w = held(rows, o, o, d); w == 0 {
			return 0
		}
	}
	return w
}
