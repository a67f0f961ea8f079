package cuda

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// goKernel computes a problem in float64: what the suite's tests of order, and
// the examples, need.
func goKernel(p kernels.Problem) (func(), error) {
	switch {
	case p.Op.Uneven():
		return goUneven(p), nil
	case p.Red != ir.NoRed:
	case len(p.Links) > 0:
		return goChain(p)
	case p.Op == ir.OpLinear, p.Op == ir.OpMatmul:
		return goProduct(p), nil
	case p.Op == ir.OpSum, p.Op == ir.OpMax:
		return goAxes(p), nil
	case p.Op == ir.OpConcat:
		return goConcat(p), nil
	case p.Op == ir.OpRMSNorm:
		return goNorm(p), nil
	case p.Op == ir.OpAttention:
		return goAttention(p), nil
	case p.Op == ir.OpEmbedding:
		return goEmbedding(p), nil
	}
	f := pointwise(p)
	if f == nil {
		return nil, fmt.Errorf("%w: the fake has no %s", device.ErrUnsupported, p.Op)
	}
	out := addresses(p.Out)
	var ins [][]uintptr
	for i := range p.Ins {
		ins = append(ins, addresses(p.Ins[i]))
	}
	return func() {
		x := make([]float64, len(ins))
		for i := range out {
			for j := range ins {
				x[j] = load(ins[j][i], p.Ins[j].DType)
			}
			v := f(x)
			if p.Out.DType == ir.I32 && p.Op != ir.OpCast { // wraps; a cast saturates
				v = float64(int32(int64(v)))
			}
			store(out[i], p.Out.DType, v)
		}
	}, nil
}

func pointwise(p kernels.Problem) func(x []float64) float64 {
	fold := func(f func(a, b float64) float64) func(x []float64) float64 {
		return func(x []float64) float64 {
			v := x[0]
			for _, y := range x[1:] {
				v = f(v, y)
			}
			return v
		}
	}
	round := func(v float64) float64 {
		if p.Out.DType.Accum() == ir.F32 {
			return float64(float32(v))
		}
		return v
	}
	add := fold(func(a, b float64) float64 { return round(a + b) })
	switch p.Red {
	case ir.Sum:
		return add
	case ir.Avg:
		return func(x []float64) float64 {
			v := round(add(x) / float64(len(x)))
			if p.Out.DType.IsInt() {
				v = math.Trunc(v)
			}
			return v
		}
	case ir.Max:
		return fold(math.Max)
	case ir.Min:
		return fold(math.Min)
	}
	switch p.Op {
	case ir.OpAdd:
		return add
	case ir.OpSub:
		return fold(func(a, b float64) float64 { return a - b })
	case ir.OpMul:
		return fold(func(a, b float64) float64 { return a * b })
	case ir.OpNeg:
		return func(x []float64) float64 { return -x[0] }
	case ir.OpScale:
		return func(x []float64) float64 { return x[0] * p.Value }
	case ir.OpRelu:
		return func(x []float64) float64 { return math.Max(x[0], 0) }
	case ir.OpGelu:
		return func(x []float64) float64 { return x[0] / 2 * math.Erfc(-x[0]/math.Sqrt2) }
	case ir.OpSilu:
		return func(x []float64) float64 { return x[0] / (1 + math.Exp(-x[0])) }
	case ir.OpFill:
		return func([]float64) float64 { return p.Value }
	case ir.OpCopy, ir.OpExpand, ir.OpCast:
		return func(x []float64) float64 { return x[0] }
	}
	return nil
}

func load(at uintptr, dt ir.DType) float64 {
	one := make([]float64, 1)
	tensor.ToFloat64(one, cabi.Bytes(at, int(dt.Size())), dt)
	return one[0]
}

func store(at uintptr, dt ir.DType, v float64) {
	tensor.FromFloat64(cabi.Bytes(at, int(dt.Size())), []float64{v}, dt)
}

// goProduct computes linear or matmul, term by term.
func goProduct(p kernels.Problem) func() {
	a, b, dt := p.Ins[0], p.Ins[1], p.Out.DType
	last := len(a.Shape) - 1
	return func() {
		eachIndex(p.Out.Shape, func(i []int64) {
			lead, m, n := i[:len(i)-1], int64(0), i[len(i)-1]
			depth := a.Shape[last]
			if p.Op == ir.OpMatmul {
				lead, m = i[:len(i)-2], i[len(i)-2]
				if p.TA {
					depth = a.Shape[last-1]
				}
			}
			sum := 0.0
			for k := range depth {
				ia, ib := append(slices.Clone(lead), k), []int64{n, k}
				if p.Op == ir.OpMatmul {
					ia, ib = append(slices.Clone(lead), m, k), append(slices.Clone(lead), k, n)
					swap(ia, p.TA)
					swap(ib, p.TB)
				}
				sum += load(elementOf(a, ia...), dt) * load(elementOf(b, ib...), dt)
			}
			if len(p.Ins) == 3 {
				sum += load(elementOf(p.Ins[2], n), dt)
			}
			store(elementOf(p.Out, i...), dt, sum)
		})
	}
}

func swap(i []int64, turned bool) {
	if n := len(i); turned {
		i[n-1], i[n-2] = i[n-2], i[n-1]
	}
}

func eachIndex(shape []int64, f func(i []int64)) {
	total := int64(1)
	for _, e := range shape {
		total *= e
	}
	i := make([]int64, len(shape))
	for at := range total {
		for d := len(shape) - 1; d >= 0; d-- {
			i[d] = at % shape[d]
			at /= shape[d]
		}
		f(i)
	}
}

// goAxes is the sum or maximum over axes.
func goAxes(p kernels.Problem) func() {
	first, fold := 0.0, func(a, b float64) float64 { return a + b }
	if p.Op == ir.OpMax {
		first, fold = math.Inf(-1), math.Max
	}
	return func() {
		in, at := addresses(p.Ins[0]), 0
		sums := map[uintptr]float64{}
		for _, a := range addresses(p.Out) {
			sums[a] = first
		}
		eachIndex(p.Ins[0].Shape, func(i []int64) {
			off, kept := int64(0), 0
			for d, x := range i {
				if !slices.Contains(p.Axes, d) {
					off += x * p.Out.Strides[kept]
					kept++
				}
			}
			a := uintptr(p.Out.Addr) + uintptr(off*p.Out.DType.Size())
			sums[a] = fold(sums[a], load(in[at], p.Out.DType))
			at++
		})
		for a, v := range sums {
			store(a, p.Out.DType, v)
		}
	}
}

// goChain computes links one after another, rounding after each.
func goChain(p kernels.Problem) (func(), error) {
	out := addresses(p.Out)
	var ins [][]uintptr
	for i := range p.Ins {
		ins = append(ins, addresses(p.Ins[i]))
	}
	var fs []func([]float64) float64
	for _, l := range p.Links {
		f := pointwise(kernels.Problem{Op: l.Op, Value: l.Value, Out: kernels.Operand{DType: l.DType}})
		if f == nil {
			return nil, fmt.Errorf("%w: the fake has no %s", device.ErrUnsupported, l.Op)
		}
		fs = append(fs, f)
	}
	return func() {
		for i := range out {
			results := make([]float64, len(p.Links))
			for k, l := range p.Links {
				var x []float64
				for _, a := range l.Args {
					if a < 0 {
						x = append(x, results[^a])
					} else {
						x = append(x, load(ins[a][i], p.Ins[a].DType))
					}
				}
				results[k] = tensor.Round(l.DType, fs[k](x))
			}
			store(out[i], p.Out.DType, results[len(results)-1])
		}
	}, nil
}
