package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
)

// row describes an operation along one axis of the operand, with a thread block for each row.
type row struct {
	label, body  string // body is a format string with verbs for the number of axes, V and W: "softmax<f32, %d, %d, %d>"
	axis         int
	weight, bias Operand // an address of 0 means that there is no such operand
	eps          float64
}

func softmax(j *job, op device.Softmax) ([]launch, error) {
	if err := j.count(1, 1); err != nil {
		return nil, err
	}
	if err := device.AxisIn(op.Axis, len(j.Out.Shape)); err != nil {
		return nil, err
	}
	return j.along(row{label: "softmax", body: "softmax<" + ctype(j.Out.DType) + ", %d, %d, %d>", axis: op.Axis})
}

func rmsNorm(j *job, op device.RMSNorm) ([]launch, error) {
	if err := j.checkNorm(2); err != nil {
		return nil, err
	}
	r := row{label: "rms_norm", axis: len(j.Out.Shape) - 1, weight: j.Ins[1], eps: op.Eps, body: normBody(j, false)}
	return j.along(r)
}

func layerNorm(j *job, op device.LayerNorm) ([]launch, error) {
	if err := j.checkNorm(3); err != nil {
		return nil, err
	}
	r := row{label: "layer_norm", axis: len(j.Out.Shape) - 1, weight: j.Ins[1], eps: op.Eps, body: normBody(j, true)}
	r.bias = j.Ins[2]
	return j.along(r)
}

func normBody(j *job, centred bool) string {
	return fmt.Sprintf("norm<%s, %%d, %t, %%d, %%d>", ctype(j.Out.DType), centred)
}

// checkNorm checks the operands of a norm: x, and n-1 vectors with the length of its rows.
func (j *operands) checkNorm(n int) error {
	if err := j.count(n, n); err != nil {
		return err
	}
	last := len(j.Out.Shape) - 1
	for i, in := range j.Ins[1:] {
		if last < 0 || !slices.Equal(in.Shape, j.Out.Shape[last:]) {
			return fmt.Errorf("operand %d has shape %v, but rows have shape %v", i+1, in.Shape, j.Out.Shape)
		}
	}
	return nil
}

func (j *job) along(r row) ([]launch, error) {
	if err := j.floats(); err != nil {
		return nil, err
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	out, in := j.Out, j.Ins[0]
	if !slices.Equal(out.Shape, in.Shape) {
		return nil, fmt.Errorf("the operand has shape %v, but the result has shape %v", in.Shape, out.Shape)
	}
	if out.elements() == 0 {
		return nil, nil
	}
	d := r.axis
	rows, err := padded(shared(slices.Delete(slices.Clone(out.Shape), d, d+1), slices.Delete(slices.Clone(out.Strides), d, d+1),
		slices.Delete(slices.Clone(in.Strides), d, d+1)), 2)
	if err != nil {
		return nil, err
	}
	var args words
	args.addr(out.Addr, in.Addr, r.weight.Addr, r.bias.Addr)
	args.float(r.eps)
	args.ints(out.Shape[d], out.Strides[d], in.Strides[d], r.weight.step(), r.bias.step())
	args.ints(extents(rows)...)
	args.ints(column(rows, 0)...)
	args.ints(column(rows, 1)...)
	v, w := 16/out.DType.Size(), held(rows, out, in, d)
	grid, err := exactGrid(out.elements() / out.Shape[d])
	return []launch{{blocks: grid, args: args, code: code{
		files:  []string{"map", "rows"},
		symbol: symbol(r.label, ctype(out.DType), fmt.Sprintf("b%dw%d", len(rows), w)),
		args:   fmt.Sprintf("RowArgs<%d>", len(rows)),
		body:   fmt.Sprintf(r.body, len(rows), v, w),
	}}}, err
}

// held returns the number of wide accesses by which a thread loads its part of a row, along axis d, into registers. It
// returns 0 if rows are too long or not suitably aligned.
func held(rows []axis, out, in Operand, d int) int64 {
	const most = 8
	n, v := out.Shape[d], 16/out.DType.Size()
	along := append(slices.Clone(rows), axis{n, []int64{out.Strides[d], in.Strides[d]}})
	if out.Strides[d] != 1 || in.Strides[d] != 1 || n%v != 0 || !aligned(along, []Operand{out, in}, v) {
		return 0
	}
	for w := int64(1); w <= most; w *= 2 {
		if n <= threads*v*w {
			return w
		}
	}
	return 0
}

// step returns the stride of the vector o; 0 if there is none.
func (o Operand) step() int64 {
	if len(o.Strides) == 0 {
		return 0
	}
	return o.Strides[0]
}

func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// embedding plans the selection of rows of table[V, D], the second operand, by ids, the first.
func embedding(j *job, op device.Embedding) ([]launch, error) {
	if err := j.count(2, 2); err != nil {
		return nil, err
	}
	out, ids, table := j.Out, j.Ins[0], j.Ins[1]
	last := len(out.Shape) - 1
	if !ids.DType.IsInt() || table.DType != out.DType || len(table.Shape) != 2 || last < 0 ||
		!slices.Equal(ids.Shape, out.Shape[:last]) || table.Shape[1] != out.Shape[last] {
		return nil, fmt.Errorf("cannot select rows of %s%v by ids %s%v into %s%v", table.DType, table.Shape, ids.DType,
			ids.Shape, out.DType, out.Shape)
	}
	if op.First < 0 || op.First > op.Rows-table.Shape[0] {
		return nil, fmt.Errorf("rows %d to %d of %d", op.First, op.First+table.Shape[0], op.Rows)
	}
	if out.elements() == 0 {
		return nil, nil
	}
	lead, err := padded(shared(ids.Shape, out.Strides[:last], ids.Strides), 2)
	if err != nil {
		return nil, err
	}
	var args words
	args.addr(out.Addr, ids.Addr, table.Addr, j.fault)
	args.bits(j.tag)
	args.ints(out.Shape[last], table.Shape[0], op.First, op.Rows, out.Strides[last], table.Strides[0], table.Strides[1])
	args.ints(extents(lead)...)
	args.ints(column(lead, 0)...)
	args.ints(column(lead, 1)...)
	grid, err := exactGrid(ids.elements())
	raw, id := rawType(out.DType), ctype(ids.DType)
	return []launch{{blocks: grid, args: args, code: code{
		files:  []string{"sync", "embedding"},
		symbol: symbol("embedding", raw, id, fmt.Sprintf("b%d", len(lead))),
		args:   fmt.Sprintf("EmbeddingArgs<%d>", len(lead)),
		body:   fmt.Sprintf("embedding<%s, %s, %d>", raw, id, len(lead)),
	}}}, err
}
