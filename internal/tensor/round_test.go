package tensor

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/ir"
)

// halfFormat describes a 16-bit float format for a slow reference implementation.
type halfFormat struct {
	dt        ir.DType
	mantissa  int // stored bits
	bias      int
	toFloat32 func(uint16) float32
	from32    func(float32) uint16
	from64    func(float64) uint16
}

var halves = []halfFormat{
	{ir.F16, 10, 15, f16ToFloat32, f16FromFloat32, f16FromFloat64},
	{ir.BF16, 7, 127, bf16ToFloat32, bf16FromFloat32, bf16FromFloat64},
}

// value decodes b in float64 by the definition of the format.
func (h halfFormat) value(b uint16) float64 {
	sign := 1.0
	if b>>15 == 1 {
		sign = -1
	}
	m := int(b) & (1<<h.mantissa - 1)
	e := int(b&0x7fff) >> h.mantissa
	top := 1<<(15-h.mantissa) - 1
	switch {
	case e == top && m != 0:
		return math.NaN()
	case e == top:
		return sign * math.Inf(1)
	case e == 0:
		return sign * math.Ldexp(float64(m), 1-h.bias-h.mantissa)
	}
	return sign * math.Ldexp(float64(m+1<<h.mantissa), e-h.bias-h.mantissa)
}

// TestHalfAllPatterns checks that each of the 65536 bit patterns is the same after it was decoded and encoded.
func TestHalfAllPatterns(t *testing.T) {
	for _, h := range halves {
		for i := range 1 << 16 {
			b := uint16(i)
			want, got := h.value(b), h.toFloat32(b)
			if math.IsNaN(want) {
				for _, back := range []uint16{h.from32(got), h.from64(float64(got))} {
					if !math.IsNaN(float64(got)) || !math.IsNaN(h.value(back)) || back>>(h.mantissa-1)&1 == 0 {
						t.Fatalf("%s %#04x: NaN decodes to %v, which encodes to %#04x, want a quiet NaN", h.dt, b, got,
							back)
					}
				}
				continue
			}
			if float64(got) != want || math.Signbit(float64(got)) != math.Signbit(want) {
				t.Fatalf("%s %#04x = %v, want %v", h.dt, b, got, want)
			}
			if back := h.from32(got); back != b {
				t.Fatalf("%s %#04x is encoded from float32 as %#04x", h.dt, b, back)
			}
			if back := h.from64(want); back != b {
				t.Fatalf("%s %#04x is encoded from float64 as %#04x", h.dt, b, back)
			}
		}
	}
}

// TestHalfTies checks, between each pair of neighbours, that the midpoint rounds to even, and that
// the float64 values next to it, which round to the midpoint in float32, round to the nearer
// neighbour.
func TestHalfTies(t *testing.T) {
	for _, h := range halves {
		inf := uint16(1<<(15-h.mantissa)-1) << h.mantissa
		for b := uint16(0); b < inf; b++ {
			lo := h.value(b)
			hi := h.value(b + 1)
			if b+1 == inf {
				hi = 2*lo - h.value(b-1) // values from the midpoint between the largest number and the next one on overflow
			}
			mid := lo + (hi-lo)/2
			even := b + b&1
			for _, sign := range []float64{1, -1} {
				bit := uint16(0)
				if sign < 0 {
					bit = 0x8000
				}
				for _, c := range []struct {
					v    float64
					want uint16
				}{{mid, even}, {math.Nextafter(mid, 0), b}, {math.Nextafter(mid, math.Inf(1)), b + 1}} {
					if got := h.from64(sign * c.v); got != c.want|bit {
						t.Fatalf("%s of %g = %#04x, want %#04x", h.dt, sign*c.v, got, c.want|bit)
					}
				}
				if f := float32(mid); float64(f) == mid {
					if got := h.from32(float32(sign) * f); got != even|bit {
						t.Fatalf("%s of float32 tie %g = %#04x, want %#04x", h.dt, sign*mid, got, even|bit)
					}
				}
			}
		}
	}
}

