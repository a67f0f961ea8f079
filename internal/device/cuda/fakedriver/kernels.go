package fakedriver

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

// goKernel computes a problem in float64. It supports the operations of the examples and of the tests of ordering.
func goKernel(p kernels.Problem) (func(), error) {
	switch p := p.(type) {
	case kernels.Skinny:
		return goSkinny(p), nil
	case kernels.Transfer:
		return goElements([]kernels.Operand{p.In}, p.Out, func(x []float64) float64 { return x[0] }), nil
	case kernels.Computation:
		return goComputation(p)
	}
	return nil, fmt.Errorf("%w: the fake driver has no kernel for %s", device.ErrUnsupported, p)
}

func goComputation(p kernels.Computation) (func(), error) {
	switch op := p.Op.(type) {
	case device.UnevenMove:
		return goUneven(p, op.Op, op.Axis, op.Member, nil), nil
	case device.UnevenReduce:
		return goUneven(p, ir.OpReduceScatterV, op.Axis, op.Member, foldFunction(op.Red, p.Out.DType)), nil
	case device.Chain:
		return goChain(p, op)
	case device.Linear:
		if len(p.Ins) == 4 {
			return goScaledLinear(p.Ins, p.Out), nil
		}
		return goLinear(p.Ins, p.Out), nil
	case device.Scales:
		return goScales(p, op), nil
	case device.Quantize:
		return goQuantize(p, op), nil
	case device.Matmul:
		return goProduct(p.Ins, p.Out, op.TA, op.TB), nil
	case device.ReduceAxes:
		if op.Op == ir.OpSum || op.Op == ir.OpMax {
			return goAxes(p, op), nil
		}
	case device.ReduceSlots:
		return goSlots(p, op), nil
	case device.Concat:
		return goConcat(p, op), nil
	case device.RMSNorm:
		return goNorm(p, op), nil
	case device.NormGrad:
		return goNormGrad(p, op), nil
	case device.Attention:
		return goAttention(p, op), nil
	case device.Embedding:
		return goEmbedding(p, op), nil
	case device.IndexCopy:
		return goIndexCopy(p, op), nil
	case device.Rope:
		return goRope(p, op), nil
	case device.Ropes:
		return goRopes(p, op), nil
	case device.Argmax:
		return goArgmax(p, op), nil
	case device.Iota:
		return goIota(p, op), nil
	case device.Sorted:
		return goSorted(p, op), nil
	case device.TakeAlong:
		return goTakeAlong(p), nil
	case device.Bincount:
		return goBincount(p), nil
	case device.Softmax:
		return goSoftmax(p, op), nil
	case device.GroupedLinear:
		return goGroupedLinear(p, op), nil
	}
	if _, copied := p.Op.(device.Copy); copied && p.Out.DType.IsFloat8() {
		// Copies of all element types of one size share a launch (strided.Launches), so the given type may not be the
		// data's. The type f8e4m3 preserves all codes of a byte.
		ins := slices.Clone(p.Ins)
		ins[0].DType, p.Ins, p.Out.DType = ir.F8E4M3, ins, ir.F8E4M3
	}
	f := elementFunction(p.Op, p.Out.DType)
	if f == nil {
		return nil, fmt.Errorf("%w: the fake driver has no kernel for %s", device.ErrUnsupported, p)
	}
	if _, cast := p.Op.(device.Cast); !cast && p.Out.DType == ir.I32 { // arithmetic wraps; a cast saturates
		g := f
		f = func(x []float64) float64 { return float64(int32(int64(g(x)))) }
	}
	return goElements(p.Ins, p.Out, f), nil
}

// goElements computes each element of the result from the elements of the operands at the same index.
func goElements(operands []kernels.Operand, result kernels.Operand, f func(x []float64) float64) func() {
	return func() {
		ins, out := readAll(operands), NewArray(result.Shape)
		x := make([]float64, len(ins))
		for i := range out.X {
			for j := range ins {
				x[j] = ins[j].X[i]
			}
			out.X[i] = f(x)
		}
		out.Write(result)
	}
}

