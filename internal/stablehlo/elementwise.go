package stablehlo

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// unaryOps holds the operations with one operand. t is the type of the result.
var unaryOps map[string]func(b *builder, x tens, t typ) tens

// binaryOps holds the operations with two operands. t is the type of the result.
var binaryOps map[string]func(b *builder, x, y tens, t typ) tens

func init() {
	simple := func(op graph.Op) func(*builder, tens, typ) tens {
		return func(b *builder, x tens, t typ) tens { return b.elementwise(op, t.dt, x) }
	}
	floats := func(op graph.Op) func(*builder, tens, typ) tens {
		return func(b *builder, x tens, t typ) tens {
			b.float(x)
			return b.elementwise(op, t.dt, x)
		}
	}
	unaryOps = map[string]func(*builder, tens, typ) tens{
		"negate": simple(graph.Neg), "abs": simple(graph.Abs), "exponential": floats(graph.Exp),
		"log": floats(graph.Log), "sine": floats(graph.Sin), "cosine": floats(graph.Cos), "tanh": floats(graph.Tanh),
		"sqrt": floats(graph.Sqrt), "rsqrt": floats(graph.Rsqrt), "logistic": floats(graph.Sigmoid),
		"floor": floats(graph.Floor), "erf": floats(graph.Erf),
		"convert": (*builder).convert, "not": (*builder).not, "sign": (*builder).sign, "ceil": (*builder).ceil,
		"exponential_minus_one": (*builder).expm1, "log_plus_one": (*builder).log1p, "erfc": (*builder).erfc,
		"square": (*builder).square, "is_finite": (*builder).isFinite, "cbrt": (*builder).cbrt, "tan": (*builder).tan,
		"round_nearest_even": (*builder).roundEven, "round_nearest_afz": (*builder).roundAway,
		"sinh": (*builder).sinh, "cosh": (*builder).cosh, "is_inf": (*builder).isInf,
	}
	pair := func(op graph.Op) func(*builder, tens, tens, typ) tens {
		return func(b *builder, x, y tens, t typ) tens { return b.elementwise(op, t.dt, x, y) }
	}
	binaryOps = map[string]func(*builder, tens, tens, typ) tens{
		"subtract": pair(graph.Sub), "add": (*builder).sum, "multiply": (*builder).multiply,
		"divide": (*builder).divide, "maximum": (*builder).maximum, "minimum": (*builder).minimum,
		"remainder": (*builder).remainder, "power": (*builder).power, "compare": (*builder).compare,
		"and": (*builder).and, "or": (*builder).or, "xor": (*builder).xor,
	}
}

// float reports an error for operands that are not floating-point numbers.
func (b *nodes) float(x tens) {
	if !x.t.dt.IsFloat() {
		b.refuse("an operand of type %s", x.t)
	}
}

// like returns the number c with the element type of x.
func (b *nodes) like(x tens, c float64) tens { return b.scalar(x.t.dt, c) }

// arithmetic builds elementwise operations.
type arithmetic struct {
	nodes
}

// arith adds an operation on two operands whose result has their type.
func (b *arithmetic) arith(op graph.Op, x, y tens) tens { return b.elementwise(op, x.t.dt, x, y) }

func (b *arithmetic) unary(op graph.Op, x tens) tens { return b.elementwise(op, x.t.dt, x) }

// where adds an elementwise selection between x and y.
func (b *arithmetic) where(is, x, y tens) tens { return b.elementwise(graph.Where, x.t.dt, is, x, y) }

// is adds a comparison.
func (b *arithmetic) is(op graph.Op, x, y tens) tens { return b.elementwise(op, graph.Bool, x, y) }

func (b *arithmetic) convert(x tens, t typ) tens {
	switch {
	case x.t.dt == t.dt:
		return x
	case t.dt == graph.Bool:
		return b.is(graph.Ne, x, b.like(x, 0))
	case x.t.dt.IsFloat() && !t.dt.IsFloat() && b.known(x) == nil: // towards 0
		down := b.unary(graph.Floor, x)
		x = b.where(b.is(graph.Lt, x, b.like(x, 0)), b.ceil(x, t), down)
	}
	return b.elementwise(graph.Cast, t.dt, x)
}

// bools reports an error for operands that are not bools, because bitwise operations on integers are not supported.
func (b *nodes) bools(in ...tens) {
	for _, x := range in {
		if x.t.dt != graph.Bool {
			b.refuse("of the bits of %s", x.t)
		}
	}
}

func (b *arithmetic) not(x tens, _ typ) tens {
	b.bools(x)
	return b.elementwise(graph.Not, graph.Bool, x)
}