// TestNoDoubleRounding checks values whose result would be wrong if they were first rounded to float32.
func TestNoDoubleRounding(t *testing.T) {
	for _, c := range []struct {
		h    halfFormat
		v    float64
		want uint16
	}{
		{halves[0], 1 + 0x1p-11 + 0x1p-40, 0x3c01},
		{halves[1], 1 + 0x1p-8 + 0x1p-40, 0x3f81},
		{halves[1], -(1 + 0x1p-8 + 0x1p-40), 0xbf81},
		{halves[1], 1 + 3*0x1p-8 - 0x1p-40, 0x3f81},
		{halves[0], 0x1p-25 + 0x1p-60, 0x0001},
		{halves[1], 0x1p-134 + 0x1p-180, 0x0001},
	} {
		if got := c.h.from64(c.v); got != c.want {
			t.Errorf("%s of %x = %#04x, want %#04x", c.h.dt, c.v, got, c.want)
		}
		if twice := c.h.from32(float32(c.v)); twice == c.want {
			t.Errorf("%s of %x gives the same result if rounded twice, so it tests nothing", c.h.dt, c.v)
		}
	}
}

func TestHalfExtremes(t *testing.T) {
	for _, h := range halves {
		inf := uint16(1<<(15-h.mantissa)-1) << h.mantissa
		for v, want := range map[float64]uint16{
			math.MaxFloat64: inf, -math.MaxFloat64: inf | 0x8000, math.Inf(1): inf, math.Inf(-1): inf | 0x8000,
			math.SmallestNonzeroFloat64: 0, -math.SmallestNonzeroFloat64: 0x8000, math.MaxFloat32: inf,
		} {
			if got := h.from64(v); got != want {
				t.Errorf("%s of %g = %#04x, want %#04x", h.dt, v, got, want)
			}
		}
	}
}

// TestSetInt64RoundsOnce compares SetInt64 with exact arithmetic.
func TestSetInt64RoundsOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	values := []int64{math.MaxInt64, math.MinInt64, math.MinInt64 + 1, 1<<53 + 1, -(1<<53 + 1), 257, -257, 65519, 65520,
		// These integers are next to ties of bf16 and f32; a conversion to float64 would round them to the tie.
		1<<62 + 1<<54 + 1, -(1<<62 + 1<<54 + 1), 1<<62 + 3<<54 - 1, 1<<62 + 1<<38 + 1}
	for range 20000 {
		values = append(values, int64(rng.Uint64())>>rng.IntN(63))
	}
	for _, dt := range []ir.DType{ir.F32, ir.F16, ir.BF16, ir.F64} {
		x, _ := New(dt, nil)
		for _, v := range values {
			x.SetInt64(0, v)
			if got, want := x.Float64(0), roundBig(dt, v); got != want {
				t.Fatalf("%s of %d = %g, want %g", dt, v, got, want)
			}
		}
	}
}

// roundBig rounds an integer to dt with arbitrary precision. Integers are never subnormal in these
// types.
func roundBig(dt ir.DType, v int64) float64 {
	f := new(big.Float).SetPrec(uint(dt.IntBits())).SetMode(big.ToNearestEven).SetInt64(v)
	r, _ := f.Float64()
	if dt == ir.F16 && math.Abs(r) > 65504 {
		return math.Copysign(math.Inf(1), r)
	}
	return r
}

func TestRound(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		dt      ir.DType
		v, want float64
	}{
		{ir.F32, 1 + 0x1p-25, 1}, {ir.F64, 1 + 0x1p-50, 1 + 0x1p-50}, {ir.BF16, 257, 256}, {ir.BF16, 259, 260},
		{ir.F16, 2049, 2048},
		{ir.F16, 65519.999, 65504}, {ir.F16, 65520, math.Inf(1)}, {ir.F32, 1e39, math.Inf(1)},
		{ir.I32, 0.5, 0}, {ir.I32, 1.5, 2}, {ir.I32, -2.5, -2}, {ir.I32, 1e10, math.MaxInt32},
		{ir.I32, -1e300, math.MinInt32}, {ir.I32, nan, 0},
		{ir.I64, 1e300, 0x1p63}, {ir.I64, 0x1p63, 0x1p63}, {ir.I64, -0x1p62, -0x1p62}, {ir.I64, math.Inf(-1), -0x1p63},
		{ir.I64, nan, 0}, {ir.I64, -0x1p63, -0x1p63},
		{ir.BF16, nan, nan}, {ir.F16, nan, nan}, {ir.F32, nan, nan}, {ir.F64, nan, nan},
	} {
		x, _ := New(c.dt, nil)
		x.SetFloat64(0, c.v)
		for _, got := range []float64{Round(c.dt, c.v), x.Float64(0)} {
			if got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
				t.Errorf("Round(%s, %g) = %g, want %g", c.dt, c.v, got, c.want)
			}
		}
	}
}
