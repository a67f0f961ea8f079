package eval

import (
	"math"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// This file holds the rules for functions of one operand. The comment at the top of number.go explains rules.

// tanh applies the rule of the hyperbolic tangent, whose slope is between 0 and 1.
func tanh(dt ir.DType, x, ex float64) (float64, float64) {
	if x == 0 && ex == 0 {
		return x, 0
	}
	return sloped(dt, math.Tanh(x), ex)
}

// sloped applies the rule of a function that machines compute with an error of a few units in the last place. The
// argument y is the value of the function, and pre is the error of y that results from the error of the operand.
func sloped(dt ir.DType, y, pre float64) (float64, float64) {
	return finish(dt, y, pre+steps(dt)*(math.Abs(y)+pre)+vanishing(dt))
}

// geluTanh applies the rule of the tanh form of gelu. geluTanh uses the same bounds as gelu, since 1-σ(2u(16)) =
// 7e-139.
func geluTanh(dt ir.DType, x, ex float64) (float64, float64) {
	return normal(dt, x, ex, x/(1+math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x))))
}

// sigmoid applies the rule of 1/(1+exp(-x)), whose slope is between 0 and 1/4.
func sigmoid(dt ir.DType, x, ex float64) (float64, float64) {
	return sloped(dt, 1/(1+math.Exp(-x)), ex/4)
}

// root applies the rule of √x. If the type represents the root exactly, the result is certified, since machines
// round roots correctly.
func root(dt ir.DType, x, ex float64) (float64, float64) {
	y := math.Sqrt(x)
	switch {
	case x+ex < -vanishing(dt):
		return y, 0 // the root of a negative number is NaN on every machine
	case ex == 0 && y*y == x && math.FMA(y, y, -x) == 0 && tensor.Round(dt, y) == y:
		return y, 0
	case !(x > ex):
		return tensor.Round(dt, y), inf
	}
	return sloped(dt, y, ex/(y+math.Sqrt(x-ex)))
}

// sine applies the rule of sin.
func sine(dt ir.DType, x, ex float64) (float64, float64) { return wave(dt, math.Sin(x), x, ex) }

// wave applies the rule of sin and cos of x, where y is the value of the function. The slope of both functions is
// within ±1. Machines compute the distance of x to the next multiple of π/2 correctly to the last digit. The
// evaluator itself loses about 2^-100 of x.
func wave(dt ir.DType, y, x, ex float64) (float64, float64) {
	if x == 0 && ex == 0 {
		return y, 0
	}
	return sloped(dt, y, ex+0x1p-98*math.Abs(x))
}

// cosine applies the rule of cos.
func cosine(dt ir.DType, x, ex float64) (float64, float64) { return wave(dt, math.Cos(x), x, ex) }

// erf applies the rule of the error function, whose slope is between 0 and 2/√π.
func erf(dt ir.DType, x, ex float64) (float64, float64) {
	if x == 0 && ex == 0 {
		return x, 0
	}
	return sloped(dt, math.Erf(x), 2/math.SqrtPi*ex)
}

// logarithm applies the rule of log. The slope is steepest at the lower end of the interval in which x may lie.
func logarithm(dt ir.DType, x, ex float64) (float64, float64) {
	y := math.Log(x)
	switch {
	case x+ex < -vanishing(dt):
		return y, 0 // the logarithm of a negative number is NaN on every machine
	case x == 1 && ex == 0:
		return 0, 0
	case !(x > ex):
		return tensor.Round(dt, y), inf
	}
	return sloped(dt, y, -math.Log1p(-ex/x))
}

// floor applies the rule of floor, which is exact. If the error of x reaches a whole number, the result may be off by
// 1.
func floor(x, ex float64) (y, e float64) {
	y = math.Floor(x)
	if ex == 0 {
		return y, 0
	}
	return y, selected(y, max(y-math.Floor(x-ex), math.Floor(x+ex)-y))
}

// power applies the rule of x raised to the exponent by. On either side of zero, the function is monotonic in the
// magnitude of x.
func power(dt ir.DType, x, ex, by float64) (float64, float64) {
	y, eby := math.Pow(x, by), constantError(dt, by)
	whole := by == math.Trunc(by) && eby == 0
	switch {
	case ex == 0 && (x == 1 || x == 0 && by > 0) || by == 0:
		return y, 0
	case !whole && x+ex < -vanishing(dt):
		return y, 0 // NaN on every machine
	case !(math.Abs(x) > ex) && !(whole && by > 0):
		return tensor.Round(dt, y), inf
	}
	lo, hi := math.Pow(max(math.Abs(x)-ex, 0), by), math.Pow(math.Abs(x)+ex, by)
	pre := max(math.Abs(lo-math.Abs(y)), math.Abs(hi-math.Abs(y)))
	if !(math.Abs(x) > ex) { // the sign of x may differ between machines
		pre = math.Abs(y) + hi
	}
	if eby != 0 {
		farthest := max(math.Abs(math.Log(math.Abs(x)-ex)), math.Abs(math.Log(math.Abs(x)+ex)))
		pre += max(lo, hi) * math.Expm1(farthest*eby)
	}
	return sloped(dt, y, pre)
}

// compared applies the rule of comparing a and b, where pre is the sum of their errors. The result is certain if a and
// b differ by more than pre. Machines may treat numbers whose magnitude is at most tiny as zero.
func compared(op ir.Op, a, b, pre, tiny float64) (y, e float64) {
	if holds(op, a < b, a == b) {
		y = 1
	}
	if a == b && pre == 0 || math.Abs(a-b) > pre+tiny {
		return y, 0
	}
	return y, 1
}

// comparedInt returns the result of comparing two integers: 1 or 0.
func comparedInt(op ir.Op, a, b int64) int64 {
	if holds(op, a < b, a == b) {
		return 1
	}
	return 0
}

// holds reports whether the comparison op is true for two numbers, given whether the first is less than the second and
// whether they are equal.
func holds(op ir.Op, less, equal bool) bool {
	switch op {
	case ir.OpLess:
		return less
	case ir.OpLessEqual:
		return less || equal
	case ir.OpGreater:
		return !less && !equal
	case ir.OpGreaterEqual:
		return !less
	case ir.OpEqual:
		return equal
	}
	return !equal
}

// chosen applies the rule of where: the result is a if the mask is not zero, and b otherwise. If the mask may or may
// not be zero, the result may be either, and the bound covers both.
func chosen(mask, emask, a, ea, b, eb float64) (y, e float64) {
	other, eother := b, eb
	if y, e = a, ea; mask == 0 {
		y, e, other, eother = b, eb, a, ea
	}
	if mask != mask || emask != 0 && !(math.Abs(mask) > emask) {
		e = max(e, eother+math.Abs(other-y))
	}
	if e != e {
		return y, inf
	}
	return y, e
}
