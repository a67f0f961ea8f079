package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/ir"
)

// This file holds the operations whose results are indices, and the operations that select elements by indices.

// counting fills an array with the indices along an axis, which is the last by default.
func counting(at attrs, dt ir.DType, shape []int64) (*array, error) {
	axis := len(shape) - 1
	if len(at.axes) > 0 {
		axis = at.axes[0]
	}
	start, out, inner := at.number(0), newArray(dt, shape), elements(shape[axis+1:])
	if !start.isInt && start.f == 0 { // the default
		start.isInt = true
	}
	if dt.IsInt() && !start.isInt {
		return nil, fmt.Errorf("%v elements cannot be %v", dt, start.f)
	}
	for i := range out.len() {
		along := i / inner % shape[axis]
		if dt.IsInt() {
			out.n[i] = wrap(dt, start.n+along)
			continue
		}
		y, lost := start.f+float64(along), addLoses(start.f, float64(along))
		out.f[i], out.e[i] = single(dt, y)
		out.e[i] += math.Abs(lost)
	}
	return out, nil
}

// ranked returns the indices of elements from..to of a, sorted by element: the smallest first or, if largest, the
// largest first. Equal elements remain in their order.
func ranked(a *array, from, to int64, largest bool) []int64 {
	var at []int64
	for i := from; i < to; i++ {
		at = append(at, i)
	}
	slices.SortStableFunc(at, func(i, j int64) int {
		less := a.n != nil && a.n[i] < a.n[j] || a.n == nil && a.f[i] < a.f[j]
		more := a.n != nil && a.n[i] > a.n[j] || a.n == nil && a.f[i] > a.f[j]
		switch {
		case less && !largest || more && largest:
			return -1
		case less || more:
			return 1
		}
		return 0
	})
	return at
}

// topK returns the largest elements of each row, as many as the shape of the result has. If elements have errors,
// each result may be wrong by the largest error in the row. Machines sort NaN differently.
func topK(a *array, shape []int64) (*array, error) {
	out := newArray(a.dt, shape)
	n, k := a.shape[len(a.shape)-1], shape[len(shape)-1]
	for i := range out.len() {
		if i%k != 0 {
			continue
		}
		from, most := i/k*n, 0.0
		for j := from; j < from+n; j++ {
			most = max(most, a.e[j])
			if a.float(j) != a.float(j) {
				most = inf
			}
		}
		for r, j := range ranked(a, from, from+n, true)[:k] {
			out.copyRun(i+int64(r), a, j, 1)
			out.e[i+int64(r)] = most
		}
	}
	return out, nil
}

// sortedIndices returns the indices of the elements of each row in sorted order, as many as the shape of the result
// has. If an element may equal another one on some machine, its index is unknown, unless both elements are
// certified.
func sortedIndices(a *array, shape []int64, largest bool) (*array, error) {
	out := newArray(ir.I32, shape)
	n, k := a.shape[len(a.shape)-1], shape[len(shape)-1]
	for i := range out.len() {
		if i%k != 0 {
			continue
		}
		from := i / k * n
		sure := true
		for j := from; j < from+n; j++ {
			sure = sure && a.e[j] == 0 && a.float(j) == a.float(j)
		}
		for r, j := range ranked(a, from, from+n, largest)[:k] {
			to := i + int64(r)
			out.n[to] = j - from
			for o := from; o < from+n && !sure; o++ {
				far := math.Abs(a.float(o)-a.float(j)) > a.e[o]+a.e[j]
				if o != j && !far && (a.e[o] != 0 || a.e[j] != 0) || a.float(o) != a.float(o) {
					out.e[to] = inf
				}
			}
		}
	}
	return out, nil
}

// takeAlong returns the elements of each row of a that are selected by the indices in the operand at.
func takeAlong(a, at *array) (*array, error) {
	out := newArray(a.dt, at.shape)
	n, k := a.shape[len(a.shape)-1], at.shape[len(at.shape)-1]
	for i, v := range at.n {
		if v < 0 || v >= n {
			return nil, &finding{"range", fmt.Sprintf("index %d (element %d of the indices) is outside 0 to %d", v, i, n-1),
				"indices count from 0"}
		}
		to := int64(i)
		out.copyRun(to, a, to/k*n+v, 1)
		if at.e[i] != 0 {
			out.e[to] = inf
		}
	}
	return out, nil
}

// bincount counts how often each id occurs. An id that is not certified may have any value, also one outside of the
// range that is counted.
func bincount(ids *array, shape []int64) (*array, error) {
	out, doubts := newArray(ir.I32, shape), 0.0
	for i, id := range ids.n {
		if id >= 0 && id < out.len() {
			out.n[id]++
		}
		if ids.e[i] != 0 {
			doubts++
		}
	}
	for i := range out.n {
		out.n[i], out.e[i] = integer(ir.I32, out.n[i], doubts)
	}
	return out, nil
}

// indexAdd adds the rows of x[…, D] that have the same id.
func indexAdd(x, ids *array, dt ir.DType, shape []int64, sp split) (*array, error) {
	if ids.n == nil || len(shape) != 2 || x.len() != ids.len()*shape[1] {
		return nil, fmt.Errorf("index_add of %v%v by %v%v", x.dt, x.shape, ids.dt, ids.shape)
	}
	n, d := shape[0], shape[1]
	out := newContraction(dt, shape, sp)
	sums, doubts := make([]sumOf, out.len()), false
	for i := range sums {
		sums[i] = sumOf{acc: dt.Accum(), ints: true}
	}
	for i, id := range ids.n {
		if id < -1 || id >= n {
			return nil, &finding{"range", fmt.Sprintf("id %d is outside 0 to %d, the rows of the result", id, n-1),
				"ids count from 0, and -1 skips a row"}
		}
		if doubts = doubts || ids.e[i] != 0; id < 0 {
			continue
		}
		for j := range d {
			from, to := int64(i)*d+j, id*d+j
			if out.n != nil {
				out.n[to], out.e[to] = integer(dt, out.n[to]+x.n[from], out.e[to]+x.e[from])
				continue
			}
			s := &sums[to]
			s.n, s.y, s.prop, s.ints = s.n+1, s.y+x.f[from], s.prop+x.e[from], s.ints && x.exactInteger(from)
			if x.mag != nil {
				s.abs += x.mag[from]
			} else {
				s.abs += math.Abs(x.f[from])
			}
		}
	}
	for i := range out.len() {
		if out.n == nil {
			out.store(i, sums[i])
		}
		if doubts {
			out.e[i] = inf
		}
	}
	return out.array, nil
}
