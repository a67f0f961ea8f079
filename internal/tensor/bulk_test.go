package tensor

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"hocket.example/hocket/ir"
)

var awkward = []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 1.5, 2.5, 257, 65520, -1e10, 1e39, 1e300, math.Inf(1),
	math.Inf(-1), math.NaN(),
	1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40, 0x1p-24, 0x1p-133, 0x1p-149, 0x1p31, -0x1p31, 0x1p63, -0x1p63,
	math.MaxInt32 - 0.5}

// TestBulkAgreesWithElements checks that each bulk conversion agrees with the method for single
// elements, for odd lengths and unaligned bytes.
func TestBulkAgreesWithElements(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	values := slices.Clone(awkward)
	for range 500 {
		values = append(values, math.Ldexp(rng.Float64()*2-1, rng.IntN(80)-40))
	}
	n := len(values)
	for _, dt := range ir.DTypes() {
		size := int(dt.Size())
		bytes := func() []byte { return make([]byte, n*size+1)[1:] }
		one := func(set func(x *Tensor, i int64)) []byte {
			x := &Tensor{DType: dt, Shape: []int64{int64(n)}, Data: bytes()}
			for i := range int64(n) {
				set(x, i)
			}
			return x.Data
		}
		v32, ints := make([]float32, n), make([]int64, n)
		for i, v := range values {
			v32[i], ints[i] = float32(v), saturate64(v)
		}
		got := bytes()
		if m := FromFloat32(got, v32, dt); m != n ||
			!slices.Equal(got, one(func(x *Tensor, i int64) { x.SetFloat64(i, float64(v32[i])) })) {
			t.Errorf("FromFloat32 to %s: %d elements, or they differ from SetFloat64", dt, m)
		}
		if m := FromInt64(got, ints, dt); m != n ||
			!slices.Equal(got, one(func(x *Tensor, i int64) { x.SetInt64(i, ints[i]) })) {
			t.Errorf("FromInt64 to %s: %d elements, or they differ from SetInt64", dt, m)
		}
		if m := FromFloat64(got, values, dt); m != n ||
			!slices.Equal(got, one(func(x *Tensor, i int64) { x.SetFloat64(i, values[i]) })) {
			t.Errorf("FromFloat64 to %s: %d elements, or they differ from SetFloat64", dt, m)
		}
		x := &Tensor{DType: dt, Shape: []int64{int64(n)}, Data: got}
		back32, back64, backInt := make([]float32, n), make([]float64, n), make([]int64, n)
		if ToFloat32(back32, got, dt) != n || ToFloat64(back64, got, dt) != n || ToInt64(backInt, got, dt) != n {
			t.Errorf("To… from %s converts the wrong number", dt)
		}
		for i := range n {
			v := x.Float64(int64(i))
			if dt == ir.I64 && back32[i] != float32(x.Int64(int64(i))) || dt != ir.I64 &&
				!same(float64(back32[i]), float64(float32(v))) ||
				!same(back64[i], v) || backInt[i] != x.Int64(int64(i)) {
				t.Fatalf("%s element %d: %g reads in bulk as %g, %g, %d", dt, i, v, back32[i], back64[i], backInt[i])
			}
			if want := Round(dt, values[i]); !same(v, want) {
				t.Fatalf("%s of %g = %g, want %g", dt, values[i], v, want)
			}
		}
	}
}

