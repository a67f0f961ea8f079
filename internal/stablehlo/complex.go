package stablehlo

import (
	"slices"

	"hocket.example/hocket/internal/graph"
)

// A complex value is represented by two real values: v holds the real parts, and im the imaginary parts. Operations
// that move elements are translated once for each part.

// linear lists the operations that treat the real parts and the imaginary parts in the same way.
var linear = map[string]bool{
	"negate": true, "add": true, "subtract": true, "constant": true, "iota": true, "broadcast_in_dim": true,
	"reshape": true, "transpose": true, "slice": true, "concatenate": true, "pad": true, "reverse": true, "select": true,
	"dynamic_slice": true, "dynamic_update_slice": true, "gather": true, "optimization_barrier": true, "reduce": true,
	"scatter": true, "sdy.sharding_constraint": true, "sdy.reshard": true,
}

// complexOps holds the operations on complex values with a complex result.
var complexOps = map[string]func(b *builder, z ...tens) tens{
	"multiply":              func(b *builder, z ...tens) tens { return b.cMul(z[0], z[1]) },
	"divide":                func(b *builder, z ...tens) tens { return b.cDiv(z[0], z[1]) },
	"exponential":           func(b *builder, z ...tens) tens { return b.cExp(z[0]) },
	"exponential_minus_one": func(b *builder, z ...tens) tens { return b.cExpm1(z[0]) },
	"sine":                  func(b *builder, z ...tens) tens { return b.cSin(z[0]) },
	"cosine":                func(b *builder, z ...tens) tens { return b.cCos(z[0]) },
	"tanh":                  func(b *builder, z ...tens) tens { return b.cTanh(z[0]) },
	"sqrt":                  func(b *builder, z ...tens) tens { return b.cSqrt(z[0]) },
	"rsqrt":                 func(b *builder, z ...tens) tens { return b.cDiv(b.cOne(z[0]), b.cSqrt(z[0])) },
	"sign":                  func(b *builder, z ...tens) tens { return b.cSign(z[0]) },
	"logistic": func(b *builder, z ...tens) tens {
		e := b.cExp(b.paired(b.unary(graph.Neg, z[0].re()), b.unary(graph.Neg, z[0].imag())))
		one := b.cOne(z[0])
		return b.cDiv(one, b.paired(b.arith(graph.AddOp, e.re(), one.re()), e.imag()))
	},
}

func (x tens) re() tens {
	x.im, x.t.complex = nil, false
	return x
}

func (x tens) imag() tens {
	x.v = x.im
	return x.re()
}

// complexes builds operations on complex numbers.
type complexes struct {
	indexing
}

// paired returns the complex value with the given real and imaginary parts, which have the same type.
func (b *complexes) paired(re, im tens) tens {
	if re.lifted != im.lifted {
		re, im = b.lifts(re), b.lifts(im)
	}
	t := re.t
	if len(im.t.shape) > len(t.shape) {
		t = im.t
	}
	return tens{v: b.stretched(re, t.shape).v, im: b.stretched(im, t.shape).v, lifted: re.lifted,
		t: typ{dt: t.dt, shape: t.shape, complex: true}}
}

// lifts returns x with an additional dimension for the devices.
func (b *complexes) lifts(x tens) tens {
	if x.lifted {
		return x
	}
	return tens{v: b.padded(x, true), t: x.t, lifted: true}
}