func (b *arithmetic) and(x, y tens, _ typ) tens {
	b.bools(x, y)
	if c, ok := b.uniform(x); ok && c != 0 && len(y.v.Shape) >= len(x.v.Shape) {
		return y
	}
	if c, ok := b.uniform(y); ok && c != 0 && len(x.v.Shape) >= len(y.v.Shape) {
		return x
	}
	return b.is(graph.And, x, y)
}

func (b *arithmetic) or(x, y tens, _ typ) tens {
	b.bools(x, y)
	return b.is(graph.Or, x, y)
}

func (b *arithmetic) xor(x, y tens, _ typ) tens {
	b.bools(x, y)
	return b.is(graph.Ne, x, y)
}

func (b *arithmetic) sum(x, y tens, t typ) tens {
	if t.dt == graph.Bool {
		return b.is(graph.Or, x, y)
	}
	return b.arith(graph.AddOp, x, y)
}

func (b *arithmetic) multiply(x, y tens, t typ) tens {
	if t.dt == graph.Bool {
		return b.is(graph.And, x, y)
	}
	for range 2 { // x·σ(x)
		if s := y.v.Made(graph.Sigmoid); s != nil && s.In[0] == x.v {
			return b.elementwise(graph.SiLU, t.dt, x)
		}
		x, y = y, x
	}
	return b.arith(graph.Mul, x, y)
}

func (b *arithmetic) maximum(x, y tens, t typ) tens {
	if t.dt == graph.Bool {
		return b.is(graph.Or, x, y)
	}
	for range 2 {
		if c, ok := b.uniform(x); ok && math.IsInf(c, -1) {
			return y
		}
		x, y = y, x
	}
	return b.arith(graph.Max, x, y)
}

func (b *arithmetic) minimum(x, y tens, t typ) tens {
	if t.dt == graph.Bool {
		return b.is(graph.And, x, y)
	}
	return b.arith(graph.Min, x, y)
}

// divide adds a division. The division of integers rounds towards zero.
func (b *arithmetic) divide(x, y tens, t typ) tens {
	if !t.dt.IsFloat() {
		return b.quotient(x, y, t)
	}
	if c, ok := b.uniform(x); ok && c == 1 { // 1 / (1 + exp(-z))
		if z := negated(b, y.v); z != nil {
			return b.retyped(tens{v: b.add(graph.Sigmoid, graph.Attrs{}, t.dt, z), lifted: y.lifted}, y.t)
		}
	}
	if v := b.softmax(x, y); v != nil {
		return tens{v: v, t: x.t, lifted: x.lifted}
	}
	return b.arith(graph.Div, x, y)
}

// quotient divides integers and rounds towards zero. Integers of 32 bits are exact in f64, and so is their quotient
// after its fraction has been removed.
func (b *arithmetic) quotient(x, y tens, t typ) tens {
	if t.dt != graph.I32 || t.narrow != "" {
		b.integers(x, y)
	}
	wide := func(x tens) tens { return b.elementwise(graph.Cast, graph.F64, x) }
	return b.convert(b.elementwise(graph.Div, graph.F64, wide(x), wide(y)), typ{dt: t.dt})
}

// negated returns the value z such that v is 1 + exp(-z).
func negated(b *arithmetic, v *graph.Value) *graph.Value {
	n := v.Made(graph.AddOp)
	if n == nil {
		return nil
	}
	for i, e := range n.In {
		one := n.In[1-i]
		if c, ok := b.uniform(tens{v: one}); !ok || c != 1 {
			continue
		}
		if exp := e.Made(graph.Exp); exp != nil {
			if neg := exp.In[0].Made(graph.Neg); neg != nil {
				return neg.In[0]
			}
		}
	}
	return nil
}

// softmax returns the softmax of z if x is exp(z - m) and y is the sum of x along a dimension, for any m that is
// constant along that dimension.
func (b *nodes) softmax(x, y tens) *graph.Value {
	exp := x.v.Made(graph.Exp)
	v := y.v
	for v.Made(graph.Reshape) != nil {
		v = v.Node.In[0]
	}
	sum := v.Made(graph.SumOp)
	if exp == nil || sum == nil || sum.In[0] != x.v || len(sum.Attrs.Axes) != 1 || x.v.DType != v.DType {
		return nil
	}
	sub := exp.In[0].Made(graph.Sub)
	along := int(sum.Attrs.Axes[0])
	kept := slices.Clone(x.v.Shape)
	kept[along] = 1
	if sub == nil || !slices.Equal(ending(y.v.Shape), ending(kept)) ||
		!slices.Equal(ending(sub.In[1].Shape), ending(kept)) ||
		!slices.Equal(sub.In[0].Shape, x.v.Shape) {
		return nil
	}
	return b.add(graph.Softmax, graph.Attrs{Axis: along}, x.v.DType, sub.In[0])
}

