// Package gemm computes matrix products (GEMMs) on one GPU. It times algorithms of cuBLASLt and hocket's own kernel
// for few rows, and uses the fastest. host.go prepares a GEMM, pick.go selects the algorithm, and trial.go times
// candidates.
package gemm

import (
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// Product describes a product of arrays with several axes: out[i] = Σk a[i, k]·b[i, k] (+ bias[i]), where i is an index
// of Dims.
type Product struct {
	DType         ir.DType
	out, a, b     nvlib.Ptr
	bias          nvlib.Ptr // 0 for none
	Dims          []Axis    // the axes of the result: leading axes, then rows, then columns
	Depth, Ka, Kb int64
	batch         int // number of leading axes in Dims along which both a and b vary (batch axes)
}

// Axis is a dimension of the result. It holds the extent, and the stride of each operand along the axis.
type Axis struct{ N, Out, A, B, bias int64 }

// Linear returns the Product out = x·wᵀ (+ bias). The caller has checked the operands.
func Linear(out *strided.View, ins []strided.View) Product {
	x, w := &ins[0], &ins[1]
	r := len(x.Shape) - 1
	p := Product{DType: out.DType, out: out.Addr, a: x.Addr, b: w.Addr, Depth: x.Shape[r], Ka: x.Strides[r], Kb: w.Strides[1]}
	for i := range r {
		p.Dims = append(p.Dims, Axis{N: x.Shape[i], Out: out.Strides[i], A: x.Strides[i]})
	}
	n := Axis{N: w.Shape[0], Out: out.Strides[r], B: w.Strides[0]}
	if len(ins) == 3 {
		p.bias, n.bias = ins[2].Addr, ins[2].Strides[0]
	}
	p.Dims = append(p.Dims, n)
	return p
}

// Matmul returns out = a·b. The caller has checked the operands. The flags ta and tb report which of them are
// transposed.
func Matmul(out *strided.View, ins []strided.View, ta, tb bool) Product {
	a, b := &ins[0], &ins[1]
	r := len(out.Shape)
	am, ak, bk, bn := r-2, r-1, r-2, r-1
	if ta {
		am, ak = ak, am
	}
	if tb {
		bk, bn = bn, bk
	}
	p := Product{DType: out.DType, out: out.Addr, a: a.Addr, b: b.Addr, Depth: a.Shape[ak], Ka: a.Strides[ak], Kb: b.Strides[bk], batch: r - 2}
	for i := range r - 2 {
		p.Dims = append(p.Dims, Axis{N: out.Shape[i], Out: out.Strides[i], A: a.Strides[i], B: b.Strides[i]})
	}
	p.Dims = append(p.Dims, Axis{N: out.Shape[r-2], Out: out.Strides[r-2], A: a.Strides[am]},
		Axis{N: out.Shape[r-1], Out: out.Strides[r-1], B: b.Strides[bn]})
	return p
}

// Merge merges neighbouring axes of the same kind, batch or rows, if all operands are contiguous across them, and drops
// axes of extent 1. It does not change the last axis.
func (p *Product) Merge() {
	var dims []Axis
	last, batch := len(p.Dims)-1, 0
	for i, d := range p.Dims[:last] {
		isBatch := i < p.batch
		if d.N == 1 {
			continue
		}
		if k := len(dims) - 1; k >= 0 && (k < batch) == isBatch {
			if o := &dims[k]; o.Out == d.N*d.Out && o.A == d.N*d.A && o.B == d.N*d.B {
				*o = Axis{N: o.N * d.N, Out: d.Out, A: d.A, B: d.B}
				continue
			}
		}
		dims = append(dims, d)
		if isBatch {
			batch++
		}
	}
	p.Dims, p.batch = append(dims, p.Dims[last]), batch
}

// Problem describes a batch of matrix products: out[m, n] = a[m, k]·b[k, n] (+ bias[n]).
type Problem struct {
	DType                 ir.DType
	Out, A, B, Bias       nvlib.Ptr
	Batch, M, N, K        int64
	Om, On                int64 // strides
	Am, Ak, Bk, Bn        int64
	OutStep, AStep, BStep int64 // strides between consecutive products
	SMs                   int   // number of multiprocessors for which an algorithm is selected; 0 for all
	Relu                  bool  // the result is max(out, 0)
	Fixed                 bool  // use cuBLASLt's first algorithm that does not split sums, without timing
	Timed                 bool  // algorithms must be timed: lack of memory for timing is an error
	Constant              bool  // b is constant: see device.Linear
	// In holds the 8-bit types of a and b, and Scales their scales, in the order that cuBLASLt requires. Both fields
	// are empty for other types.
	In     [2]ir.DType
	Scales [2]nvlib.Ptr
	Modes  [2]nvlib.LtScale
	// FastAccum permits tensor cores to accumulate an entire sum of products of 8-bit operands at their reduced
	// precision; see device.Linear.
	FastAccum bool
}

// Problem converts p to a batch of matrix products; ok reports whether that is possible. The conversion is possible if
// p has at most one batch axis and one axis of rows, a float type, and a sum of at least one term. If p has two axes of
// rows, as a chunk of every rank's rows has, the outer one becomes a batch of matrix products with the same b.
func (p *Product) Problem() (Problem, bool) {
	batch := p.batch
	if batch == 0 && len(p.Dims) == 3 {
		batch = 1
	}
	if p.DType.IsInt() || p.Depth == 0 || batch > 1 || len(p.Dims)-batch > 2 {
		return Problem{}, false
	}
	n := p.Dims[len(p.Dims)-1]
	g := Problem{DType: p.DType, Out: p.out, A: p.a, B: p.b, Bias: p.bias, Batch: 1, M: 1, N: n.N, K: p.Depth,
		On: n.Out, Bn: n.B, Ak: p.Ka, Bk: p.Kb}
	if p.bias != 0 && n.bias != 1 && n.N > 1 {
		return Problem{}, false
	}
	if batch == 1 {
		d := p.Dims[0]
		g.Batch, g.OutStep, g.AStep, g.BStep = d.N, d.Out, d.A, d.B
	}
	if len(p.Dims)-batch == 2 {
		d := p.Dims[batch]
		g.M, g.Om, g.Am = d.N, d.Out, d.A
	}
	return g, g.N > 0
}

// scaled reports whether the operands are of 8-bit types and have scales.
func (g *Problem) scaled() bool { return g.In[0] != ir.InvalidDType }

// types returns the element types of b, a and the result.
func (g *Problem) types() [3]ir.DType {
	if g.scaled() {
		return [3]ir.DType{g.In[1], g.In[0], g.DType}
	}
	return [3]ir.DType{g.DType, g.DType, g.DType}
}

// items splits p, whose axes are merged, into matrix products, one for each index of the axes before the last two.
func (p *Product) items() []Problem {
	n := p.Dims[len(p.Dims)-1]
	g := Problem{DType: p.DType, Out: p.out, A: p.a, B: p.b, Bias: p.bias, Batch: 1, M: 1, N: n.N, K: p.Depth,
		On: n.Out, Bn: n.B, Ak: p.Ka, Bk: p.Kb}
	lead := p.Dims[:len(p.Dims)-1]
	if k := len(lead) - 1; k >= 0 {
		g.M, g.Om, g.Am = lead[k].N, lead[k].Out, lead[k].A
		lead = lead[:k]
	}
	list := []Problem{g}
	for _, d := range lead {
		var next []Problem
		for _, g := range list {
			for i := range d.N {
				at := func(step int64) nvlib.Ptr { return nvlib.Ptr(i * step * p.DType.Size()) }
				o := g
				o.Out, o.A, o.B = g.Out+at(d.Out), g.A+at(d.A), g.B+at(d.B)
				next = append(next, o)
			}
		}
		list = next
	}
	return list
}

// turned returns the product whose result is the transpose of p's result.
func (g Problem) turned() Problem {
	g.M, g.N = g.N, g.M
	g.A, g.B = g.B, g.A
	g.AStep, g.BStep = g.BStep, g.AStep
	g.Om, g.On = g.On, g.Om
	g.Am, g.Ak, g.Bk, g.Bn = g.Bn, g.Bk, g.Ak, g.Am
	return g
}

// columns returns the leading dimension with which cuBLASLt reads a matrix. cuBLASLt requires a stride of 1 down the
// columns, or along the rows if the matrix is passed as transposed. ok is false if neither stride is 1.
func columns(rows, cols, rs, cs int64) (ld int64, transposed, ok bool) {
	if rs == 1 || rows == 1 {
		if cols == 1 {
			cs = rows
		}
		if cs >= rows {
			return cs, false, true
		}
	}
	if cs == 1 || cols == 1 {
		if rows == 1 {
			rs = cols
		}
		return rs, true, rs >= cols
	}
	return 0, false, false
}