// goSkinny computes several linears of one x, one after another.
func goSkinny(p kernels.Skinny) func() {
	linear := func(weight kernels.Operand, scales *kernels.Operand, out kernels.Operand) func() {
		if scales == nil {
			return goLinear([]kernels.Operand{p.Ins[0], weight}, out)
		}
		return goScaledLinear([]kernels.Operand{p.Ins[0], weight, p.Ins[2], *scales}, out)
	}
	var runs []func()
	for _, m := range p.More {
		runs = append(runs, linear(m.Weight, m.Scales, m.Out))
	}
	first := goLinear
	if len(p.Ins) == 4 {
		first = goScaledLinear
	}
	runs = append(runs, first(p.Ins, p.Out))
	if p.Up == nil {
		return func() {
			for _, run := range runs {
				run()
			}
		}
	}
	silu := elementFunction(device.Elementwise{Op: ir.OpSilu}, p.Out.DType)
	return func() {
		first(p.Ins, p.Out)()
		act := readAll([]kernels.Operand{p.Out})[0]
		linear(*p.Up, p.UpScales, p.Out)()
		times := readAll([]kernels.Operand{p.Out})[0]
		for i, v := range act.X {
			times.X[i] *= tensor.Round(p.Out.DType, silu([]float64{v}))
		}
		times.Write(p.Out)
	}
}

// foldFunction returns the reduction red for elements of a type.
func foldFunction(red ir.Red, dt ir.DType) func(x []float64) float64 {
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
		if dt.Accum() == ir.F32 {
			return float64(float32(v))
		}
		return v
	}
	add := fold(func(a, b float64) float64 { return round(a + b) })
	switch red {
	case ir.Sum:
		return add
	case ir.Avg:
		return func(x []float64) float64 {
			v := round(add(x) / float64(len(x)))
			if dt.IsInt() {
				v = math.Trunc(v)
			}
			return v
		}
	case ir.Max:
		return fold(math.Max)
	case ir.Min:
		return fold(math.Min)
	}
	return nil
}

// elementFunction returns the function that op computes on elements of a type; nil if op is not elementwise.
func elementFunction(op device.Op, dt ir.DType) func(x []float64) float64 {
	switch op := op.(type) {
	case device.ReduceOperands:
		return foldFunction(op.Red, dt)
	case device.Cast:
		return func(x []float64) float64 { return x[0] }
	case device.Copy:
		if op.Op == ir.OpCopy || op.Op == ir.OpExpand {
			return func(x []float64) float64 { return x[0] }
		}
	case device.Elementwise:
		row, ok := pointwise.Of(op.Op)
		if !ok {
			return nil
		}
		numbers := make([]float64, len(op.Numbers))
		for i, n := range op.Numbers {
			numbers[i] = n.Float
		}
		return func(x []float64) float64 { return row.Float(x, numbers) }
	}
	return nil
}

// goLinear computes one matrix product. The second matrix is stored with shape [N, K].
func goLinear(ins []kernels.Operand, out kernels.Operand) func() {
	n, k := out.Shape[len(out.Shape)-1], ins[0].Shape[len(ins[0].Shape)-1]
	m := int64(1)
	for _, e := range out.Shape[:len(out.Shape)-1] {
		m *= e
	}
	return goMatrices(ins, out, m, n, k, false, true)
}

// goProduct computes a matrix product for each leading index.
func goProduct(ins []kernels.Operand, out kernels.Operand, ta, tb bool) func() {
	last := len(out.Shape) - 1
	k := ins[0].Shape[last]
	if ta {
		k = ins[0].Shape[last-1]
	}
	return goMatrices(ins, out, out.Shape[last-1], out.Shape[last], k, ta, tb)
}