// ofComplex translates an operation that has complex operands or results.
func (b *builder) ofComplex(o *op, name string, in []tens, s *scope) []tens {
	complexes := func(n int) {
		b.want(in, n)
		for _, x := range in {
			if !x.t.complex {
				b.wrong("an operand is of type %s", x.t)
			}
		}
	}
	switch name {
	case "complex":
		b.want(in, 2)
		return []tens{b.paired(in[0], in[1])}
	case "real", "imag":
		b.want(in, 1)
		switch x := in[0]; {
		case !x.t.complex && name == "real":
			return in
		case !x.t.complex:
			return []tens{b.stretched(b.like(x, 0), x.t.shape)}
		case name == "real":
			return []tens{x.re()}
		default:
			return []tens{x.imag()}
		}
	case "abs":
		complexes(1)
		return []tens{b.cAbs(in[0])}
	case "convert":
		b.want(in, 1)
		return []tens{b.cConvert(in[0], b.result())}
	case "compare":
		complexes(2)
		re, im := b.compare(in[0].re(), in[1].re(), typ{}), b.compare(in[0].imag(), in[1].imag(), typ{})
		switch b.direction() {
		case "EQ":
			return []tens{b.is(graph.And, re, im)}
		case "NE":
			return []tens{b.is(graph.Or, re, im)}
		}
	case "dot_general":
		complexes(2)
		x, y := in[0], in[1]
		dot := func(x, y tens) tens { return b.part(o, name, false, []tens{x, y}, s)[0] }
		return []tens{b.paired(b.arith(graph.Sub, dot(x.re(), y.re()), dot(x.imag(), y.imag())),
			b.arith(graph.AddOp, dot(x.re(), y.imag()), dot(x.imag(), y.re())))}
	}
	if f := complexOps[name]; f != nil {
		complexes(len(in))
		return []tens{f(b, in...)}
	}
	if !linear[name] {
		b.refuse("an operation on complex numbers")
	}
	if name == "reduce" || name == "scatter" {
		if how := bodyOp(o.region(&b.nodes, 0), 0, len(in)/2); how != "add" && how != "" || len(in) != 2 && len(in) != 3 {
			b.refuse("a reduction of complex numbers that is not a sum")
		}
	}
	re, im := b.part(o, name, false, in, s), b.part(o, name, true, in, s)
	var out []tens
	for i := range re {
		out = append(out, b.paired(re[i], im[i]))
	}
	return out
}

// part translates an operation for the real parts or for the imaginary parts.
func (b *builder) part(o *op, name string, imag bool, in []tens, s *scope) []tens {
	real := *o
	real.types = slices.Clone(o.types)
	for i := range real.types {
		real.types[i].complex = false
	}
	list := make([]tens, len(in))
	for i, x := range in {
		switch {
		case !x.t.complex:
			list[i] = x
		case imag:
			list[i] = x.imag()
		default:
			list[i] = x.re()
		}
	}
	defer func() { b.op = o }()
	b.op = &real
	switch a := real.attrs["value"]; {
	case name == "constant" && a != nil && a.dense != nil:
		d := *a.dense
		d.t.complex = false
		if imag {
			d.elems = d.imag
		}
		d.imag = nil
		return []tens{b.constantOf(&d)}
	case name == "iota" && imag:
		return []tens{b.stretched(b.scalar(real.types[0].dt, 0), real.types[0].shape)}
	}
	return b.walk(&real, list, s)
}

func (b *complexes) cOne(z tens) tens { return b.paired(b.like(z.re(), 1), b.like(z.re(), 0)) }

func (b *complexes) cMul(x, y tens) tens {
	a, c, d, e := x.re(), x.imag(), y.re(), y.imag()
	return b.paired(b.arith(graph.Sub, b.arith(graph.Mul, a, d), b.arith(graph.Mul, c, e)),
		b.arith(graph.AddOp, b.arith(graph.Mul, a, e), b.arith(graph.Mul, c, d)))
}

// cDiv returns x times the conjugate of y, divided by the square of the absolute value of y.
func (b *complexes) cDiv(x, y tens) tens {
	c, d := y.re(), y.imag()
	n := b.arith(graph.AddOp, b.square(c, c.t), b.square(d, d.t))
	z := b.cMul(x, b.paired(c, b.unary(graph.Neg, d)))
	return b.paired(b.arith(graph.Div, z.re(), n), b.arith(graph.Div, z.imag(), n))
}

// cAbs returns max·sqrt(1 + (min/max)²) of the absolute values of the parts. The squares of the parts themselves could
// overflow or underflow.
func (b *complexes) cAbs(z tens) tens {
	x, y := b.unary(graph.Abs, z.re()), b.unary(graph.Abs, z.imag())
	most, least := b.arith(graph.Max, x, y), b.arith(graph.Min, x, y)
	none := b.is(graph.Eq, most, b.like(most, 0))
	q := b.arith(graph.Div, least, b.where(none, b.stretched(b.like(most, 1), most.t.shape), most))
	return b.arith(graph.Mul, most, b.unary(graph.Sqrt, b.arith(graph.AddOp, b.square(q, q.t), b.like(q, 1))))
}

