package kernels

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// product describes products of matrices: out[m, n] = a[m, k]·b[n, k] (+ bias[n]). The last two axes of each operand
// are the matrix; the other axes count the matrices.
type product struct {
	out, a, b Operand
	bias      *Operand
}

func linear(j *job, op device.Linear) ([]launch, error) {
	if op.Relu {
		return nil, errNoKernel
	}
	if len(j.Ins) == 4 {
		return scaledLinear(j)
	}
	if err := device.CheckLinear(j.Out.Shape, j.shapes()); err != nil {
		return nil, err
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	x, w := j.Ins[0], j.Ins[1]
	last := len(x.Shape) - 1
	p := product{out: j.Out, a: x, b: w}
	if len(j.Ins) == 3 {
		p.bias = &j.Ins[2]
	}
	// The leading axes are merged with the rows as far as possible. The other leading axes are batch dimensions with
	// the same w.
	lead := shared(x.Shape[:last], x.Strides[:last], j.Out.Strides[:last])
	rows := axis{1, []int64{0, 0}}
	if n := len(lead); n > 0 {
		rows, lead = lead[n-1], lead[:n-1]
	}
	p.a = x.framed(lead, rows, 0, last)
	p.out = j.Out.framed(lead, rows, 1, last)
	p.b.Shape = append(extents(lead), w.Shape...)
	p.b.Strides = append(make([]int64, len(lead)), w.Strides...)
	return p.launches()
}

// framed returns o with the given leading axes, followed by the axis rows and by o's axis last.
func (o Operand) framed(lead []axis, rows axis, which, last int) Operand {
	o.Shape = append(append(extents(lead), rows.n), o.Shape[last])
	o.Strides = append(append(column(lead, which), rows.s[which]), o.Strides[last])
	return o
}

func matmul(j *job, op device.Matmul) ([]launch, error) {
	if op.Relu {
		return nil, errNoKernel
	}
	if err := device.CheckMatmul(j.Out.Shape, j.shapes(), op.TA, op.TB); err != nil {
		return nil, err
	}
	if err := j.alike(); err != nil {
		return nil, err
	}
	a, b := j.Ins[0], j.Ins[1]
	if op.TA {
		a = a.swapped()
	}
	if !op.TB {
		b = b.swapped()
	}
	return product{out: j.Out, a: a, b: b}.launches()
}

// swapped returns the operand o with its last two axes exchanged.
func (o Operand) swapped() Operand {
	o.Shape, o.Strides = slices.Clone(o.Shape), slices.Clone(o.Strides)
	n := len(o.Shape)
	o.Shape[n-1], o.Shape[n-2] = o.Shape[n-2], o.Shape[n-1]
	o.Strides[n-1], o.Strides[n-2] = o.Strides[n-2], o.Strides[n-1]
	return o
}

func (p product) launches() ([]launch, error) {
	if p.out.elements() == 0 {
		return nil, nil
	}
	const tile = 64
	r := len(p.out.Shape)
	m, n, k := p.out.Shape[r-2], p.out.Shape[r-1], p.a.Shape[r-1]
	lead, err := padded(shared(p.out.Shape[:r-2], p.out.Strides[:r-2], p.a.Strides[:r-2], p.b.Strides[:r-2]), 3)
	if err != nil {
		return nil, err
	}
	var bias nvlib.Ptr
	var biasStride int64
	if p.bias != nil {
		bias, biasStride = p.bias.Addr, p.bias.Strides[0]
	}
	rows, cols := ceil(m, tile), ceil(n, tile)
	var args words
	args.addr(p.out.Addr, p.a.Addr, p.b.Addr, bias)
	args.ints(m, n, k, cols, rows)
	for _, o := range []Operand{p.out, p.a, p.b} {
		args.ints(o.Strides[r-2:]...)
	}
	args.ints(biasStride)
	args.ints(extents(lead)...)
	blocks := rows * cols
	for o := range 3 {
		args.ints(column(lead, o)...)
	}
	for _, a := range lead {
		blocks *= a.n
	}
	grid, err := exactGrid(blocks)
	dt := ctype(p.out.DType)
	return []launch{{blocks: grid, args: args, code: code{
		files:  []string{"gemm"},
		symbol: symbol("gemm", dt, fmt.Sprintf("b%d", len(lead))),
		args:   fmt.Sprintf("GemmArgs<%d>", len(lead)),
		body:   fmt.Sprintf("gemm<%s, %d>", dt, len(lead)),
	}}}, err
}