// ending returns a shape without its leading extents of 1.
func ending(shape []int64) []int64 {
	for len(shape) > 0 && shape[0] == 1 {
		shape = shape[1:]
	}
	return shape
}

// integers reports an error for integers that depend on the input. It is used for operations that hocket's language
// does not support on integers, so that they must be computed in advance.
func (b *nodes) integers(in ...tens) {
	for _, x := range in {
		if b.known(x) == nil {
			b.refuse("an operand of type %s that depends on the input", x.t)
		}
	}
}

func (b *arithmetic) remainder(x, y tens, t typ) tens {
	var q tens
	if !t.dt.IsFloat() {
		q = b.quotient(x, y, t)
	} else {
		q = b.arith(graph.Div, x, y)
		q = b.arith(graph.Mul, b.sign(q, t), b.unary(graph.Floor, b.unary(graph.Abs, q)))
	}
	return b.arith(graph.Sub, x, b.arith(graph.Mul, q, y))
}

func (b *arithmetic) power(x, y tens, t typ) tens {
	if !t.dt.IsFloat() {
		b.integers(x, y)
		return b.arith(graph.Pow, x, y)
	}
	if c, ok := b.uniform(y); ok {
		return b.arith(graph.Pow, x, b.like(y, c))
	}
	if c, ok := b.uniform(x); ok && c > 0 {
		return b.arith(graph.Pow, b.like(x, c), y)
	}
	// The power is exp(y·log|x|), with the sign of x if y is odd. The power is NaN if x is negative and y has a
	// fraction.
	zero, one, half := b.like(x, 0), b.like(x, 1), b.like(y, 0.5)
	ones := b.stretched(one, t.shape)
	p := b.unary(graph.Exp, b.arith(graph.Mul, y, b.unary(graph.Log, b.unary(graph.Abs, x))))
	odd := b.is(graph.Ne, b.unary(graph.Floor, b.arith(graph.Mul, y, half)), b.arith(graph.Mul, y, half))
	signed := b.where(odd, b.unary(graph.Neg, p), p)
	whole := b.is(graph.Eq, b.unary(graph.Floor, y), y)
	signed = b.where(whole, signed, b.stretched(b.like(x, math.NaN()), t.shape))
	p = b.where(b.is(graph.Lt, x, zero), signed, p)
	same := b.is(graph.Or, b.is(graph.Eq, y, zero), b.is(graph.Eq, x, one))
	return b.where(same, ones, p)
}

var directions = map[string]graph.Op{"EQ": graph.Eq, "NE": graph.Ne, "LT": graph.Lt, "LE": graph.Le, "GT": graph.Gt,
	"GE": graph.Ge}

func (b *arithmetic) compare(x, y tens, _ typ) tens {
	if x.t.dt != y.t.dt {
		b.wrong("operands are of types %s and %s", x.t, y.t)
	}
	return b.is(directions[b.direction()], x, y)
}

// direction returns the direction of a comparison.
func (b *nodes) direction() string {
	list := b.op.words
	if a := b.op.attrs["comparison_direction"]; a != nil {
		list = append(a.words, a.text)
	}
	for _, w := range list {
		if directions[w] != "" {
			return w
		}
	}
	b.wrong("it has no direction")
	return ""
}

func (b *arithmetic) sign(x tens, _ typ) tens {
	zero := b.like(x, 0)
	minus := b.where(b.is(graph.Lt, x, zero), b.stretched(b.like(x, -1), x.t.shape), x)
	return b.where(b.is(graph.Gt, x, zero), b.stretched(b.like(x, 1), x.t.shape), minus)
}

func (b *arithmetic) ceil(x tens, _ typ) tens {
	b.float(x)
	return b.unary(graph.Neg, b.unary(graph.Floor, b.unary(graph.Neg, x)))
}

// expm1 computes exp(x) - 1 as tanh(x/2)·(exp(x) + 1), which is accurate near 0.
func (b *arithmetic) expm1(x tens, _ typ) tens {
	b.float(x)
	half := b.unary(graph.Tanh, b.arith(graph.Mul, x, b.like(x, 0.5)))
	return b.arith(graph.Mul, half, b.arith(graph.AddOp, b.unary(graph.Exp, x), b.like(x, 1)))
}

