package cuda

import (
	"math"

	"hocket.example/hocket/internal/kernels"
)

// elementOf returns where element index of o lies.
func elementOf(o kernels.Operand, index ...int64) uintptr {
	off := int64(0)
	for i, x := range index {
		off += x * o.Strides[i]
	}
	return uintptr(o.Addr) + uintptr(off*o.DType.Size())
}

// goNorm computes rms_norm, row by row.
func goNorm(p kernels.Problem) func() {
	x, w, last := p.Ins[0], p.Ins[1], len(p.Out.Shape)-1
	width := p.Out.Shape[last]
	return func() {
		eachIndex(p.Out.Shape[:last], func(row []int64) {
			at := func(o kernels.Operand, i int64) uintptr { return elementOf(o, append(row[:last:last], i)...) }
			sum := 0.0
			for i := range width {
				v := load(at(x, i), x.DType)
				sum += v * v
			}
			root := 1 / math.Sqrt(sum/float64(width)+p.Value)
			for i := range width {
				store(at(p.Out, i), p.Out.DType, load(at(x, i), x.DType)*root*load(elementOf(w, i), w.DType))
			}
		})
	}
}

// goAttention computes attention, query by query. Leading dimensions are those
// before sequence, head and feature.
func goAttention(p kernels.Problem) func() {
	q, k, v, n := p.Ins[0], p.Ins[1], p.Ins[2], len(p.Out.Shape)
	shared := q.Shape[n-2] / k.Shape[n-2]
	return func() {
		eachIndex(p.Out.Shape[:n-1], func(i []int64) {
			lead, query, head := i[:n-3:n-3], i[n-3], i[n-2]
			sees := k.Shape[n-3]
			if p.Causal {
				sees = query + 1 + k.Shape[n-3] - q.Shape[n-3]
			}
			weights, total := make([]float64, sees), 0.0
			for key := range sees {
				dot := 0.0
				for d := range q.Shape[n-1] {
					dot += load(elementOf(q, append(lead, query, head, d)...), q.DType) * load(elementOf(k, append(lead, key, head/shared, d)...), k.DType)
				}
				weights[key] = math.Exp(dot * p.Value)
				total += weights[key]
			}
			for d := range q.Shape[n-1] {
				sum := 0.0
				for key, w := range weights {
					sum += w / total * load(elementOf(v, append(lead, int64(key), head/shared, d)...), v.DType)
				}
				store(elementOf(p.Out, append(lead, query, head, d)...), p.Out.DType, sum)
			}
		})
	}
}
