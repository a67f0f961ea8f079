package torchexport

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/graph"
)

// scalar returns a number as an operand of an operation whose other operand is a tensor of type dt. The returned
// operand has type dt, with two exceptions: if dt is not a floating-point type and the number is not an integer,
// its type is f32; otherwise, if dt is bool, its type is i64.
func (c *call) scalar(name string, dt graph.DType) *graph.Value {
	x := c.number(name, 0)
	if c.arg(name) == nil {
		c.fail(malformed("there is no argument %q", name))
	}
	if !dt.IsFloat() && x != math.Trunc(x) {
		dt = graph.F32
	}
	if dt == graph.Bool {
		dt = graph.I64
	}
	return c.Scalar(dt, x)
}

// rank orders element types as torch's type promotion does: the result of arithmetic between two types has the type
// with the higher rank.
var rank = map[graph.DType]int{graph.Bool: 0, graph.I32: 1, graph.I64: 2, graph.F16: 3, graph.BF16: 3, graph.F32: 4,
	graph.F64: 5}

// pair returns two operands, converted to a common type. Either may be a number.
func (c *call) pair(first, second string) (a, b *graph.Value) {
	switch {
	case c.has(first) && c.has(second):
		a, b = c.tensor(first), c.tensor(second)
	case c.has(first):
		if a = c.tensor(first); a != nil {
			b = c.scalar(second, a.DType)
		}
	case c.has(second):
		if b = c.tensor(second); b != nil {
			a = c.scalar(first, b.DType)
		}
	default:
		c.fail(malformed("neither %q nor %q is a tensor", first, second))
	}
	if c.err != nil {
		return nil, nil
	}
	dt := a.DType
	if rank[b.DType] > rank[dt] {
		dt = b.DType
	}
	return c.cast(a, dt), c.cast(b, dt)
}

// arithmetic translates operators with two operands, such as add and mul, to the op of the graph.
func arithmetic(c *call, op graph.Op) ([]*graph.Value, error) {
	second := "other"
	if op == graph.Pow {
		second = "exponent"
	}
	a, b := c.pair("self", second)
	alpha := c.number("alpha", 1)
	dt := c.outDType(0)
	switch mode := c.word("rounding_mode", ""); {
	case op == graph.Div && mode == "floor":
		op = graph.FloorDiv
	case mode != "":
		return nil, unsupported("rounding_mode=%q", clip(mode))
	}
	if c.err != nil {
		return nil, c.err
	}
	a, b = c.cast(a, dt), c.cast(b, dt)
	if alpha != 1 {
		b = c.op(graph.Mul, dt, b, c.Scalar(dt, alpha))
	}
	return one(c.op(op, dt, a, b))
}