func (b *complexes) cExp(z tens) tens {
	e := b.unary(graph.Exp, z.re())
	return b.paired(b.arith(graph.Mul, e, b.unary(graph.Cos, z.imag())),
		b.arith(graph.Mul, e, b.unary(graph.Sin, z.imag())))
}

// cExpm1 returns exp(z) - 1. It computes the real part as expm1(x)·cos(y) - 2·sin(y/2)², which is accurate near 0.
func (b *complexes) cExpm1(z tens) tens {
	x, y := z.re(), z.imag()
	half := b.unary(graph.Sin, b.arith(graph.Mul, y, b.like(y, 0.5)))
	re := b.arith(graph.Sub, b.arith(graph.Mul, b.expm1(x, x.t), b.unary(graph.Cos, y)),
		b.arith(graph.Mul, b.square(half, half.t), b.like(half, 2)))
	return b.paired(re, b.cExp(z).imag())
}

func (b *complexes) cSin(z tens) tens {
	x, y := z.re(), z.imag()
	return b.paired(b.arith(graph.Mul, b.unary(graph.Sin, x), b.cosh(y, y.t)),
		b.arith(graph.Mul, b.unary(graph.Cos, x), b.sinh(y, y.t)))
}

func (b *complexes) cCos(z tens) tens {
	x, y := z.re(), z.imag()
	return b.paired(b.arith(graph.Mul, b.unary(graph.Cos, x), b.cosh(y, y.t)),
		b.unary(graph.Neg, b.arith(graph.Mul, b.unary(graph.Sin, x), b.sinh(y, y.t))))
}

// cTanh returns (t + iu)/(1 + itu) for t = tanh(x) and u = tan(y).
func (b *complexes) cTanh(z tens) tens {
	t, u := b.unary(graph.Tanh, z.re()), b.tan(z.imag(), z.imag().t)
	one := b.like(t, 1)
	return b.cDiv(b.paired(t, u), b.paired(b.stretched(one, t.t.shape), b.arith(graph.Mul, t, u)))
}

// cSqrt returns the square root with the parts r = sqrt((|z| + |x|)/2) and |y|/2r. The larger of them is the real part
// if x is not negative.
func (b *complexes) cSqrt(z tens) tens {
	x, y := z.re(), z.imag()
	zero := b.like(x, 0)
	r := b.unary(graph.Sqrt, b.arith(graph.Mul, b.arith(graph.AddOp, b.cAbs(z), b.unary(graph.Abs, x)), b.like(x, 0.5)))
	none := b.is(graph.Eq, r, zero)
	twice := b.where(none, b.stretched(b.like(r, 1), r.t.shape), b.arith(graph.Mul, r, b.like(r, 2)))
	q := b.arith(graph.Div, b.unary(graph.Abs, y), twice)
	right := b.is(graph.Ge, x, zero)
	im := b.where(right, q, r)
	return b.paired(b.where(right, r, q), b.where(b.is(graph.Lt, y, zero), b.unary(graph.Neg, im), im))
}

// cSign returns z/|z|, or 0 for 0.
func (b *complexes) cSign(z tens) tens {
	r := b.cAbs(z)
	r = b.where(b.is(graph.Eq, r, b.like(r, 0)), b.stretched(b.like(r, 1), r.t.shape), r)
	return b.paired(b.arith(graph.Div, z.re(), r), b.arith(graph.Div, z.imag(), r))
}

func (b *complexes) cConvert(x tens, t typ) tens {
	real := typ{dt: t.dt, shape: t.shape, narrow: t.narrow}
	switch {
	case !t.complex:
		return b.convert(x.re(), real)
	case x.t.complex:
		return b.paired(b.convert(x.re(), real), b.convert(x.imag(), real))
	}
	return b.paired(b.convert(x, real), b.stretched(b.scalar(t.dt, 0), t.shape))
}
