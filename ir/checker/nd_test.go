package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"slices"
)

// nd is a small integer tensor in row-major order. Tests compute the expected results of layouts with nd. It shares no
// code with layout inference.
type nd struct {
	shape []int
	data  []int64
}

func volume(shape []int) int {
	n := 1
	for _, e := range shape {
		n *= e
	}
	return n
}

func newND(shape []int) *nd { return &nd{slices.Clone(shape), make([]int64, volume(shape))} }

// each is an iterator: it calls f with every index of shape, in row-major order.
func each(shape []int, f func(ix []int)) {
	ix := make([]int, len(shape))
	for range volume(shape) {
		f(ix)
		for d := len(ix) - 1; d >= 0; d-- {
			if ix[d]++; ix[d] < shape[d] {
				break
			}
			ix[d] = 0
		}
	}
}

func (t *nd) off(ix []int) int {
	o := 0
	for d, i := range ix {
		o = o*t.shape[d] + i
	}
	return o
}

func (t *nd) at(ix []int) int64 { return t.data[t.off(ix)] }

// gen returns the tensor whose elements are the results of f.
func gen(shape []int, f func(ix []int) int64) *nd {
	t, i := newND(shape), 0
	each(shape, func(ix []int) { t.data[i] = f(ix); i++ })
	return t
}

func (t *nd) same(u *nd) bool {
	return slices.Equal(t.shape, u.shape) && slices.Equal(t.data, u.data)
}

// cut returns the part of t that begins at lo and has the given shape.
func (t *nd) cut(lo, shape []int) *nd {
	at := make([]int, len(shape))
	return gen(shape, func(ix []int) int64 {
		for d, i := range ix {
			at[d] = lo[d] + i
		}
		return t.at(at)
	})
}

// along returns rows lo..hi of dimension d.
func (t *nd) along(d, lo, hi int) *nd {
	from, shape := make([]int, len(t.shape)), slices.Clone(t.shape)
	from[d], shape[d] = lo, hi-lo
	return t.cut(from, shape)
}

func (t *nd) reshaped(shape []int) *nd {
	if volume(shape) != len(t.data) {
		panic(fmt.Sprintf("reshape of %v to %v", t.shape, shape))
	}
	return &nd{shape, t.data}
}

func (t *nd) permuted(perm []int) *nd {
	shape := make([]int, len(perm))
	for i, p := range perm {
		shape[i] = t.shape[p]
	}
	at := make([]int, len(shape))
	return gen(shape, func(ix []int) int64 {
		for i, p := range perm {
			at[p] = ix[i]
		}
		return t.at(at)
	})
}

func concat(d int, list []*nd) *nd {
	shape := slices.Clone(list[0].shape)
	shape[d] = 0
	for _, t := range list {
		shape[d] += t.shape[d]
	}
	return gen(shape, func(ix []int) int64 {
		at := slices.Clone(ix)
		for _, t := range list {
			if at[d] < t.shape[d] {
				return t.at(at)
			}
			at[d] -= t.shape[d]
		}
		panic("unreachable")
	})
}

func combineRed(red ir.Red, a, b int64) int64 {
	switch red {
	case ir.Max:
		return max(a, b)
	case ir.Min:
		return min(a, b)
	}
	return a + b
}

// reduceAll reduces tensors of the same shape. The reduction avg requires that each sum be divisible.
func reduceAll(red ir.Red, list []*nd) *nd {
	out := gen(list[0].shape, list[0].at)
	for _, t := range list[1:] {
		for i, v := range t.data {
			out.data[i] = combineRed(red, out.data[i], v)
		}
	}
	if red == ir.Avg {
		for i := range out.data {
			out.data[i] /= int64(len(list))
		}
	}
	return out
}

// over reduces the dimensions in axes, and removes them.
func (t *nd) over(red ir.Red, axes []int) *nd {
	var keep []int
	for d := range t.shape {
		if !slices.Contains(axes, d) {
			keep = append(keep, d)
		}
	}
	rest := t.permuted(append(slices.Clone(keep), axes...))
	shape := rest.shape[:len(keep)]
	n := volume(rest.shape[len(keep):])
	flat := rest.reshaped([]int{volume(shape), n})
	out := newND([]int{volume(shape)})
	for i := range out.data {
		parts := make([]*nd, n)
		for k := range n {
			parts[k] = &nd{nil, flat.data[i*n+k : i*n+k+1]}
		}
		if n > 0 {
			out.data[i] = reduceAll(red, parts).data[0]
		}
	}
	return out.reshaped(slices.Clone(shape))
}

// matmulND multiplies [… , M, K] by [… , K, N] or [K, N].
func matmulND(a, b *nd) *nd {
	n := len(a.shape)
	shape := slices.Clone(a.shape)
	shape[n-1] = b.shape[len(b.shape)-1]
	ai, bi := make([]int, n), make([]int, n)
	return gen(shape, func(ix []int) int64 {
		v := int64(0)
		copy(ai, ix)
		copy(bi, ix)
		for k := range a.shape[n-1] {
			ai[n-1], bi[n-2] = k, k
			v += a.at(ai) * b.at(bi[len(bi)-len(b.shape):])
		}
		return v
	})
}

// swapped exchanges the last two dimensions.
func (t *nd) swapped() *nd {
	perm := make([]int, len(t.shape))
	for i := range perm {
		perm[i] = i
	}
	n := len(perm)
	perm[n-1], perm[n-2] = n-2, n-1
	return t.permuted(perm)
}

func (t *nd) mapped(f func(int64) int64) *nd {
	return gen(t.shape, func(ix []int) int64 { return f(t.at(ix)) })
}

// trailing applies f to t and u, whose shape is t's trailing dimensions.
func (t *nd) trailing(u *nd, f func(a, b int64) int64) *nd {
	return gen(t.shape, func(ix []int) int64 { return f(t.at(ix), u.at(ix[len(ix)-len(u.shape):])) })
}

// stretched repeats t to the given shape, with dimensions aligned at the end.
func (t *nd) stretched(shape []int) *nd {
	return gen(shape, func(ix []int) int64 {
		at := slices.Clone(ix[len(ix)-len(t.shape):])
		for d := range at {
			if t.shape[d] == 1 {
				at[d] = 0
			}
		}
		return t.at(at)
	})
}

// mixed replaces softmax and norms: each element of its result depends on the element's whole row along d and on its
// position in the row.
func (t *nd) mixed(d int) *nd {
	total := t.over(ir.Sum, []int{d})
	return gen(t.shape, func(ix []int) int64 {
		rest := slices.Delete(slices.Clone(ix), d, d+1)
		return t.at(ix)*(1+total.at(rest)) + int64(ix[d])
	})
}

// attend computes attention without softmax: the weight of each key for query i is their product.
func attend(q, k, v *nd, causal bool) *nd {
	n := len(q.shape)
	group := q.shape[n-2] / k.shape[n-2]
	return gen(q.shape, func(ix []int) int64 {
		sum := int64(0)
		for j := range k.shape[n-3] {
			if causal && j > ix[n-3]+k.shape[n-3]-q.shape[n-3] {
				break
			}
			at, from, score := slices.Clone(ix), slices.Clone(ix), int64(0)
			at[n-3], at[n-2] = j, ix[n-2]/group
			for d := range q.shape[n-1] {
				from[n-1], at[n-1] = d, d
				score += q.at(from) * k.at(at)
			}
			at[n-1] = ix[n-1]
			sum += score * v.at(at)
		}
		return sum
	})
}
