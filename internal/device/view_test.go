package device

import (
	"testing"

	"pgregory.net/rapid"

	"hocket.example/hocket/ir"
)

// offsets returns the offsets of the elements of a view, in row-major order.
func offsets(shape, strides []int64) []int64 {
	list := []int64{0}
	for i, e := range shape {
		var next []int64
		for _, at := range list {
			for k := range e {
				next = append(next, at+k*strides[i])
			}
		}
		list = next
	}
	return list
}

// TestNamesTwice checks that every view that contains an element twice is found.
func TestNamesTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(1, 4), 0, 4).Draw(t, "shape")
		strides := rapid.SliceOfN(rapid.Int64Range(0, 20), len(shape), len(shape)).Draw(t, "strides")
		all, seen := offsets(shape, strides), map[int64]bool{}
		for _, at := range all {
			seen[at] = true
		}
		if len(seen) < len(all) && !NamesTwice(shape, strides) {
			t.Fatalf("%v with strides %v", shape, strides)
		}
	})
	for _, c := range []struct{ shape, strides []int64 }{{[]int64{3, 4}, []int64{4, 1}}, {[]int64{4, 3}, []int64{1, 4}}, {[]int64{1, 5}, []int64{0, 2}}, {nil, nil}} {
		if NamesTwice(c.shape, c.strides) {
			t.Errorf("%v with strides %v: NamesTwice reports false", c.shape, c.strides)
		}
	}
}

// TestWithin checks that exactly the views whose elements are all inside the memory are accepted.
func TestWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 4), 0, 3).Draw(t, "shape")
		strides := rapid.SliceOfN(rapid.Int64Range(0, 9), len(shape), len(shape)).Draw(t, "strides")
		v := View{DType: ir.F32, Off: 4 * rapid.Int64Range(0, 30).Draw(t, "offset"), Shape: shape, Strides: strides}
		bytes := rapid.Int64Range(0, 120).Draw(t, "bytes")
		inside := v.Off <= bytes
		for _, at := range offsets(shape, strides) {
			inside = inside && v.Off+4*at+4 <= bytes
		}
		n, err := v.Within(bytes)
		if (err == nil) != inside || err == nil && n != v.Elements() {
			t.Fatalf("%+v in %d bytes: %d, %v", v, bytes, n, err)
		}
	})
	huge := int64(1) << 62
	for _, v := range []View{
		{DType: ir.F32, Shape: []int64{2}, Strides: nil},
		{DType: ir.F32, Shape: []int64{2}, Strides: []int64{-1}},
		{DType: ir.F32, Shape: []int64{2, 2}, Strides: []int64{huge, huge}},
		{DType: ir.F32, Shape: []int64{1 << 40, 1 << 40}, Strides: []int64{1, 1}},
		{DType: ir.F32, Shape: []int64{-1}, Strides: []int64{1}},
		{DType: ir.F32, Off: 2, Shape: []int64{1}, Strides: []int64{1}},
		{DType: ir.F32, Off: -4, Shape: []int64{1}, Strides: []int64{1}},
	} {
		if _, err := v.Within(1 << 50); err == nil {
			t.Errorf("%+v was taken", v)
		}
	}
}
