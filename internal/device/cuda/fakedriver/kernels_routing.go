package fakedriver

import (
	"cmp"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// goIota counts along an axis.
func goIota(p kernels.Computation, op device.Iota) func() {
	return func() {
		out := NewArray(p.Out.Shape)
		eachIndex(p.Out.Shape, func(i []int64) {
			*out.at(i...) = op.Start.Float + float64(op.First+i[op.Axis])
		})
		out.Write(p.Out)
	}
}

// goSorted sorts rows. The order is stable: equal elements keep their order, and a NaN is larger than any number.
func goSorted(p kernels.Computation, op device.Sorted) func() {
	return func() {
		in, out := Read(p.Ins[0]), NewArray(p.Out.Shape)
		last := len(in.shape) - 1
		n, k := int(in.shape[last]), int(p.Out.Shape[last])
		for row := range len(in.X) / max(n, 1) {
			x, y := in.X[row*n:][:n], out.X[row*k:][:k]
			order := make([]int, n)
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int {
				c := compareElements(x[a], x[b])
				if op.Op == ir.OpArgsort {
					return c
				}
				return -c
			})
			for i := range y {
				y[i] = float64(order[i])
				if op.Op == ir.OpTopK {
					y[i] = x[order[i]]
				}
			}
		}
		out.Write(p.Out)
	}
}

// compareElements compares numbers; a NaN is larger than any number.
func compareElements(a, b float64) int {
	switch {
	case math.IsNaN(a) && math.IsNaN(b):
		return 0
	case math.IsNaN(a):
		return 1
	case math.IsNaN(b):
		return -1
	}
	return cmp.Compare(a, b)
}

// goTakeAlong selects elements of rows by their indices.
func goTakeAlong(p kernels.Computation) func() {
	last := len(p.Out.Shape) - 1
	return func() {
		x, at, out := Read(p.Ins[0]), Read(p.Ins[1]), NewArray(p.Out.Shape)
		number := int64(0)
		eachIndex(p.Out.Shape, func(i []int64) {
			from := slices.Clone(i)
			from[last] = int64(*at.at(i...))
			if n := x.shape[last]; from[last] < 0 || from[last] >= n {
				report(p, kernels.FaultIndex, from[last], n, number)
			} else {
				*out.at(i...) = *x.at(from...)
			}
			number++
		})
		out.Write(p.Out)
	}
}

// goBincount counts the occurrences of each index.
func goBincount(p kernels.Computation) func() {
	return func() {
		out := NewArray(p.Out.Shape)
		for _, id := range Read(p.Ins[0]).X {
			if id >= 0 && id < float64(len(out.X)) {
				out.X[int(id)]++
			}
		}
		out.Write(p.Out)
	}
}

// goSoftmax divides the exponentials along an axis by their sum.
func goSoftmax(p kernels.Computation, op device.Softmax) func() {
	return func() {
		x, out := Read(p.Ins[0]), NewArray(p.Out.Shape)
		rows := slices.Clone(p.Out.Shape)
		rows[op.Axis] = 1
		eachIndex(rows, func(i []int64) {
			largest, total := math.Inf(-1), 0.0
			along := func(f func(from, to *float64)) {
				at := slices.Clone(i)
				for at[op.Axis] = range x.shape[op.Axis] {
					f(x.at(at...), out.at(at...))
				}
			}
			along(func(from, _ *float64) { largest = max(largest, *from) })
			along(func(from, to *float64) {
				*to = math.Exp(*from - largest)
				total += *to
			})
			along(func(_, to *float64) { *to /= total })
		})
		out.Write(p.Out)
	}
}

// goGroupedLinear multiplies groups of rows, each with the weight of its expert.
func goGroupedLinear(p kernels.Computation, op device.GroupedLinear) func() {
	return func() {
		x, w, counts, out := Read(p.Ins[0]), Read(p.Ins[1]), Read(p.Ins[2]), NewArray(p.Out.Shape)
		row, rows := int64(0), x.shape[0]
		for e, c := range counts.X {
			count := int64(c)
			if count < 0 || count > rows-row {
				report(p, kernels.FaultGroups, count, rows, int64(e))
				break
			}
			own := int64(e) - op.First
			for ; count > 0; count, row = count-1, row+1 {
				for n := int64(0); own >= 0 && own < w.shape[0] && n < w.shape[1]; n++ {
					for k := range x.shape[1] {
						*out.at(row, n) += *x.at(row, k) * *w.at(own, n, k)
					}
				}
			}
		}
		out.Write(p.Out)
	}
}
