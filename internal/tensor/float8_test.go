package tensor

import (
	"math"
	"testing"

	"hocket.example/hocket/ir"
)

// nearest8 returns the code of the number nearest to v, searching all numbers of the format. The numbers are derived
// from the definition of the format: the numbers of every exponent, and one number after the largest, which stands for
// all values that are too large. If two numbers are equally near, the even code is returned.
func nearest8(v float64, mantissa, bias int, top, over byte) byte {
	sign := byte(0)
	if math.Signbit(v) {
		sign, v = 0x80, -v
	}
	if v != v {
		return 0x7f | sign
	}
	best, least := byte(0), math.Inf(1)
	past := math.Ldexp(1+float64(int(top+1)%(1<<mantissa))/float64(int(1)<<mantissa), int(top+1)>>mantissa-bias)
	if v >= past {
		return over | sign
	}
	for code := byte(0); code <= top+1; code++ {
		exp, frac := int(code)>>mantissa, float64(int(code)%(1<<mantissa))/float64(int(1)<<mantissa)
		x := math.Ldexp(1+frac, exp-bias)
		if exp == 0 {
			x = math.Ldexp(frac, 1-bias)
		}
		if d := math.Abs(x - v); d < least || d == least && code%2 == 0 {
			best, least = code, d
		}
	}
	if best > top {
		best = over
	}
	return best | sign
}

func TestFloat8(t *testing.T) {
	formats := []struct {
		dt             ir.DType
		mantissa, bias int
		top, over      byte
	}{{ir.F8E4M3, 3, 7, 0x7e, 0x7f}, {ir.F8E5M2, 2, 15, 0x7b, 0x7c}}
	for _, f := range formats {
		for i := range 1 << 16 {
			v := bf16ToFloat32(uint16(i))
			want := nearest8(float64(v), f.mantissa, f.bias, f.top, f.over)
			got := make([]byte, 1)
			if FromFloat32(got, []float32{v}, f.dt); got[0] != want {
				t.Fatalf("%s of %g (bf16 %#04x) is %#02x, want %#02x", f.dt, v, i, got[0], want)
			}
			for _, around := range []float64{math.Nextafter(float64(v), math.Inf(1)), float64(v), math.Nextafter(float64(v), -1)} {
				want := nearest8(around, f.mantissa, f.bias, f.top, f.over)
				if FromFloat64(got, []float64{around}, f.dt); got[0] != want {
					t.Fatalf("%s of %v is %#02x, want %#02x", f.dt, around, got[0], want)
				}
			}
		}
		for code := range 256 {
			one := Tensor{DType: f.dt, Data: []byte{byte(code)}, Shape: []int64{}}
			v := one.Float64(0)
			if back := nearest8(v, f.mantissa, f.bias, f.top, f.over); back != byte(code) && v == v {
				t.Errorf("%s %#02x decodes to %g, which encodes to %#02x", f.dt, code, v, back)
			}
			if isNaN := code&0x7f > int(f.over) || code&0x7f == 0x7f; isNaN != (v != v) {
				t.Errorf("%s %#02x decodes to %g, want NaN: %t", f.dt, code, v, isNaN)
			}
		}
	}
	for _, c := range []struct {
		dt      ir.DType
		v, want float64
	}{{ir.F8E4M3, 448, 448}, {ir.F8E4M3, 464, 448}, {ir.F8E4M3, 464.1, math.NaN()}, {ir.F8E4M3, 1000, math.NaN()},
		{ir.F8E4M3, math.Inf(-1), math.NaN()}, {ir.F8E4M3, 0x1p-10, 0}, {ir.F8E4M3, 0x1.1p-10, 0x1p-9},
		{ir.F8E5M2, 61439, 57344}, {ir.F8E5M2, 61440, math.Inf(1)}, {ir.F8E5M2, -1e9, math.Inf(-1)}} {
		if got := Round(c.dt, c.v); got != c.want && (got == got || c.want == c.want) {
			t.Errorf("%v as %s is %v, want %v", c.v, c.dt, got, c.want)
		}
	}
}