// same reports whether two values have the same bits; all NaNs count as equal.
func same(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

// TestBulkLengths checks that the shorter slice determines the number of converted elements, and that the other
// elements are unchanged.
func TestBulkLengths(t *testing.T) {
	for _, dt := range ir.DTypes() {
		src := make([]byte, 3*dt.Size()+dt.Size()-1)
		dst := []float32{7, 7, 7, 7, 7}
		if n := ToFloat32(dst, src, dt); n != 3 || dst[2] != 0 || dst[3] != 7 {
			t.Errorf("%s: %d elements, %v", dt, n, dst)
		}
		if n := ToFloat32(dst[:2], src, dt); n != 2 {
			t.Errorf("%s: %d elements, want 2", dt, n)
		}
		if n := FromFloat64(src, make([]float64, 9), dt); n != 3 {
			t.Errorf("%s: %d elements, want 3", dt, n)
		}
		if n := FromInt64(nil, []int64{1}, dt) + FromFloat32(src, nil, dt) + ToInt64(nil, src, dt); n != 0 {
			t.Errorf("%s: %d elements, want none", dt, n)
		}
	}
	for _, dt := range []ir.DType{ir.InvalidDType, 77} {
		if ToFloat64(make([]float64, 1), make([]byte, 8), dt)+FromFloat32(make([]byte, 8), make([]float32, 1),
			dt) != 0 {
			t.Errorf("invalid element type %d converts elements", dt)
		}
	}
}

func TestViews(t *testing.T) {
	views := map[ir.DType]func(*Tensor) (n int, isNil bool){
		ir.F32: func(x *Tensor) (int, bool) { v := x.Float32s(); return len(v), v == nil },
		ir.F64: func(x *Tensor) (int, bool) { v := x.Float64s(); return len(v), v == nil },
		ir.I32: func(x *Tensor) (int, bool) { v := x.Int32s(); return len(v), v == nil },
		ir.I64: func(x *Tensor) (int, bool) { v := x.Int64s(); return len(v), v == nil },
		ir.F16: func(x *Tensor) (int, bool) { v := x.Uint16s(); return len(v), v == nil },
	}
	views[ir.BF16] = views[ir.F16]
	for _, dt := range ir.DTypes() {
		for _, n := range []int64{0, 1, 3, 17} {
			x, _ := New(dt, []int64{n})
			for viewed, view := range views {
				got, isNil := view(x)
				if typed := dt == viewed || dt.Size() == 2 && viewed.Size() == 2; typed && (int64(got) != n || isNil) ||
					!typed && !isNil {
					t.Errorf("the %s view of %s has %d elements, nil %v", viewed, x, got, isNil)
				}
			}
		}
		if dt.Size() == 1 {
			continue
		}
		odd := &Tensor{DType: dt, Shape: []int64{2}, Data: alignedBytes(int(2*dt.Size()) + 1)[1:]}
		if _, isNil := views[dt](odd); !isNil {
			t.Errorf("unaligned %s has a view", dt)
		}
	}
	x, _ := New(ir.F32, []int64{2, 3})
	x.Float32s()[4] = 2.5
	y := x.Clone()
	x.Float32s()[4] = 1
	if x.Float64(4) != 1 || y.Float64(4) != 2.5 {
		t.Error("views share storage, clones do not")
	}
	if p := uintptr(unsafe.Pointer(&y.Data[0])); p%8 != 0 {
		t.Error("clones are aligned")
	}
}

func BenchmarkToFloat32(b *testing.B) {
	benchmarkBulk(b, func(f []float32, p []byte, dt ir.DType) { ToFloat32(f, p, dt) })
}
func BenchmarkFromFloat32(b *testing.B) {
	benchmarkBulk(b, func(f []float32, p []byte, dt ir.DType) { FromFloat32(p, f, dt) })
}

func benchmarkBulk(b *testing.B, convert func([]float32, []byte, ir.DType)) {
	const n = 1 << 16
	for _, dt := range ir.DTypes() {
		b.Run(dt.String(), func(b *testing.B) {
			x, _ := New(dt, []int64{n})
			if err := Fill(x, "x", Spec{Kind: SpecRand}); err != nil {
				b.Fatal(err)
			}
			f := make([]float32, n)
			ToFloat32(f, x.Data, dt)
			b.SetBytes(int64(len(x.Data)))
			for b.Loop() {
				convert(f, x.Data, dt)
			}
		})
	}
}
