package tensor

import (
	"math"

	"hocket.example/hocket/ir"
)

// float8 is a floating-point format of 8 bits: a sign, an exponent, and mantissa bits below it.
type float8 struct {
	mantissa, bias uint32
	over           uint32 // code for values that are too large: infinity if the format has infinity, else NaN
	values         [256]float32
}

var float8s = [2]float8{newFloat8(3, 7, 0x7f), newFloat8(2, 15, 0x7c)}

func float8Of(dt ir.DType) *float8 { return &float8s[dt-ir.F8E4M3] }

func newFloat8(mantissa, bias, over uint32) float8 {
	f := float8{mantissa: mantissa, bias: bias, over: over}
	for code := range f.values {
		digits, exp := code&(1<<mantissa-1), code&0x7f>>mantissa
		if exp > 0 {
			digits |= 1 << mantissa
		}
		v := math.Ldexp(float64(digits), max(exp, 1)-int(bias+mantissa))
		switch mag := uint32(code & 0x7f); {
		case mag == over && over != 0x7f:
			v = math.Inf(1)
		case mag >= over:
			v = math.NaN()
		}
		if code >= 0x80 {
			v = -v
		}
		f.values[code] = float32(v)
	}
	return f
}

// fromFloat32 rounds to nearest, ties to even. A value that would round to more than the largest
// number becomes f.over: like torch's conversions, it does not saturate.
func (f *float8) fromFloat32(v float32) byte {
	u := math.Float32bits(v)
	sign, mag := u>>24&0x80, u&0x7fffffff
	var code uint32
	switch shift := 23 - f.mantissa; {
	case v != v:
		code = 0x7f
	// subnormal result: adding this power of two rounds v to a multiple of the smallest subnormal number
	case mag < (128-f.bias)<<23:
		unit := (128 - f.bias + shift) << 23
		code = math.Float32bits(math.Float32frombits(mag)+math.Float32frombits(unit)) - unit
	default:
		code = min((mag+(1<<(shift-1)-1)+mag>>shift&1)>>shift-(127-f.bias)<<f.mantissa, f.over)
	}
	return byte(sign | code)
}
