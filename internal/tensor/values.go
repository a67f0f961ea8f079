package tensor

import (
	"fmt"
	"math"

	"hocket.example/hocket/ir"
)

// OfFloats returns a tensor that contains vals, rounded to dt. It fails if the number of vals differs from the number
// of elements, or if dt cannot represent one of vals approximately: a finite number that would become infinite or NaN,
// and for an integer type NaN, a fraction, or a number out of its range.
func OfFloats(dt ir.DType, vals []float64, shape []int64) (*Tensor, error) {
	t, err := ofLength(dt, len(vals), shape)
	if err != nil {
		return nil, err
	}
	for i, v := range vals {
		r := Round(dt, v)
		if dt.IsInt() && (r != v || v >= 1<<63) || math.IsInf(r-v, 0) || math.IsNaN(r) && !math.IsNaN(v) {
			return nil, fmt.Errorf("element %d is %v, which %s cannot represent", i, v, dt)
		}
	}
	FromFloat64(t.Data, vals, dt)
	return t, nil
}

// OfInts returns a tensor that contains vals. Floating-point types round them. It fails as OfFloats does.
func OfInts[E int | int32 | int64](dt ir.DType, vals []E, shape []int64) (*Tensor, error) {
	t, err := ofLength(dt, len(vals), shape)
	if err != nil {
		return nil, err
	}
	for i, v := range vals {
		if r := Round(dt, float64(v)); dt == ir.I32 && int64(v) != int64(int32(v)) || math.IsInf(r, 0) ||
			math.IsNaN(r) {
			return nil, fmt.Errorf("element %d is %d, which %s cannot represent", i, v, dt)
		}
		t.SetInt64(int64(i), int64(v))
	}
	return t, nil
}

// ofLength returns a tensor of n elements, all zero.
func ofLength(dt ir.DType, n int, shape []int64) (*Tensor, error) {
	elements, err := NumElements(shape)
	if err == nil && elements != int64(n) {
		return nil, fmt.Errorf("%d numbers are given for %s, which has %d elements", n, typeText(dt.String(), shape),
			elements)
	}
	if err != nil {
		return nil, err
	}
	return New(dt, shape)
}