// elementwise holds the operators that are composed of several elementwise operations of the graph.
var elementwise = map[string]operator{
	"rsub": func(c *call) ([]*graph.Value, error) {
		a, b := c.pair("other", "self")
		if c.number("alpha", 1) != 1 {
			return nil, unsupported("rsub with the argument alpha")
		}
		return one(c.op(graph.Sub, c.outDType(0), a, b))
	},
	"reciprocal": composed(func(c *call, x *graph.Value, dt graph.DType) *graph.Value {
		return c.op(graph.Div, dt, c.Scalar(dt, 1), c.cast(x, dt))
	}),
	"expm1": composed(func(c *call, x *graph.Value, dt graph.DType) *graph.Value {
		return c.op(graph.Sub, dt, c.op(graph.Exp, dt, c.cast(x, dt)), c.Scalar(dt, 1))
	}),
	"log1p": composed(func(c *call, x *graph.Value, dt graph.DType) *graph.Value {
		return c.op(graph.Log, dt, c.op(graph.AddOp, dt, c.cast(x, dt), c.Scalar(dt, 1)))
	}),
	"ceil": composed(func(c *call, x *graph.Value, dt graph.DType) *graph.Value {
		return c.ceil(x)
	}),
	"log_sigmoid": composed(func(c *call, x *graph.Value, dt graph.DType) *graph.Value {
		return c.op(graph.Neg, dt, c.op(graph.Softplus, dt, c.op(graph.Neg, dt, x)))
	}),
	"leaky_relu": composed(func(c *call, x *graph.Value, dt graph.DType) *graph.Value {
		zero := c.Scalar(dt, 0)
		low := c.scaled(c.op(graph.Min, dt, x, zero), c.number("negative_slope", 0.01))
		return c.op(graph.AddOp, dt, c.op(graph.Max, dt, x, zero), low)
	}),
	"relu6": composed(func(c *call, x *graph.Value, dt graph.DType) *graph.Value {
		return c.op(graph.Min, dt, c.op(graph.Max, dt, x, c.Scalar(dt, 0)), c.Scalar(dt, 6))
	}),
	"hardtanh": composed(func(c *call, x *graph.Value, dt graph.DType) *graph.Value {
		y := c.op(graph.Max, dt, x, c.Scalar(dt, c.number("min_val", -1)))
		return c.op(graph.Min, dt, y, c.Scalar(dt, c.number("max_val", 1)))
	}),
	"square": composed(func(c *call, x *graph.Value, dt graph.DType) *graph.Value { return c.op(graph.Mul, dt, x, x) }),
	"addcmul": func(c *call) ([]*graph.Value, error) {
		x, a, b := c.tensor("self"), c.tensor("tensor1"), c.tensor("tensor2")
		dt := c.outDType(0)
		y := c.op(graph.Mul, dt, c.cast(a, dt), c.cast(b, dt))
		return one(c.op(graph.AddOp, dt, c.cast(x, dt), c.scaled(y, c.number("value", 1))))
	},
	"lerp": func(c *call) ([]*graph.Value, error) {
		a, b := c.tensor("self"), c.tensor("end")
		dt := c.outDType(0)
		d := c.op(graph.Sub, dt, b, a)
		if c.has("weight") {
			d = c.op(graph.Mul, dt, c.tensor("weight"), d)
		} else {
			d = c.scaled(d, c.number("weight", 0))
		}
		return one(c.op(graph.AddOp, dt, a, d))
	},
	"logsumexp": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		a := graph.Attrs{Axes: c.axes("dim", x), Keep: true}
		most := c.add(graph.MaxOf, a, dt, x)
		sum := c.add(graph.SumOp, a, dt,
			c.op(graph.Exp, dt, c.op(graph.Sub, dt, x, most)))
		y := c.op(graph.AddOp, dt, c.op(graph.Log, dt, sum), most)
		if c.err != nil || c.flag("keepdim", false) {
			return one(y)
		}
		shape := []int64{}
		for d, n := range y.Shape {
			if !slices.Contains(a.Axes, int64(d)) {
				shape = append(shape, n)
			}
		}
		return one(c.reshape(y, shape))
	},
	"glu": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		axis := c.axis("dim", -1, x)
		if c.err != nil || len(x.Shape) == 0 || x.Shape[axis]%2 != 0 {
			return nil, malformed("it splits %s into halves, which is not possible", x)
		}
		half, dt := x.Shape[axis]/2, c.outDType(0)
		gate := c.op(graph.Sigmoid, dt, c.slice(x, axis, half, 2*half, 1))
		return one(c.op(graph.Mul, dt, c.slice(x, axis, 0, half, 1), gate))
	},
	"max": extreme(graph.Max, graph.MaxOf), "min": extreme(graph.Min, graph.MinOf),
	"gelu": func(c *call) ([]*graph.Value, error) {
		op := graph.GELU
		switch mode := c.word("approximate", "none"); mode {
		case "none":
		case "tanh":
			op = graph.GELUTanh
		default:
			return nil, unsupported("approximate=%q", clip(mode))
		}
		x := c.tensor("self")
		return one(c.op(op, c.outDType(0), x))
	},
	"softplus": func(c *call) ([]*graph.Value, error) {
		if c.number("beta", 1) != 1 {
			return nil, unsupported("softplus with the argument beta")
		}
		x := c.tensor("self")
		return one(c.op(graph.Softplus, c.outDType(0), x))
	},
	"clamp": clamp, "clamp_min": clamp, "clamp_max": clamp,
	"where": func(c *call) ([]*graph.Value, error) {
		cond := c.tensor("condition")
		dt := c.outDType(0)
		var a, b *graph.Value
		if c.has("self") || c.has("other") {
			a, b = c.pair("self", "other")
		} else {
			a, b = c.Scalar(dt, c.number("self", 0)), c.Scalar(dt, c.number("other", 0))
		}
		return one(c.op(graph.Where, dt, cond, c.cast(a, dt), c.cast(b, dt)))
	},
	"masked_fill": func(c *call) ([]*graph.Value, error) {
		x, mask := c.tensor("self"), c.tensor("mask")
		if c.err != nil {
			return nil, c.err
		}
		var v *graph.Value
		if c.has("value") {
			v = c.cast(c.tensor("value"), x.DType)
		} else {
			v = c.Scalar(x.DType, c.number("value", 0))
		}
		return one(c.op(graph.Where, x.DType, mask, v, x))
	},
}

// composed returns the translation of an operator on the tensor x, by a function of x and the element type of the
// result.
func composed(f func(c *call, x *graph.Value, dt graph.DType) *graph.Value) operator {
	return func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		return one(f(c, x, c.outDType(0)))
	}
}

// scaled returns v multiplied by a number.
func (c *call) scaled(v *graph.Value, by float64) *graph.Value {
	if v == nil || by == 1 {
		return v
	}
	return c.op(graph.Mul, v.DType, v, c.Scalar(v.DType, by))
}

// extreme translates max and min. With two tensors, max and min compare the tensors elementwise. With one tensor, they
// reduce all elements, or reduce one dimension and also return the indices of the extreme elements.
func extreme(two, of graph.Op) operator {
	return func(c *call) ([]*graph.Value, error) {
		if c.has("other") {
			return arithmetic(c, two)
		}
		x := c.tensor("self")
		dt := c.outDType(0)
		a := graph.Attrs{Axes: c.axes("dim", x), Keep: c.flag("keepdim", false)}
		y := c.add(of, a, dt, x)
		if len(c.outs) < 2 || c.outs[1] == "" {
			return []*graph.Value{y, nil}, c.err
		}
		if of == graph.MinOf {
			x = c.op(graph.Neg, x.DType, x)
		}
		at := c.add(graph.ArgMax, graph.Attrs{Axis: c.axis("dim", -1, x), Keep: a.Keep}, graph.I64, x)
		return []*graph.Value{y, at}, c.err
	}
}

func clamp(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	if c.err != nil {
		return nil, c.err
	}
	dt := c.outDType(0)
	for _, e := range []struct {
		name string
		op   graph.Op
	}{{"min", graph.Max}, {"max", graph.Min}} {
		switch {
		case c.has(e.name):
			x = c.add(e.op, graph.Attrs{}, dt, x, c.cast(c.tensor(e.name), dt))
		case c.arg(e.name) != nil:
			x = c.add(e.op, graph.Attrs{}, dt, x, c.Scalar(dt, c.number(e.name, 0)))
		}
	}
	return one(x)
}
