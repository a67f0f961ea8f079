package cuda

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/pointwise"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// goKernel computes a problem in float64: what the suite's tests of order, and
// the examples, need.
func goKernel(p kernels.Problem) (func(), error) {
	switch {
	case p.Skinny != nil && (len(p.Skinny.More) > 0 || p.Skinny.Up != nil):
		return goJoint(p), nil
	case p.Op.Uneven():
		return goUneven(p), nil
	case p.Red != ir.NoRed:
	case len(p.Links) > 0:
		return goChain(p)
	case p.Op == ir.OpLinear, p.Op == ir.OpMatmul:
		return goProduct(p), nil
	case p.Op == ir.OpSum, p.Op == ir.OpMax:
		return goAxes(p), nil
	case p.Op == ir.OpReduceSlots:
		return goSlots(p), nil
	case p.Op == ir.OpConcat:
		return goConcat(p), nil
	case p.Op == ir.OpRMSNorm:
		return goNorm(p), nil
	case p.Op == ir.OpAttention:
		return goAttention(p), nil
	case p.Op == ir.OpEmbedding:
		return goEmbedding(p), nil
	case p.Op == ir.OpIndexCopy:
		return goIndexCopy(p), nil
	case p.Op == ir.OpRope:
		return goRope(p), nil
	case p.Op == ir.OpArgmax:
		return goArgmax(p), nil
	}
	f := elementFunction(p)
	if f == nil {
		return nil, fmt.Errorf("%w: the fake has no %s", device.ErrUnsupported, p.Op)
	}
	return func() {
		ins, out := readAll(p.Ins), newArray(p.Out.Shape)
		x := make([]float64, len(ins))
		for i := range out.x {
			for j := range ins {
				x[j] = ins[j].x[i]
			}
			v := f(x)
			if p.Out.DType == ir.I32 && p.Op != ir.OpCast { // wraps; a cast saturates
				v = float64(int32(int64(v)))
			}
			out.x[i] = v
		}
		out.write(p.Out)
	}, nil
}

// goJoint computes linears of one x one by one.
func goJoint(p kernels.Problem) func() {
	s := p.Skinny
	p.Skinny = nil
	var runs []func()
	for _, m := range s.More {
		more := p
		more.Ins, more.Out = []kernels.Operand{p.Ins[0], m.Weight}, m.Out
		runs = append(runs, goProduct(more))
	}
	runs = append(runs, goProduct(p))
	if s.Up == nil {
		return func() {
			for _, run := range runs {
				run()
			}
		}
	}
	up := p
	up.Ins = []kernels.Operand{p.Ins[0], *s.Up}
	silu := elementFunction(kernels.Problem{Op: ir.OpSilu, Out: p.Out})
	return func() {
		goProduct(p)()
		act := readAll([]kernels.Operand{p.Out})[0]
		goProduct(up)()
		times := readAll([]kernels.Operand{p.Out})[0]
		for i, v := range act.x {
			times.x[i] *= tensor.Round(p.Out.DType, silu([]float64{v}))
		}
		times.write(p.Out)
	}
}

// elementFunction is what p computes of the elements at one index; nil for what is not elementwise.
func elementFunction(p kernels.Problem) func(x []float64) float64 {
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
	case ir.OpCopy, ir.OpExpand, ir.OpCast:
		return func(x []float64) float64 { return x[0] }
	}
	row, ok := pointwise.Of(p.Op)
	if !ok {
		return nil
	}
	numbers := make([]float64, len(p.Numbers))
	for i, n := range p.Numbers {
		numbers[i] = n.Float
	}
	return func(x []float64) float64 { return row.Float(x, numbers) }
}

// goProduct computes linear or matmul, term by term.
func goProduct(p kernels.Problem) func() {
	return func() {
		ins, out := readAll(p.Ins), newArray(p.Out.Shape)
		a, b, last := ins[0].x, ins[1].x, len(out.shape)-1
		// A linear is one product of matrices, whose b is stored [N, K].
		n, k := out.shape[last], p.Ins[0].Shape[len(p.Ins[0].Shape)-1]
		m, ta, tb := int64(len(out.x))/max(n, 1), false, true
		if p.Op == ir.OpMatmul {
			m, ta, tb = out.shape[last-1], p.TA, p.TB
			if ta {
				k = p.Ins[0].Shape[last-1]
			}
		}
		at := func(x []float64, t, i, j, rows, cols int64, turned bool) float64 {
			if turned {
				return x[t*rows*cols+j*rows+i]
			}
			return x[t*rows*cols+i*cols+j]
		}
		for i := range out.x {
			row, col := int64(i)/n, int64(i)%n
			t, row := row/m, row%m
			sum := 0.0
			for d := range k {
				sum += at(a, t, row, d, m, k, ta) * at(b, t, d, col, k, n, tb)
			}
			if len(ins) == 3 {
				sum += ins[2].x[col]
			}
			out.x[i] = sum
		}
		out.write(p.Out)
	}
}

// goAxes is the sum or maximum over axes.
func goAxes(p kernels.Problem) func() {
	first, fold := 0.0, func(a, b float64) float64 { return a + b }
	if p.Op == ir.OpMax {
		first, fold = math.Inf(-1), math.Max
	}
	return func() {
		in, out := read(p.Ins[0]), newArray(p.Out.Shape)
		for i := range out.x {
			out.x[i] = first
		}
		at := 0
		eachIndex(in.shape, func(i []int64) {
			var kept []int64
			for d, x := range i {
				if !slices.Contains(p.Axes, d) {
					kept = append(kept, x)
				}
			}
			sum := out.at(kept...)
			*sum = fold(*sum, in.x[at])
			at++
		})
		out.write(p.Out)
	}
}

// goSlots adds slots one after the other, rounding after each, to an accumulator where
// there is one.
func goSlots(p kernels.Problem) func() {
	return func() {
		in, out := read(p.Ins[0]), newArray(p.Out.Shape)
		if len(p.Ins) > 1 {
			out = read(p.Ins[1])
		}
		at := 0
		eachIndex(in.shape, func(i []int64) {
			sum := out.at(slices.Delete(slices.Clone(i), p.Axes[0], p.Axes[0]+1)...)
			*sum = tensor.Round(p.Out.DType, *sum+in.x[at])
			at++
		})
		out.write(p.Out)
	}
}

// goChain computes links one after another, rounding after each.
func goChain(p kernels.Problem) (func(), error) {
	var fs []func([]float64) float64
	for _, l := range p.Links {
		f := elementFunction(kernels.Problem{Op: l.Op, Attrs: ir.Attrs{Numbers: l.Numbers}, Out: kernels.Operand{DType: l.DType}})
		if f == nil {
			return nil, fmt.Errorf("%w: the fake has no %s", device.ErrUnsupported, l.Op)
		}
		fs = append(fs, f)
	}
	return func() {
		ins, out := readAll(p.Ins), newArray(p.Out.Shape)
		results, x := make([]float64, len(p.Links)), make([]float64, 0, 8)
		for i := range out.x {
			for k, l := range p.Links {
				x = x[:0]
				for _, a := range l.Args {
					if a < 0 {
						x = append(x, results[^a])
					} else {
						x = append(x, ins[a].x[i])
					}
				}
				results[k] = tensor.Round(l.DType, fs[k](x))
			}
			out.x[i] = results[len(results)-1]
		}
		out.write(p.Out)
	}, nil
}
