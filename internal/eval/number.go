package eval

import (
	"math"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// This file holds the rules of S11. Each rule is for one kind of arithmetic. A rule defines the number that the
// evaluator computes, and a bound on the difference between this number and the one that a correct machine may compute.
// A rule receives the result y of float64 arithmetic. A rule returns y rounded to the declared type, and the bound e.
//
// For an operand element with value a and bound ea, a correct machine holds some number within ea of a. A machine
// accumulates contractions and reductions in the accumulator type, in any order within a rank. In each step, the
// machine loses at most one unit in the last place (tensor cores truncate). A machine rounds the contribution of each
// rank to the declared type, adds the contributions in the accumulator in rank order, and rounds the sum once. A
// machine may compute elementwise operations on f16 and bf16 directly, or in f32 with a rounded result.
//
// The bound also covers the difference between y and the result in real arithmetic. Therefore the results of two
// programs that compute the same function in different orders (S19) differ by at most the sum of their bounds. The
// operations cast and fill are defined to round, so their rounding is not an error.
//
// A bound of e = 0 certifies that every correct machine holds y. A bound of e = +Inf allows the machine any number.
// Rules return the bound +Inf if some intermediate number may have overflowed or may be a NaN.

// slack is a factor that covers the rounding errors of the bounds themselves, which are computed in floating point.
const slack = 1 + 0x1p-20

// inf is the bound of an unknown number.
var inf = math.Inf(1)

// format describes a floating-point type.
type format struct {
	digits int // binary digits of the significand, including the hidden one
	least  int // exponent of the least normal number
	max    float64
}

func formatOf(dt ir.DType) format {
	switch dt {
	case ir.F16:
		return format{11, -14, 65504}
	case ir.BF16:
		return format{8, -126, 0x1.fep127}
	case ir.F8E4M3:
		return format{4, -6, 448}
	case ir.F8E5M2:
		return format{3, -14, 57344}
	case ir.F32:
		return format{24, -126, math.MaxFloat32}
	}
	return format{53, -1022, math.MaxFloat64}
}

// ulp returns the distance between neighbouring numbers of type dt in the binade of x. Rounding changes a number of
// that binade by at most half this distance.
func ulp(dt ir.DType, x float64) float64 {
	f := formatOf(dt)
	_, exp := math.Frexp(x) // |x| in [2^(exp-1), 2^exp)
	if x == 0 {
		exp = f.least
	}
	return math.Ldexp(1, max(exp-1, f.least)-f.digits+1)
}

// unit returns the largest relative error of rounding to dt.
func unit(dt ir.DType) float64 { return math.Ldexp(1, -formatOf(dt).digits) }

// stepUnit returns the relative error of one step of accumulation in acc, including the evaluator's own error in
// float64.
func stepUnit(acc ir.DType) float64 {
	if acc == ir.F64 {
		return 0x1p-51
	}
	return 2 * unit(acc) * slack
}

// gamma returns the relative error, in terms of the sum of magnitudes, of n steps with a relative error of u each.
func gamma(n int64, u float64) float64 {
	x := float64(n) * u
	if x >= 0.5 {
		return inf
	}
	return x / (1 - x)
}

// holdsIntegers returns the largest magnitude up to which dt holds every
// integer.
func holdsIntegers(dt ir.DType) float64 { return math.Ldexp(1, dt.IntBits()) }

// finish applies the last step of every inexact rule: a machine rounds a number within pre of y to dt. Two numbers that
// differ by pre differ after rounding by at most pre plus half a unit in the last place of each.
func finish(dt ir.DType, y, pre float64) (float64, float64) {
	r := tensor.Round(dt, y)
	top := math.Abs(y) + pre
	if !(top < formatOf(dt).max) { // NaN included
		return r, inf
	}
	return r, (pre + ulp(dt, top)) * slack
}

// single applies the rule of cast and fill: one correctly rounded conversion of a known number. A machine may convert
// to f32 first. The bound e is nonzero only if the conversion to f32 changes the result.
func single(dt ir.DType, y float64) (float64, float64) {
	r := tensor.Round(dt, y)
	if dt == ir.F64 || r != r {
		return r, 0
	}
	if through := tensor.Round(dt, float64(float32(y))); through != r {
		return r, math.Abs(through - r)
	}
	return r, 0
}

// rounded applies the rule of one operation on certified numbers. The exact result is y + lost, where y is the
// nearest float64. Rounding y to f32, f16 or bf16 gives the same number as rounding the exact result, since float64
// has more than twice as many digits as these types plus two. The result is certified if y is exact, that is, if
// lost is 0.
func rounded(dt ir.DType, y, lost float64) (float64, float64) {
	r, e := single(dt, y)
	switch {
	case r == y && lost == 0:
		return r, 0
	case math.IsInf(y, 0) || y != y:
		if dt == ir.F64 {
			return r, inf // finite numbers may have overflowed
		}
		return r, 0 // an operand was infinite or NaN
	case math.IsInf(r, 0):
		return r, inf
	}
	return r, (e + math.Abs(r-y) + math.Abs(lost)) * slack
}

// elementwise applies the rule of add, sub, mul and scale: one operation, where pre is the error that the operands'
// errors cause.
func elementwise(dt ir.DType, y, lost, pre float64) (float64, float64) {
	if pre == 0 {
		return rounded(dt, y, lost)
	}
	return finish(dt, y, pre+stepUnit(dt.Accum())*(math.Abs(y)+pre))
}

// addLoses returns the rounding error of a+b in float64.
func addLoses(a, b float64) float64 {
	s := a + b
	bb := s - a
	return (a - (s - bb)) + (b - bb)
}

// mulLoses returns the rounding error of a·b in float64.
func mulLoses(a, b float64) float64 { return math.FMA(a, b, -(a * b)) }

// productError bounds the error of a·b, where ea and eb bound the errors of a and b.
func productError(a, ea, b, eb float64) float64 {
	if ea == 0 && eb == 0 {
		return 0
	}
	return math.Abs(a)*eb + math.Abs(b)*ea + ea*eb
}

// sumOf describes one element of the result of a contraction or sum, before it is rounded.
type sumOf struct {
	acc  ir.DType
	n    int64   // number of terms
	y    float64 // Σ terms
	abs  float64 // Σ |terms|
	prop float64 // Σ of the terms' own errors
	ints bool    // every term is a product of certified integers
}

// exact reports whether the sum is certified: every partial sum, for every way to split the terms, is an integer of
// magnitude at most abs, and both the accumulator and dt represent those integers exactly.
func (s sumOf) exact(dt ir.DType) bool {
	return s.ints && s.abs <= min(holdsIntegers(dt), holdsIntegers(s.acc))
}

// inRank bounds the error of adding the terms in the accumulator in any order. The last term of the formula covers
// underflow.
func (s sumOf) inRank() float64 {
	mag := s.abs + s.prop
	if !(mag < formatOf(s.acc).max/2) {
		return inf
	}
	return s.prop + gamma(s.n, stepUnit(s.acc))*mag + float64(s.n)*math.Ldexp(1, formatOf(s.acc).least)
}

// whole applies the rule of a contraction or sum that one rank computes alone.
func (s sumOf) whole(dt ir.DType) (y, e float64) {
	if s.exact(dt) {
		return s.y, 0
	}
	return finish(dt, s.y, s.inRank())
}

// partial applies the rule of a contraction or sum that is split over the given number of ranks. The result y is
// the unrounded total. e bounds the error of the sum of the rounded contributions, and mag bounds the sum of their
// magnitudes.
func (s sumOf) partial(dt ir.DType, ranks int64) (y, e, mag float64) {
	if s.exact(dt) {
		return s.y, 0, s.abs
	}
	pre := s.inRank()
	e, mag = contributions(dt, pre, s.abs+pre, ranks)
	return s.y, e, mag
}

// contributions returns bounds after each rank's contribution to a sum is rounded to dt. Before this rounding, the sum
// has an error of at most pre, and the magnitudes of the contributions add up to at most mag. The returned e and newMag
// are the new bounds. A contribution below the least normal number loses at most half the least subnormal number.
func contributions(dt ir.DType, pre, mag float64, ranks int64) (e, newMag float64) {
	if !(mag < formatOf(dt).max/2) {
		return inf, inf
	}
	lost := unit(dt)*mag + float64(ranks)*ulp(dt, 0)
	return (pre + lost) * slack, (mag + lost) * slack
}

// reduced applies the rule of adding the contributions of a partial sum: n numbers of type dt whose total is y, whose
// magnitudes add up to at most mag, and whose sum has an error of at most e.
func reduced(dt ir.DType, y, e, mag float64, n int64, anyOrder bool) (float64, float64) {
	if e == 0 && mag <= holdsIntegers(dt) {
		return y, 0
	}
	return finish(dt, y, e+additions(dt, mag, n, anyOrder))
}

// additions bounds the rounding errors of adding n numbers of type dt. In rank order the accumulator holds the
// intermediate sums; with order=any a machine may round each intermediate sum to dt.
func additions(dt ir.DType, mag float64, n int64, anyOrder bool) float64 {
	if !(mag < formatOf(dt).max/2) {
		return inf
	}
	u := stepUnit(dt.Accum())
	if anyOrder {
		u = max(u, 2*unit(dt))
	}
	return gamma(n, u) * mag
}

// averaged applies the rule of dividing a sum by n, where sum is the unrounded sum and pre is its error in the
// accumulator.
func averaged(dt ir.DType, sum, pre float64, n int64) (float64, float64) {
	y := sum / float64(n)
	if pre == 0 && n&(n-1) == 0 {
		return rounded(dt, y, 0) // n is a power of two, so multiplying by 1/n is the same as dividing by n
	}
	pre /= float64(n)
	return finish(dt, y, pre+2*stepUnit(dt.Accum())*(math.Abs(y)+pre))
}

// mean applies the rule of a mean that one rank computes alone.
func (s sumOf) mean(dt ir.DType) (y, e float64) {
	pre := 0.0
	if !s.exact(s.acc) {
		pre = s.inRank()
	}
	return averaged(dt, s.y, pre, s.n)
}

// partialMean applies the rule of a mean whose terms are split evenly over ranks. The mean of each rank is rounded
// and contributes its share to y. The mean is never certified, since it requires a division by the number of ranks.
// The bound covers that division.
func (s sumOf) partialMean(dt ir.DType, ranks int64) (y, e, mag float64) {
	pre := s.inRank()
	if !((s.abs+pre)/float64(s.n)*float64(ranks) < formatOf(s.acc).max/2) {
		return s.y / float64(s.n), inf, inf
	}
	n := float64(s.n)
	pre, mag = pre/n, (s.abs+pre)/n
	e, mag = contributions(dt, pre+4*stepUnit(s.acc)*mag, mag, ranks)
	return s.y / n, e, mag
}

// quotient applies the rule of a/b. A quotient whose divisor may be zero has no bound: even the sign of an infinity
// depends on the sign of the zero. But 0/0 is a NaN on every machine.
func quotient(dt ir.DType, a, ea, b, eb float64) (float64, float64) {
	y := a / b
	if a == 0 && ea == 0 && b == 0 && eb == 0 {
		return y, 0
	}
	if !(math.Abs(b) > eb) {
		return tensor.Round(dt, y), inf
	}
	lost, pre := 0.0, 0.0
	if !math.IsInf(y, 0) && y == y {
		lost = math.FMA(-y, b, a) / b
	}
	if ea != 0 || eb != 0 {
		pre = (ea + math.Abs(y)*eb) / (math.Abs(b) - eb)
	}
	return elementwise(dt, y, lost, pre)
}

// steps bounds the error, relative to the magnitude of the result, of a function that machines compute with a few
// operations and table look-ups in dt's accumulator.
func steps(dt ir.DType) float64 { return 8 * stepUnit(dt.Accum()) }

// vanishing bounds the error of machines that replace numbers below the least normal number of dt's accumulator by
// zero.
func vanishing(dt ir.DType) float64 { return math.Ldexp(1, formatOf(dt.Accum()).least) }

// exponential applies the rule of exp. On every machine exp(0) is 1 and exp(-inf) is 0.
func exponential(dt ir.DType, x, ex float64) (float64, float64) {
	y := math.Exp(x)
	if ex == 0 && (x == 0 || math.IsInf(x, -1)) {
		return y, 0
	}
	top := math.Exp(x + ex)
	return finish(dt, y, top-y+steps(dt)*top+vanishing(dt))
}

// rsqrt applies the rule of 1/√x. The slope is steepest at the lower end of the interval in which x may lie.
func rsqrt(dt ir.DType, x, ex float64) (float64, float64) {
	y := 1 / math.Sqrt(x)
	if x+ex < -vanishing(dt) {
		return y, 0 // the root of a negative number is NaN on every machine
	}
	if !(x > ex) || math.IsInf(x, 1) {
		return tensor.Round(dt, y), inf
	}
	top := 1 / math.Sqrt(x-ex)
	return finish(dt, y, top-y+steps(dt)*top)
}

// silu applies the rule of x·σ(x). Its slope is within ±1.1. Where exp(-x) overflows, a machine may return 0 for a
// result of very small magnitude.
func silu(dt ir.DType, x, ex float64) (float64, float64) {
	switch {
	case x == 0 && ex == 0:
		return x, 0
	case math.IsInf(x, 0):
		return tensor.Round(dt, max(x, 0)), inf
	}
	y := x / (1 + math.Exp(-x))
	pre := 1.1 * ex
	return finish(dt, y, pre+steps(dt)*(math.Abs(y)+pre)+4*(math.Abs(x)+ex)*vanishing(dt))
}

// gelu applies the rule of x·Φ(x).
func gelu(dt ir.DType, x, ex float64) (float64, float64) {
	return normal(dt, x, ex, 0.5*x*math.Erfc(-x/math.Sqrt2))
}

// normal applies the rule of the two forms of gelu, where y is the value of the function. The slope of both is
// within ±1.13. A machine computes 1+erf or 1+tanh with an absolute error of a few units of its arithmetic, and
// then multiplies by x/2. The error is therefore relative to x, even if the result is tiny. For large |x|, all
// arithmetic below f64 loses 1-Φ(16) = 6e-58: the result is x or 0.
func normal(dt ir.DType, x, ex, y float64) (float64, float64) {
	const units, saturated = 16, 16
	switch {
	case x == 0 && ex == 0:
		return x, 0
	case ex == 0 && x >= saturated && dt != ir.F64:
		return x, 0
	case ex == 0 && x <= -saturated && dt != ir.F64 && !math.IsInf(x, 0): // for -∞ machines return NaN
		return 0, 0
	case x != x || math.IsInf(x, 0):
		return tensor.Round(dt, x*0.5*(1+math.Erf(x/math.Sqrt2))), inf
	}
	return finish(dt, y, 1.13*ex+units*unit(dt.Accum())*(math.Abs(x)+ex))
}

// selected bounds the results of max, min and relu. max, min and relu return one of their operands, or zero, so the
// operands' errors carry over to the result. Machines differ in the result for NaN.
func selected(y, e float64) float64 {
	if y != y {
		return inf
	}
	return e
}

// softplus applies the rule of log(1+exp(x)). The slope of softplus is between 0 and 1.
func softplus(dt ir.DType, x, ex float64) (float64, float64) {
	y := math.Log1p(math.Exp(x))
	if x > 0 {
		y = x + math.Log1p(math.Exp(-x))
	}
	return finish(dt, y, ex+steps(dt)*(y+ex)+vanishing(dt))
}

// clamped applies the rule of clamp. Rounding is monotonic, so the result is x limited to the interval between the
// rounded bounds.
func clamped(dt ir.DType, x, ex, lo, hi float64) (y, e float64) {
	lo, elo := single(dt, lo)
	hi, ehi := single(dt, hi)
	y = min(max(x, lo), hi)
	return y, selected(y, ex+elo+ehi)
}

// wrap reduces an integer result to the range of its type as two's complement arithmetic does.
func wrap(dt ir.DType, v int64) int64 {
	if dt == ir.I32 {
		return int64(int32(v))
	}
	return v
}

// integer applies the rule of integer arithmetic, which is exact and wraps around. If an operand is not exact, the
// result may wrap around on a machine but not in the evaluator; such a result is unknown.
func integer(dt ir.DType, y int64, pre float64) (int64, float64) {
	y = wrap(dt, y)
	if pre != 0 && !(math.Abs(float64(y))+pre < holdsIntegers(dt)) {
		pre = inf
	}
	return y, pre
}
