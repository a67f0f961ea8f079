package eval

import (
	"math"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// This file holds the rules of S11: for each kind of arithmetic, the number the
// evaluator takes and how far a correct machine's may be from it. A rule gets
// the result y as float64 arithmetic finds it and returns it rounded to the
// declared type, with the bound e.
//
// A correct machine holds, for an operand element with value a and bound ea,
// some number within ea of a. It accumulates contractions and reductions in
// the accumulator type in any order within a rank, with at most one unit in
// the last place lost in each step (tensor cores truncate), rounds each rank's
// contribution to the declared type, adds contributions in the accumulator in
// rank order, and rounds once. Elementwise operations on f16 and bf16 may be
// done directly, or in f32 and rounded.
//
// The bound also covers how far y is from what real arithmetic gives, so that
// a program that computes the same function in another order (S19) differs by
// no more than the sum of both bounds. Rounding is part of what cast and fill
// mean, and not an error of theirs.
//
// e = 0 certifies: every such machine holds y. e = +Inf says nothing, and is
// the answer wherever something may have overflowed or is not a number.

// slack covers that bounds are themselves computed in floating point.
const slack = 1 + 0x1p-20

// inf bounds what cannot be bounded.
var inf = math.Inf(1)

// format describes a floating-point type.
type format struct {
	digits int // of the significand, the hidden one included
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

// ulp returns the distance between neighbouring numbers of type dt in the
// binade of x. Rounding a number of that binade moves it by at most half of it.
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

// stepUnit returns the relative error of one step of accumulation in acc, the
// evaluator's own error in float64 included.
func stepUnit(acc ir.DType) float64 {
	if acc == ir.F64 {
		return 0x1p-51
	}
	return 2 * unit(acc) * slack
}

// gamma returns the relative error, against the sum of magnitudes, of n steps
// that each lose u.
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

// finish is the last step of every inexact rule: machines round to dt what is
// within pre of y. Two numbers pre apart, rounded, are at most pre and half a
// unit in the last place of each further apart.
func finish(dt ir.DType, y, pre float64) (float64, float64) {
	r := tensor.Round(dt, y)
	top := math.Abs(y) + pre
	if !(top < formatOf(dt).max) { // NaN included
		return r, inf
	}
	return r, (pre + ulp(dt, top)) * slack
}

// single is the rule of cast and fill: one correctly rounded conversion of a
// known number. A machine may go through f32 first; only where that gives
// another number is e not 0.
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

// rounded is the rule of one operation on certified numbers: its result is
// y + lost, y being the nearest float64. That rounds to f32, f16 and bf16 as
// the real result does (float64 has more than twice their digits and two
// more); it is certified where nothing is lost at all.
func rounded(dt ir.DType, y, lost float64) (float64, float64) {
	r, e := single(dt, y)
	switch {
	case r == y && lost == 0:
		return r, 0
	case math.IsInf(y, 0) || y != y:
		if dt == ir.F64 {
			return r, inf // finite numbers may have overflowed
		}
		return r, 0 // then an operand was infinite or not a number
	case math.IsInf(r, 0):
		return r, inf
	}
	return r, (e + math.Abs(r-y) + math.Abs(lost)) * slack
}

// elementwise is the rule of add, sub, mul and scale: one operation with the
// operands' errors carried to pre.
func elementwise(dt ir.DType, y, lost, pre float64) (float64, float64) {
	if pre == 0 {
		return rounded(dt, y, lost)
	}
	return finish(dt, y, pre+stepUnit(dt.Accum())*(math.Abs(y)+pre))
}

// addLoses returns what float64 loses of a+b.
func addLoses(a, b float64) float64 {
	s := a + b
	bb := s - a
	return (a - (s - bb)) + (b - bb)
}

// mulLoses returns what float64 loses of a·b.
func mulLoses(a, b float64) float64 { return math.FMA(a, b, -(a * b)) }

// productError bounds the error of a·b from those of a and b.
func productError(a, ea, b, eb float64) float64 {
	if ea == 0 && eb == 0 {
		return 0
	}
	return math.Abs(a)*eb + math.Abs(b)*ea + ea*eb
}

// sumOf describes one element of a contraction or sum before it is rounded.
type sumOf struct {
	acc  ir.DType
	n    int64   // number of terms
	y    float64 // Σ terms
	abs  float64 // Σ |terms|
	prop float64 // Σ of the terms' own errors
	ints bool    // every term is a product of certified integers
}

// exact certifies: every partial sum under any split is an integer of
// magnitude at most abs, and both the accumulator and dt hold those.
func (s sumOf) exact(dt ir.DType) bool {
	return s.ints && s.abs <= min(holdsIntegers(dt), holdsIntegers(s.acc))
}

// inRank bounds the error of summing the terms in the accumulator, in any
// order. The last term is what underflow may lose.
func (s sumOf) inRank() float64 {
	mag := s.abs + s.prop
	if !(mag < formatOf(s.acc).max/2) {
		return inf
	}
	return s.prop + gamma(s.n, stepUnit(s.acc))*mag + float64(s.n)*math.Ldexp(1, formatOf(s.acc).least)
}

// whole is the rule of a contraction or sum that one rank does alone.
func (s sumOf) whole(dt ir.DType) (y, e float64) {
	if s.exact(dt) {
		return s.y, 0
	}
	return finish(dt, s.y, s.inRank())
}

// partial is the rule of one split over the given number of ranks: y stays the
// unrounded total, e bounds the error of the sum of the rounded contributions,
// and mag the sum of their magnitudes.
func (s sumOf) partial(dt ir.DType, ranks int64) (y, e, mag float64) {
	if s.exact(dt) {
		return s.y, 0, s.abs
	}
	pre := s.inRank()
	e, mag = contributions(dt, pre, s.abs+pre, ranks)
	return s.y, e, mag
}

// contributions adds to pre what rounding each rank's contribution to dt may
// do, given a bound on the sum of their magnitudes; it returns the new bounds
// of both. Contributions below the least normal number lose up to half the
// least number each.
func contributions(dt ir.DType, pre, mag float64, ranks int64) (e, newMag float64) {
	if !(mag < formatOf(dt).max/2) {
		return inf, inf
	}
	lost := unit(dt)*mag + float64(ranks)*ulp(dt, 0)
	return (pre + lost) * slack, (mag + lost) * slack
}

// reduced is the rule of adding the contributions of a partial sum: n
// numbers of type dt with total y, magnitudes mag and error e.
func reduced(dt ir.DType, y, e, mag float64, n int64, anyOrder bool) (float64, float64) {
	if e == 0 && mag <= holdsIntegers(dt) {
		return y, 0
	}
	return finish(dt, y, e+additions(dt, mag, n, anyOrder))
}

// additions bounds what adding n numbers of type dt may lose. In rank order
// the accumulator holds the sums; with order=any a machine may round each
// intermediate sum to dt.
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

// averaged is the rule of dividing a sum by n, given the rule of the sum: its
// unrounded value, and its error in the accumulator.
func averaged(dt ir.DType, sum, pre float64, n int64) (float64, float64) {
	y := sum / float64(n)
	if pre == 0 && n&(n-1) == 0 {
		return rounded(dt, y, 0) // a power of two: multiplying by 1/n is dividing
	}
	pre /= float64(n)
	return finish(dt, y, pre+2*stepUnit(dt.Accum())*(math.Abs(y)+pre))
}

// mean is the rule of a mean that one rank computes alone.
func (s sumOf) mean(dt ir.DType) (y, e float64) {
	pre := 0.0
	if !s.exact(s.acc) {
		pre = s.inRank()
	}
	return averaged(dt, s.y, pre, s.n)
}

// partialMean is the rule of a mean whose terms are split evenly over ranks:
// each rank's mean is rounded, and counts as its part of y. The mean is never
// certified: it takes a division by the number of ranks, which the bound covers.
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

// quotient is the rule of a/b. What is divided by a number that may be zero is
// not bounded: even the sign of an infinity depends on that of the zero. But 0/0
// is no number on any machine.
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

// steps bounds, against the magnitude of a result, what a function loses that
// machines compute from a few operations and table look-ups in dt's accumulator.
func steps(dt ir.DType) float64 { return 8 * stepUnit(dt.Accum()) }

// vanishing bounds what machines lose that take numbers below the least normal
// one of dt's accumulator for zero.
func vanishing(dt ir.DType) float64 { return math.Ldexp(1, formatOf(dt.Accum()).least) }

// exponential is the rule of exp. exp(0) is 1 and exp(-inf) 0 on every machine.
func exponential(dt ir.DType, x, ex float64) (float64, float64) {
	y := math.Exp(x)
	if ex == 0 && (x == 0 || math.IsInf(x, -1)) {
		return y, 0
	}
	top := math.Exp(x + ex)
	return finish(dt, y, top-y+steps(dt)*top+vanishing(dt))
}

// rsqrt is the rule of 1/√x. Its slope is steepest at the lower end of x.
func rsqrt(dt ir.DType, x, ex float64) (float64, float64) {
	y := 1 / math.Sqrt(x)
	if x+ex < -vanishing(dt) {
		return y, 0 // the root of a negative number is no number on any machine
	}
	if !(x > ex) || math.IsInf(x, 1) {
		return tensor.Round(dt, y), inf
	}
	top := 1 / math.Sqrt(x-ex)
	return finish(dt, y, top-y+steps(dt)*top)
}

// silu is the rule of x·σ(x). Its slope is within ±1.1. Where exp(-x) overflows,
// a machine may find 0 for what is a little more than nothing.
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

// gelu is the rule of x·Φ(x).
func gelu(dt ir.DType, x, ex float64) (float64, float64) {
	return normal(dt, x, ex, 0.5*x*math.Erfc(-x/math.Sqrt2))
}

// normal is the rule of the two forms of gelu, given the value y. Their slopes are within ±1.13. A machine finds 1+erf
// or 1+tanh with an absolute error of a few units of its arithmetic, then multiplies by
// x/2, so that the error is relative to x even where the result is tiny. Far
// out, 1-Φ(16) = 6e-58 is lost in every arithmetic below f64: the result is x or 0.
func normal(dt ir.DType, x, ex, y float64) (float64, float64) {
	const units, saturated = 16, 16
	switch {
	case x == 0 && ex == 0:
		return x, 0
	case ex == 0 && x >= saturated && dt != ir.F64:
		return x, 0
	case ex == 0 && x <= -saturated && dt != ir.F64 && !math.IsInf(x, 0): // of -∞ machines make NaN
		return 0, 0
	case x != x || math.IsInf(x, 0):
		return tensor.Round(dt, x*0.5*(1+math.Erf(x/math.Sqrt2))), inf
	}
	return finish(dt, y, 1.13*ex+units*unit(dt.Accum())*(math.Abs(x)+ex))
}

// selected bounds what max, min and relu give: they return one of their
// operands, or zero, so errors pass through. Machines differ on NaN.
func selected(y, e float64) float64 {
	if y != y {
		return inf
	}
	return e
}

// softplus is the rule of log(1+exp(x)). Its slope is within 0 and 1.
func softplus(dt ir.DType, x, ex float64) (float64, float64) {
	y := math.Log1p(math.Exp(x))
	if x > 0 {
		y = x + math.Log1p(math.Exp(-x))
	}
	return finish(dt, y, ex+steps(dt)*(y+ex)+vanishing(dt))
}

// clamped is the rule of clamp: rounding is monotone, so the result is x between the rounded bounds.
func clamped(dt ir.DType, x, ex, lo, hi float64) (y, e float64) {
	lo, elo := single(dt, lo)
	hi, ehi := single(dt, hi)
	y = min(max(x, lo), hi)
	return y, selected(y, ex+elo+ehi)
}

// wrap takes an integer result to its type as two's complement does.
func wrap(dt ir.DType, v int64) int64 {
	if dt == ir.I32 {
		return int64(int32(v))
	}
	return v
}

// integer is the rule of integer arithmetic: exact, wrapping, unless an
// operand was not exact; then a machine may wrap where the evaluator does not.
func integer(dt ir.DType, y int64, pre float64) (int64, float64) {
	y = wrap(dt, y)
	if pre != 0 && !(math.Abs(float64(y))+pre < holdsIntegers(dt)) {
		pre = inf
	}
	return y, pre
}