// goMatrices computes matrix products, term by term.
func goMatrices(operands []kernels.Operand, result kernels.Operand, m, n, k int64, ta, tb bool) func() {
	return func() {
		ins, out := readAll(operands), NewArray(result.Shape)
		a, b := ins[0].X, ins[1].X // the terms of an element are contiguous in both
		if ta {
			a = transposed(a, k, m)
		}
		if !tb {
			b = transposed(b, k, n)
		}
		for i := range out.X {
			row, col := int64(i)/n, int64(i)%n
			x, y := a[row*k:][:k], b[(row/m*n+col)*k:][:k]
			sum := 0.0
			for d, v := range x {
				sum += v * y[d]
			}
			if len(ins) == 3 {
				sum += ins[2].X[col]
			}
			out.X[i] = sum
		}
		out.Write(result)
	}
}

// transposed returns the transposes of matrices.
func transposed(x []float64, rows, cols int64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		t, row, col := int64(i)/(rows*cols), int64(i)/cols%rows, int64(i)%cols
		y[t*rows*cols+col*rows+row] = v
	}
	return y
}

// goAxes computes the sum or maximum over axes.
func goAxes(p kernels.Computation, op device.ReduceAxes) func() {
	first, fold := 0.0, func(a, b float64) float64 { return a + b }
	if op.Op == ir.OpMax {
		first, fold = math.Inf(-1), math.Max
	}
	return func() {
		in, out := Read(p.Ins[0]), NewArray(p.Out.Shape)
		for i := range out.X {
			out.X[i] = first
		}
		at := 0
		kept := make([]int64, 0, len(in.shape))
		eachIndex(in.shape, func(i []int64) {
			kept = kept[:0]
			for d, x := range i {
				if !slices.Contains(op.Axes, d) {
					kept = append(kept, x)
				}
			}
			sum := out.at(kept...)
			*sum = fold(*sum, in.X[at])
			at++
		})
		out.Write(p.Out)
	}
}

// goSlots adds the values in the slots of an operand one after another, with rounding after each addition. The sum
// starts with the accumulator, if any.
func goSlots(p kernels.Computation, op device.ReduceSlots) func() {
	return func() {
		in, out := Read(p.Ins[0]), NewArray(p.Out.Shape)
		if len(p.Ins) > 1 {
			out = Read(p.Ins[1])
		}
		at := 0
		kept := make([]int64, 0, len(in.shape))
		eachIndex(in.shape, func(i []int64) {
			kept = append(append(kept[:0], i[:op.Axis]...), i[op.Axis+1:]...)
			sum := out.at(kept...)
			*sum = tensor.Round(p.Out.DType, *sum+in.X[at])
			at++
		})
		out.Write(p.Out)
	}
}

// goChain computes the operations of a chain (links) one after another, with rounding after each.
func goChain(p kernels.Computation, op device.Chain) (func(), error) {
	var fs []func([]float64) float64
	for _, l := range op.Links {
		f := elementFunction(device.OpOf(l.Op, ir.Attrs{Numbers: l.Numbers}), l.DType)
		if f == nil {
			return nil, fmt.Errorf("%w: the fake driver has no kernel for %s", device.ErrUnsupported, l.Op)
		}
		fs = append(fs, f)
	}
	return func() {
		ins, out := readAll(p.Ins), NewArray(p.Out.Shape)
		stored := make([]Array, len(op.Stored))
		for s := range stored {
			stored[s] = NewArray(p.Out.Shape)
		}
		results, x := make([]float64, len(op.Links)), make([]float64, 0, 8)
		for i := range out.X {
			for k, l := range op.Links {
				x = x[:0]
				for _, a := range l.Args {
					if a < 0 {
						x = append(x, results[^a])
					} else {
						x = append(x, ins[a].X[i])
					}
				}
				results[k] = tensor.Round(l.DType, fs[k](x))
			}
			for s, link := range op.Stored {
				stored[s].X[i] = results[link]
			}
			out.X[i] = results[len(results)-1]
		}
		for s := range stored {
			stored[s].Write(p.Stored[s])
		}
		out.Write(p.Out)
	}, nil
}
