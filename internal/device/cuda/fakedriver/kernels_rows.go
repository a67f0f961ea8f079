package fakedriver

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// goNorm computes rms_norm, row by row.
func goNorm(p kernels.Computation, op device.RMSNorm) func() {
	return func() {
		x, w := Read(p.Ins[0]), Read(p.Ins[1]).X
		for row := range slices.Chunk(x.X, len(w)) {
			sum := 0.0
			for _, v := range row {
				sum += v * v
			}
			root := 1 / math.Sqrt(sum/float64(len(row))+op.Eps)
			for i, v := range row {
				row[i] = v * root * w[i]
			}
		}
		x.Write(p.Out)
	}
}

// goNormGrad computes rms_norm_dx or rms_norm_dw, row by row.
func goNormGrad(p kernels.Computation, op device.NormGrad) func() {
	return func() {
		x, dy := Read(p.Ins[0]), Read(p.Ins[len(p.Ins)-1])
		n := p.Out.Shape[len(p.Out.Shape)-1]
		out := NewArray(p.Out.Shape)
		for from := int64(0); from < int64(len(x.X)); from += n {
			row, up := x.X[from:from+n], dy.X[from:from+n]
			sum, dot := 0.0, 0.0
			for _, v := range row {
				sum += v * v
			}
			root := 1 / math.Sqrt(sum/float64(n)+op.Eps)
			if op.Op == ir.OpRMSNormDW {
				for i, v := range row {
					out.X[i] += up[i] * v * root
				}
				continue
			}
			w := Read(p.Ins[1]).X
			for i, v := range row {
				dot += up[i] * w[i] * v * root
			}
			for i, v := range row {
				out.X[from+int64(i)] = root * (up[i]*w[i] - v*root*dot/float64(n))
			}
		}
		out.Write(p.Out)
	}
}

// head returns the features of one head at one position of a sequence.
func (a Array) head(lead []int64, place, head int64) []float64 {
	i, n := int64(0), len(lead)
	for d, x := range lead {
		i = i*a.shape[d] + x
	}
	i, dim := (i*a.shape[n]+place)*a.shape[n+1]+head, a.shape[n+2]
	return a.X[i*dim : (i+1)*dim]
}

// goAttention computes attention, query by query. Leading dimensions are the dimensions before sequence, head and
// feature. If op.LSE is set, the kernel also stores the logarithms of the sums of exponentials.
func goAttention(p kernels.Computation, op device.Attention) func() {
	n := len(p.Out.Shape)
	return func() {
		lse := NewArray(p.Out.Shape[:n-1])
		q, k, v, out := Read(p.Ins[0]), Read(p.Ins[1]), Read(p.Ins[2]), NewArray(p.Out.Shape)
		lengths := goLengths(p, q.shape[:n-2], k.shape[n-3])
		mask := Array{}
		if last := len(p.Ins) - 1; last > 2 && !p.Ins[last].DType.IsInt() {
			mask = Read(p.Ins[last])
		}
		shared := q.shape[n-2] / k.shape[n-2]
		eachIndex(p.Out.Shape[:n-1], func(i []int64) {
			lead, query, head := i[:n-3:n-3], i[n-3], i[n-2]
			sees := int64(*lengths.at(i[:n-2]...))
			if op.Causal {
				sees = max(0, query+1+sees-q.shape[n-3])
			}
			asks, sums := q.head(lead, query, head), out.head(lead, query, head)
			weights, total := make([]float64, sees), 0.0
			first := int64(0)
			if op.Window > 0 {
				first = max(0, sees-op.Window)
			}
			for key := first; key < sees; key++ {
				dot := 0.0
				for d, x := range k.head(lead, key, head/shared) {
					dot += asks[d] * x
				}
				if dot *= op.Scale; op.Softcap != 0 {
					dot = op.Softcap * math.Tanh(dot/op.Softcap)
				}
				if mask.X != nil {
					dot += *mask.at(append(slices.Clone(i[n-1-len(mask.shape):n-2]), key)...)
				}
				weights[key] = math.Exp(dot)
				total += weights[key]
			}
			*lse.at(i...) = math.Log(total)
			for key, w := range weights {
				if w == 0 {
					continue
				}
				w /= total
				for d, x := range v.head(lead, int64(key), head/shared) {
					sums[d] += w * x
				}
			}
		})
		out.Write(p.Out)
		if op.LSE {
			lse.Write(p.Stored[0])
		}
	}
}