// log1p computes log(1 + x) as log(u)·x/(u-1) for u = 1 + x, which is accurate near 0.
func (b *arithmetic) log1p(x tens, _ typ) tens {
	b.float(x)
	one := b.like(x, 1)
	u := b.arith(graph.AddOp, x, one)
	far := b.unary(graph.Log, u)
	d := b.arith(graph.Sub, u, one)
	small := b.is(graph.Lt, b.unary(graph.Abs, x), b.like(x, 0.5))
	none := b.is(graph.Eq, d, b.like(x, 0))
	d = b.where(none, b.stretched(one, x.t.shape), d)
	near := b.where(none, x, b.arith(graph.Div, b.arith(graph.Mul, far, x), d))
	return b.where(small, near, far)
}

func (b *arithmetic) erfc(x tens, _ typ) tens {
	b.float(x)
	return b.arith(graph.Sub, b.stretched(b.like(x, 1), x.t.shape), b.unary(graph.Erf, x))
}

func (b *arithmetic) square(x tens, _ typ) tens { return b.arith(graph.Mul, x, x) }

func (b *arithmetic) isFinite(x tens, _ typ) tens {
	b.float(x)
	return b.is(graph.Lt, b.unary(graph.Abs, x), b.like(x, math.Inf(1)))
}

func (b *arithmetic) isInf(x tens, _ typ) tens {
	b.float(x)
	return b.is(graph.Eq, b.unary(graph.Abs, x), b.like(x, math.Inf(1)))
}

func (b *arithmetic) cbrt(x tens, t typ) tens {
	b.float(x)
	root := b.unary(graph.Exp, b.arith(graph.Mul, b.unary(graph.Log, b.unary(graph.Abs, x)), b.like(x, 1.0/3)))
	return b.arith(graph.Mul, b.sign(x, t), root)
}

func (b *arithmetic) tan(x tens, _ typ) tens {
	b.float(x)
	return b.arith(graph.Div, b.unary(graph.Sin, x), b.unary(graph.Cos, x))
}

func (b *arithmetic) sinh(x tens, t typ) tens {
	y := b.arith(graph.Sub, b.expm1(x, t), b.expm1(b.unary(graph.Neg, x), t))
	return b.arith(graph.Mul, y, b.like(x, 0.5))
}

func (b *arithmetic) cosh(x tens, _ typ) tens {
	b.float(x)
	y := b.arith(graph.AddOp, b.unary(graph.Exp, x), b.unary(graph.Exp, b.unary(graph.Neg, x)))
	return b.arith(graph.Mul, y, b.like(x, 0.5))
}

// roundEven rounds to the nearest integer, and ties to the even one.
func (b *arithmetic) roundEven(x tens, _ typ) tens {
	b.float(x)
	r := b.unary(graph.Floor, x)
	d := b.arith(graph.Sub, x, r)
	next := b.arith(graph.AddOp, r, b.like(x, 1))
	half := b.like(x, 0.5)
	even := b.arith(graph.Mul, b.unary(graph.Floor, b.arith(graph.Mul, next, half)), b.like(x, 2))
	return b.where(b.is(graph.Gt, d, half), next, b.where(b.is(graph.Lt, d, half), r, even))
}

// roundAway rounds to the nearest integer, and ties away from 0.
func (b *arithmetic) roundAway(x tens, t typ) tens {
	b.float(x)
	a := b.unary(graph.Abs, x)
	r := b.unary(graph.Floor, a)
	next := b.arith(graph.AddOp, r, b.like(x, 1))
	r = b.where(b.is(graph.Ge, b.arith(graph.Sub, a, r), b.like(x, 0.5)), next, r)
	return b.arith(graph.Mul, r, b.sign(x, t))
}

// reducePrecision rounds to another type and converts back. Graphs must support that type.
func (b *arithmetic) reducePrecision(in []tens) tens {
	x := in[0]
	b.float(x)
	format := strings.Join(b.op.words, " ")
	if a := b.op.attrs["format"]; a != nil {
		format = a.text
	}
	if e, m := b.op.attrs["exponent_bits"], b.op.attrs["mantissa_bits"]; e != nil && m != nil {
		format = fmt.Sprintf("e%vm%v", e.number, m.number)
	}
	dt := map[string]graph.DType{"e8m7": graph.BF16, "e5m10": graph.F16, "e8m23": graph.F32,
		"e11m52": graph.F64}[format]
	if dt == "" {
		b.refuse("rounding to format %q", format)
	}
	return b.elementwise(graph.Cast, x.t.dt, b.elementwise(graph.Cast, dt, x))
}
