package graph

import (
	"slices"

	"hocket.example/hocket/ir"
)

// Size returns the number of bytes of an element.
func (d DType) Size() int64 {
	if d == Bool {
		return 1
	}
	k, _ := ir.ParseDType(string(d))
	return k.Size()
}

// Product returns the product of extents, which must not overflow.
func Product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// Counting returns 0, 1, … n-1.
func Counting(n int) []int64 {
	list := make([]int64, n)
	for i := range list {
		list[i] = int64(i)
	}
	return list
}

// Pick returns the elements of list with the given indices.
func Pick(list, indices []int64) []int64 {
	picked := make([]int64, len(indices))
	for i, k := range indices {
		picked[i] = list[k]
	}
	return picked
}

// Inverse returns the inverse of a permutation.
func Inverse(perm []int64) []int64 {
	out := make([]int64, len(perm))
	for i, p := range perm {
		out[p] = int64(i)
	}
	return out
}

// Swapped returns the permutation of n dimensions that exchanges dimensions i and j.
func Swapped(n, i, j int) []int64 {
	perm := Counting(n)
	perm[i], perm[j] = perm[j], perm[i]
	return perm
}

// Last returns the last extent of a shape, or -1 if the shape has no dimensions.
func Last(shape []int64) int64 {
	if len(shape) == 0 {
		return -1
	}
	return shape[len(shape)-1]
}

// WithExtent returns a shape in which dimension d has another extent.
func WithExtent(shape []int64, d int, extent int64) []int64 {
	s := slices.Clone(shape)
	s[d] = extent
	return s
}
