package cuda

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/kernels"
)

// goNorm computes rms_norm, row by row.
func goNorm(p kernels.Problem) func() {
	return func() {
		x, w := read(p.Ins[0]), read(p.Ins[1]).x
		for row := range slices.Chunk(x.x, len(w)) {
			sum := 0.0
			for _, v := range row {
				sum += v * v
			}
			root := 1 / math.Sqrt(sum/float64(len(row))+p.Value)
			for i, v := range row {
				row[i] = v * root * w[i]
			}
		}
		x.write(p.Out)
	}
}

// goAttention computes attention, query by query. Leading dimensions are those
// before sequence, head and feature.
func goAttention(p kernels.Problem) func() {
	n := len(p.Out.Shape)
	return func() {
		q, k, v, out := read(p.Ins[0]), read(p.Ins[1]), read(p.Ins[2]), newArray(p.Out.Shape)
		lengths := goLengths(p, q.shape[:n-2], k.shape[n-3])
		shared := q.shape[n-2] / k.shape[n-2]
		eachIndex(p.Out.Shape[:n-1], func(i []int64) {
			lead, query, head := i[:n-3:n-3], i[n-3], i[n-2]
			sees := int64(*lengths.at(i[:n-2]...))
			if p.Causal {
				sees = max(0, query+1+sees-q.shape[n-3])
			}
			weights, total := make([]float64, sees), 0.0
			for key := range sees {
				dot := 0.0
				for d := range q.shape[n-1] {
					dot += *q.at(append(lead, query, head, d)...) * *k.at(append(lead, key, head/shared, d)...)
				}
				weights[key] = math.Exp(dot * p.Value)
				total += weights[key]
			}
			for d := range q.shape[n-1] {
				sum := 0.0
				for key, w := range weights {
					sum += w / total * *v.at(append(lead, int64(key), head/shared, d)...)
				}
				*out.at(append(lead, query, head, d)...) = sum
			}
		})
		out.write(p.Out)
	}
}
