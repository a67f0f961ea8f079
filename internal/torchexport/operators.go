package torchexport

import (
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// operator reads a call: it adds operations to the graph and returns the results.
type operator func(c *call) ([]*graph.Value, error)

// views are operators whose result may share the memory of their first operand.
var views = names("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "transpose",
	"permute", "t", "expand", "expand_as", "slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind",
	"alias", "detach", "contiguous", "to", "type_as", "dropout", "view_as", "reshape_as", "movedim", "numpy_T",
	"_to_copy",
	"swapaxes", "swapdims")

func names(list ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range list {
		m[n] = true
	}
	return m
}

func one(v *graph.Value) ([]*graph.Value, error) { return []*graph.Value{v}, nil }

// operators are ATen's, by name without overload; of those that end with "_" the functional form is read.
var operators map[string]operator

func init() {
	operators = map[string]operator{}
	for name, op := range map[string]graph.Op{
		"neg": graph.Neg, "exp": graph.Exp, "log": graph.Log, "sin": graph.Sin, "cos": graph.Cos, "tanh": graph.Tanh,
		"sqrt": graph.Sqrt, "rsqrt": graph.Rsqrt, "sigmoid": graph.Sigmoid, "silu": graph.SiLU, "relu": graph.ReLU,
		"erf": graph.Erf, "abs": graph.Abs, "floor": graph.Floor, "logical_not": graph.Not, "bitwise_not": graph.Not,
	} {
		operators[name] = func(c *call) ([]*graph.Value, error) {
			x := c.tensor("self")
			dt := c.outDType(0)
			if name == "bitwise_not" && dt != graph.Bool {
				return nil, unsupported("bits of %s", dt)
			}
			return one(c.add(op, graph.Attrs{}, dt, x))
		}
	}
	for name, op := range map[string]graph.Op{
		"add": graph.AddOp, "sub": graph.Sub, "mul": graph.Mul, "div": graph.Div, "floor_divide": graph.FloorDiv,
		"multiply": graph.Mul, "subtract": graph.Sub, "divide": graph.Div, "remainder": graph.Rem, "maximum": graph.Max,
		"minimum": graph.Min, "pow": graph.Pow, "true_divide": graph.Div,
	} {
		operators[name] = func(c *call) ([]*graph.Value, error) { return arithmetic(c, op) }
	}
	for name, op := range map[string]graph.Op{
		"eq": graph.Eq, "ne": graph.Ne, "lt": graph.Lt, "le": graph.Le, "gt": graph.Gt, "ge": graph.Ge,
	} {
		operators[name] = func(c *call) ([]*graph.Value, error) {
			a, b := c.pair("self", "other")
			return one(c.add(op, graph.Attrs{}, graph.Bool, a, b))
		}
	}
	for name, op := range map[string]graph.Op{
		"__and__": graph.And, "bitwise_and": graph.And, "logical_and": graph.And, "__or__": graph.Or,
		"bitwise_or": graph.Or, "logical_or": graph.Or,
	} {
		operators[name] = func(c *call) ([]*graph.Value, error) {
			a, b := c.pair("self", "other")
			if c.err == nil && (a.DType != graph.Bool || b.DType != graph.Bool) {
				return nil, unsupported("bits of %s", a.DType)
			}
			return one(c.add(op, graph.Attrs{}, graph.Bool, a, b))
		}
	}
	for name, op := range map[string]graph.Op{"sum": graph.SumOp, "mean": graph.Mean, "amax": graph.MaxOf,
		"amin": graph.MinOf, "any": graph.MaxOf, "all": graph.MinOf} {
		operators[name] = func(c *call) ([]*graph.Value, error) {
			x := c.tensor("self")
			dt := c.outDType(0)
			a := graph.Attrs{Axes: c.axes("dim", x), Keep: c.flag("keepdim", false)}
			return one(c.add(op, a, dt, c.cast(x, dt)))
		}
	}
	for name := range views {
		operators[name] = same
	}
	operators["detach_"] = same // it changes no element
	for _, list := range []map[string]operator{shapes, creators, indexers, layers} {
		for name, op := range list {
			operators[name] = op
		}
	}
	for alias, name := range map[string]string{"concat": "cat", "concatenate": "cat", "greater": "gt", "less": "lt",
		"negative": "neg", "absolute": "abs", "swapaxes": "transpose", "swapdims": "transpose", "clip": "clamp"} {
		operators[alias] = operators[name]
	}
}

// same returns its operand, converted where the result has another type: contiguous, detach, to and the like.
func same(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	if c.err != nil {
		return nil, c.err
	}
	return one(c.cast(x, c.outDType(0)))
}

// scalar is a number as an operand next to a tensor of type dt: it does not make integers of reals.
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

// rank orders types by what arithmetic between them gives.
var rank = map[graph.DType]int{graph.Bool: 0, graph.I32: 1, graph.I64: 2, graph.F16: 3, graph.BF16: 3, graph.F32: 4,
	graph.F64: 5}

// pair returns two operands of one type. Either may be a number.
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

// arithmetic reads add, mul and the like.
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
		b = c.add(graph.Mul, graph.Attrs{}, dt, b, c.Scalar(dt, alpha))
	}
	return one(c.add(op, graph.Attrs{}, dt, a, b))
}

// shapes are operators that move elements.
var shapes = map[string]operator{
	"rsub": func(c *call) ([]*graph.Value, error) {
		a, b := c.pair("other", "self")
		if c.number("alpha", 1) != 1 {
			return nil, unsupported("alpha of rsub")
		}
		return one(c.add(graph.Sub, graph.Attrs{}, c.outDType(0), a, b))
	},
	"reciprocal": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		return one(c.add(graph.Div, graph.Attrs{}, dt, c.Scalar(dt, 1), c.cast(x, dt)))
	},
	"expm1": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		return one(c.add(graph.Sub, graph.Attrs{}, dt, c.add(graph.Exp, graph.Attrs{}, dt, c.cast(x, dt)),
			c.Scalar(dt, 1)))
	},
	"log1p": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		return one(c.add(graph.Log, graph.Attrs{}, dt,
			c.add(graph.AddOp, graph.Attrs{}, dt, c.cast(x, dt), c.Scalar(dt, 1))))
	},
	"ceil": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		y := c.add(graph.Floor, graph.Attrs{}, dt, c.add(graph.Neg, graph.Attrs{}, dt, x))
		return one(c.add(graph.Neg, graph.Attrs{}, dt, y))
	},
	"addcmul": func(c *call) ([]*graph.Value, error) {
		x, a, b := c.tensor("self"), c.tensor("tensor1"), c.tensor("tensor2")
		dt := c.outDType(0)
		y := c.add(graph.Mul, graph.Attrs{}, dt, c.cast(a, dt), c.cast(b, dt))
		return one(c.add(graph.AddOp, graph.Attrs{}, dt, c.cast(x, dt), c.scaled(y, c.number("value", 1))))
	},
	"lerp": func(c *call) ([]*graph.Value, error) {
		a, b := c.tensor("self"), c.tensor("end")
		dt := c.outDType(0)
		d := c.add(graph.Sub, graph.Attrs{}, dt, b, a)
		if c.has("weight") {
			d = c.add(graph.Mul, graph.Attrs{}, dt, c.tensor("weight"), d)
		} else {
			d = c.scaled(d, c.number("weight", 0))
		}
		return one(c.add(graph.AddOp, graph.Attrs{}, dt, a, d))
	},
	"log_sigmoid": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		y := c.add(graph.Softplus, graph.Attrs{}, dt, c.add(graph.Neg, graph.Attrs{}, dt, x))
		return one(c.add(graph.Neg, graph.Attrs{}, dt, y))
	},
	"logsumexp": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		a := graph.Attrs{Axes: c.axes("dim", x), Keep: true}
		most := c.add(graph.MaxOf, a, dt, x)
		sum := c.add(graph.SumOp, a, dt,
			c.add(graph.Exp, graph.Attrs{}, dt, c.add(graph.Sub, graph.Attrs{}, dt, x, most)))
		y := c.add(graph.AddOp, graph.Attrs{}, dt, c.add(graph.Log, graph.Attrs{}, dt, sum), most)
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
	"leaky_relu": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		zero := c.Scalar(dt, 0)
		low := c.scaled(c.add(graph.Min, graph.Attrs{}, dt, x, zero), c.number("negative_slope", 0.01))
		return one(c.add(graph.AddOp, graph.Attrs{}, dt, c.add(graph.Max, graph.Attrs{}, dt, x, zero), low))
	},
	"relu6": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		y := c.add(graph.Max, graph.Attrs{}, dt, x, c.Scalar(dt, 0))
		return one(c.add(graph.Min, graph.Attrs{}, dt, y, c.Scalar(dt, 6)))
	},
	"hardtanh": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		y := c.add(graph.Max, graph.Attrs{}, dt, x, c.Scalar(dt, c.number("min_val", -1)))
		return one(c.add(graph.Min, graph.Attrs{}, dt, y, c.Scalar(dt, c.number("max_val", 1))))
	},
	"glu": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		axis := c.axis("dim", -1, x)
		if c.err != nil || len(x.Shape) == 0 || x.Shape[axis]%2 != 0 {
			return nil, malformed("it halves %s", x)
		}
		half, dt := x.Shape[axis]/2, c.outDType(0)
		gate := c.add(graph.Sigmoid, graph.Attrs{}, dt, c.slice(x, axis, half, 2*half, 1))
		return one(c.add(graph.Mul, graph.Attrs{}, dt, c.slice(x, axis, 0, half, 1), gate))
	},
	"max": extreme(graph.Max, graph.MaxOf), "min": extreme(graph.Min, graph.MinOf),
	"fill": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.err != nil {
			return nil, c.err
		}
		v := c.Scalar(x.DType, c.number("value", 0))
		if c.has("value") {
			v = c.cast(c.tensor("value"), x.DType)
		}
		return one(c.add(graph.Broadcast, graph.Attrs{Shape: x.Shape}, x.DType, v))
	},
	"zero": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.err != nil {
			return nil, c.err
		}
		return one(c.add(graph.Broadcast, graph.Attrs{Shape: x.Shape}, x.DType, c.Scalar(x.DType, 0)))
	},
	"roll": func(c *call) ([]*graph.Value, error) {
		x, by, dims := c.tensor("self"), c.ints("shifts"), c.ints("dims")
		if c.err != nil || len(by) != len(dims) {
			return nil, unsupported("roll of all dimensions as one")
		}
		for i, d := range dims {
			axis := c.dim(d, x)
			if c.err != nil || len(x.Shape) == 0 || x.Shape[axis] == 0 {
				return one(x)
			}
			n := x.Shape[axis]
			k := ((by[i] % n) + n) % n
			if k == 0 {
				continue
			}
			x = c.add(graph.Concat, graph.Attrs{Axis: axis}, x.DType, c.slice(x, axis, n-k, n, 1),
				c.slice(x, axis, 0, n-k, 1))
		}
		return one(x)
	},
	"pad": pad, "constant_pad_nd": pad,
	"square": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		return one(c.add(graph.Mul, graph.Attrs{}, c.outDType(0), x, x))
	},
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
		return one(c.add(op, graph.Attrs{}, c.outDType(0), x))
	},
	"softplus": func(c *call) ([]*graph.Value, error) {
		if c.number("beta", 1) != 1 {
			return nil, unsupported("beta of softplus")
		}
		x := c.tensor("self")
		return one(c.add(graph.Softplus, graph.Attrs{}, c.outDType(0), x))
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
		return one(c.add(graph.Where, graph.Attrs{}, dt, cond, c.cast(a, dt), c.cast(b, dt)))
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
		return one(c.add(graph.Where, graph.Attrs{}, x.DType, mask, v, x))
	},
	"view": reshape, "reshape": reshape, "_unsafe_view": reshape, "unflatten": reshapeToOutput,
	"flatten": reshapeToOutput, "squeeze": reshapeToOutput, "view_as": reshapeToOutput, "reshape_as": reshapeToOutput,
	"unsqueeze": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.err != nil {
			return nil, c.err
		}
		d := c.int("dim", 0)
		if d < 0 {
			d += int64(len(x.Shape)) + 1
		}
		if d < 0 || d > int64(len(x.Shape)) {
			return nil, malformed("%s has no dimension %d", x, d)
		}
		shape := append([]int64{}, x.Shape[:d]...)
		return one(c.reshape(x, append(append(shape, 1), x.Shape[d:]...)))
	},
	"transpose": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		return one(c.transpose(x, c.axis("dim0", 0, x), c.axis("dim1", 0, x)))
	},
	"t": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.err != nil || len(x.Shape) < 2 {
			return one(x)
		}
		return one(c.transpose(x, 0, 1))
	},
	"numpy_T": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.err != nil {
			return nil, c.err
		}
		perm := make([]int64, len(x.Shape))
		for d := range perm {
			perm[d] = int64(len(perm) - 1 - d)
		}
		return one(c.add(graph.Transpose, graph.Attrs{Axes: perm}, x.DType, x))
	},
	"movedim": func(c *call) ([]*graph.Value, error) {
		x, from, to := c.tensor("self"), c.ints("source"), c.ints("destination")
		if c.err != nil || len(from) != len(to) {
			return nil, malformed("dimensions %v go to %v", from, to)
		}
		perm := make([]int64, len(x.Shape))
		for d := range perm {
			perm[d] = -1
		}
		moved := map[int64]bool{}
		for i := range from {
			a, b := int64(c.dim(from[i], x)), c.dim(to[i], x)
			if c.err != nil || len(perm) == 0 || moved[a] || perm[b] >= 0 {
				return nil, malformed("dimensions %v go to %v", from, to)
			}
			moved[a], perm[b] = true, a
		}
		next := int64(0)
		for d := range perm {
			if perm[d] < 0 {
				for moved[next] {
					next++
				}
				perm[d] = next
				next++
			}
		}
		return one(c.add(graph.Transpose, graph.Attrs{Axes: perm}, x.DType, x))
	},
	"permute": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		return one(c.add(graph.Transpose, graph.Attrs{Axes: c.axes("dims", x)}, c.outDType(0), x))
	},
	"expand": expand, "broadcast_to": expand,
	"expand_as": func(c *call) ([]*graph.Value, error) {
		x, y := c.tensor("self"), c.tensor("other")
		if c.err != nil {
			return nil, c.err
		}
		return one(c.add(graph.Broadcast, graph.Attrs{Shape: y.Shape}, x.DType, x))
	},
	"slice": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		return one(c.slice(x, c.axis("dim", 0, x), c.int("start", 0), c.int("end", math.MaxInt64), c.int("step", 1)))
	},
	"narrow": func(c *call) ([]*graph.Value, error) {
		x, lo := c.tensor("self"), c.int("start", 0)
		return one(c.slice(x, c.axis("dim", 0, x), lo, lo+c.int("length", 0), 1))
	},
	"select": func(c *call) ([]*graph.Value, error) {
		x, i := c.tensor("self"), c.int("index", 0)
		axis := c.axis("dim", 0, x)
		if c.err == nil && i < 0 && axis < len(x.Shape) {
			i += x.Shape[axis]
		}
		return one(c.drop(c.slice(x, axis, i, i+1, 1), axis))
	},
	"split": split, "split_with_sizes": split, "chunk": split, "unbind": split,
	"cat": func(c *call) ([]*graph.Value, error) {
		list := c.tensors("tensors")
		dt := c.outDType(0)
		if c.err != nil || len(list) == 0 {
			return nil, malformed("it joins nothing")
		}
		for i, v := range list {
			if v == nil {
				return nil, malformed("it joins None")
			}
			list[i] = c.cast(v, dt)
		}
		// Of tensors of other shapes torch skips those of shape [0].
		if c.err == nil {
			if rest := slices.DeleteFunc(slices.Clone(list), func(v *graph.Value) bool {
				return len(v.Shape) == 1 && v.Shape[0] == 0
			}); len(rest) > 0 {
				list = rest
			}
		}
		return one(c.add(graph.Concat, graph.Attrs{Axis: c.axis("dim", 0, list[0])}, dt, list...))
	},
	"stack": func(c *call) ([]*graph.Value, error) {
		list := c.tensors("tensors")
		if c.err != nil || len(list) == 0 || list[0] == nil {
			return nil, malformed("it joins nothing")
		}
		d := c.int("dim", 0)
		if d < 0 {
			d += int64(len(list[0].Shape)) + 1
		}
		if d < 0 || d > int64(len(list[0].Shape)) {
			return nil, malformed("%s has no dimension %d", list[0], d)
		}
		shape := list[0].Shape
		for i, v := range list {
			if v == nil || !slices.Equal(v.Shape, shape) {
				return nil, malformed("it joins tensors of different shapes")
			}
			v = c.cast(v, c.outDType(0))
			list[i] = c.reshape(v, append(append(append([]int64{}, v.Shape[:d]...), 1), v.Shape[d:]...))
		}
		return one(c.add(graph.Concat, graph.Attrs{Axis: int(d)}, c.outDType(0), list...))
	},
	"repeat": func(c *call) ([]*graph.Value, error) {
		x, times := c.tensor("self"), c.ints("repeats")
		if c.err != nil || len(times) < len(x.Shape) {
			return nil, malformed("repeats %v", times)
		}
		from, to, out := []int64{}, []int64{}, []int64{}
		lead := len(times) - len(x.Shape)
		for i, n := range times {
			d := int64(1)
			if i >= lead {
				d = x.Shape[i-lead]
			}
			if n < 0 || n > 1<<24 {
				return nil, malformed("repeats %v", times)
			}
			from, to, out = append(from, 1, d), append(to, n, d), append(out, n*d)
		}
		y := c.reshape(x, from)
		y = c.add(graph.Broadcast, graph.Attrs{Shape: to}, x.DType, y)
		return one(c.reshape(y, out))
	},
	"repeat_interleave": func(c *call) ([]*graph.Value, error) {
		x, n := c.tensor("self"), c.int("repeats", 1)
		axis := c.axis("dim", 0, x)
		if c.err != nil || n < 0 || n > 1<<24 || axis >= len(x.Shape) {
			return nil, malformed("repeats %d", n)
		}
		from := append(append(append([]int64{}, x.Shape[:axis+1]...), 1), x.Shape[axis+1:]...)
		to := append(append(append([]int64{}, x.Shape[:axis+1]...), n), x.Shape[axis+1:]...)
		out := append([]int64{}, x.Shape...)
		out[axis] *= n
		y := c.add(graph.Broadcast, graph.Attrs{Shape: to}, x.DType, c.reshape(x, from))
		return one(c.reshape(y, out))
	},
	"clone": same, "lift_fresh_copy": same, "lift_fresh": same,
	"copy": func(c *call) ([]*graph.Value, error) {
		x, src := c.tensor("self"), c.tensor("src")
		if c.err != nil {
			return nil, c.err
		}
		if !slices.Equal(src.Shape, x.Shape) {
			src = c.add(graph.Broadcast, graph.Attrs{Shape: x.Shape}, src.DType, src)
		}
		return one(c.cast(src, x.DType))
	},
	"dropout": func(c *call) ([]*graph.Value, error) {
		if c.flag("train", false) && c.number("p", 0) != 0 {
			return nil, unsupported("dropout in training; export model.eval()")
		}
		return one(c.tensor("input"))
	},
	"tril": triangle, "triu": triangle,
}

// scaled returns v times a number.
func (c *call) scaled(v *graph.Value, by float64) *graph.Value {
	if v == nil || by == 1 {
		return v
	}
	return c.add(graph.Mul, graph.Attrs{}, v.DType, v, c.Scalar(v.DType, by))
}

// extreme reads max and min: of two tensors, of all elements, or of a dimension and where they are.
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
			x = c.add(graph.Neg, graph.Attrs{}, x.DType, x)
		}
		at := c.add(graph.ArgMax, graph.Attrs{Axis: c.axis("dim", -1, x), Keep: a.Keep}, graph.I64, x)
		return []*graph.Value{y, at}, c.err
	}
}

// pad reads padding by a number; negative widths cut.
func pad(c *call) ([]*graph.Value, error) {
	x, widths := c.tensor("self"), c.ints("pad")
	if mode := c.word("mode", "constant"); mode != "constant" {
		return nil, unsupported("mode=%q", clip(mode))
	}
	by := c.number("value", 0)
	for i := 0; i+1 < len(widths) && c.err == nil; i += 2 {
		axis := len(x.Shape) - 1 - i/2
		if axis < 0 {
			return nil, malformed("pad %v of %s", widths, x)
		}
		x = c.padded(x, axis, widths[i], widths[i+1], by)
	}
	return one(x)
}

// padded returns v with so many elements more before and after along a dimension.
func (c *call) padded(v *graph.Value, axis int, before, after int64, by float64) *graph.Value {
	if c.err != nil {
		return nil
	}
	const most = 1 << 24
	n := v.Shape[axis]
	if before > most || after > most || before < -n || after < -n || n+min(before, 0)+min(after, 0) < 0 {
		c.fail(malformed("%s padded by %d and %d", v, before, after))
		return nil
	}
	v = c.slice(v, axis, -min(before, 0), n+min(after, 0), 1)
	part := func(k int64) *graph.Value {
		shape := slices.Clone(v.Shape)
		shape[axis] = k
		return c.add(graph.Broadcast, graph.Attrs{Shape: shape}, v.DType, c.Scalar(v.DType, by))
	}
	var list []*graph.Value
	if before > 0 {
		list = append(list, part(before))
	}
	list = append(list, v)
	if after > 0 {
		list = append(list, part(after))
	}
	if len(list) == 1 {
		return v
	}
	return c.add(graph.Concat, graph.Attrs{Axis: axis}, v.DType, list...)
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

func reshape(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	shape := c.ints("size")
	if c.arg("shape") != nil {
		shape = c.ints("shape")
	}
	if c.arg("dtype") != nil {
		return nil, unsupported("a view as another element type")
	}
	return one(c.reshape(x, shape))
}

// reshapeToOutput gives the operand the shape that the export has for the result.
func reshapeToOutput(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	if len(c.outs) != 1 {
		return nil, malformed("it has %d results", len(c.outs))
	}
	meta := c.text.TensorValues[c.outs[0]]
	if meta == nil {
		return nil, malformed("%q has no type", clip(c.outs[0]))
	}
	shape, err := ints(meta.Sizes)
	if err != nil {
		return nil, err
	}
	return one(c.reshape(x, shape))
}

func expand(c *call) ([]*graph.Value, error) {
	x, size := c.tensor("self"), c.ints("size")
	if c.err != nil || len(size) < len(x.Shape) || len(size) > maxRank {
		return nil, malformed("size %v", size)
	}
	shape := append([]int64{}, size...)
	same := len(shape) == len(x.Shape)
	for i, d := range x.Shape {
		j := len(shape) - len(x.Shape) + i
		if shape[j] == -1 {
			shape[j] = d
		}
		same = same && shape[j] == d
	}
	if same {
		return one(x)
	}
	return one(c.add(graph.Broadcast, graph.Attrs{Shape: shape}, x.DType, x))
}

// split reads what cuts a tensor into several.
func split(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	axis := c.axis("dim", 0, x)
	if c.err != nil || axis >= len(x.Shape) {
		return nil, malformed("it splits a tensor of no dimensions")
	}
	size := x.Shape[axis]
	var parts []int64
	switch c.base() {
	case "split_with_sizes":
		parts = c.ints("split_sizes")
	case "unbind":
		parts = []int64{1}
	case "chunk":
		n := c.int("chunks", 1)
		if n < 1 {
			return nil, malformed("%d chunks", n)
		}
		parts = []int64{(size + n - 1) / n}
	default:
		if parts = c.ints("split_size"); c.overload == "sizes" {
			parts = c.ints("split_size")
		}
	}
	if len(parts) == 1 && parts[0] > 0 && c.base() != "split_with_sizes" {
		each := parts[0]
		if size/each > 1<<16 {
			return nil, malformed("it splits %s into parts of %d", x, each)
		}
		parts = nil
		for at := int64(0); at < size; at += each {
			parts = append(parts, min(each, size-at))
		}
	}
	var list []*graph.Value
	at := int64(0)
	for _, n := range parts {
		if n < 0 || at+n > size {
			return nil, malformed("it splits %s into %v", x, parts)
		}
		v := c.slice(x, axis, at, at+n, 1)
		if c.base() == "unbind" {
			v = c.drop(v, axis)
		}
		list, at = append(list, v), at+n
	}
	return list, c.err
}

func triangle(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	k := c.int("diagonal", 0)
	if c.err != nil || len(x.Shape) < 2 {
		return nil, malformed("a triangle of fewer than two dimensions")
	}
	rows, cols := x.Shape[len(x.Shape)-2], x.Shape[len(x.Shape)-1]
	if rows*cols > maxConstants/8 {
		return nil, unsupported("a triangle of %d × %d", rows, cols)
	}
	mask := graph.NewTensor(graph.Bool, []int64{rows, cols})
	for i := range rows {
		for j := range cols {
			if c.base() == "tril" && j-i <= k || c.base() == "triu" && j-i >= k {
				mask.Elems[i*cols+j] = 1
			}
		}
	}
	return one(c.add(graph.Where, graph.Attrs{}, x.DType, c.Constant("", mask), x, c.Scalar(x.DType, 0)))
}

// creators make tensors of nothing.
var creators = map[string]operator{
	"arange": func(c *call) ([]*graph.Value, error) {
		start, step, end := c.number("start", 0), c.number("step", 1), c.number("end", 0)
		dt := c.outDType(0)
		n := math.Ceil((end - start) / step)
		if c.err != nil || !(n >= 0 && n <= maxConstants/8) {
			return nil, malformed("%v elements", n)
		}
		t := graph.NewTensor(dt, []int64{int64(n)})
		for i := range t.Elems {
			t.Elems[i] = start + step*float64(i)
		}
		return one(c.cast(c.Constant("", t), dt))
	},
	"ones": full(1), "zeros": full(0), "new_ones": full(1), "new_zeros": full(0), "empty": full(0),
	"new_empty": full(0),
	"full":      full(math.NaN()), "new_full": full(math.NaN()),
	"ones_like": full(1), "zeros_like": full(0), "empty_like": full(0), "full_like": full(math.NaN()),
	"eye": func(c *call) ([]*graph.Value, error) {
		n := c.int("n", 0)
		m := c.int("m", n)
		if c.err == nil && (n < 0 || m < 0 || n > maxConstants/8 || m > maxConstants/8 || n*m > maxConstants/8) {
			return nil, malformed("an identity of %d × %d", n, m)
		}
		t := graph.NewTensor(c.outDType(0), []int64{n, m})
		for i := range min(n, m) {
			t.Elems[i*m+i] = 1
		}
		return one(c.Constant("", t))
	},
	"scalar_tensor": func(c *call) ([]*graph.Value, error) {
		return one(c.Scalar(c.outDType(0), c.number("s", 0)))
	},
}

// full makes a tensor of one number; NaN stands for the argument fill_value. The contents of empty ones are read by
// nothing.
func full(x float64) operator {
	return func(c *call) ([]*graph.Value, error) {
		dt := c.outDType(0)
		if math.IsNaN(x) {
			x := c.number("fill_value", 0)
			return filled(c, dt, x)
		}
		return filled(c, dt, x)
	}
}

func filled(c *call, dt graph.DType, x float64) ([]*graph.Value, error) {
	if len(c.outs) != 1 {
		return nil, malformed("it has %d results", len(c.outs))
	}
	meta := c.text.TensorValues[c.outs[0]]
	if c.err != nil || meta == nil {
		return nil, malformed("%q has no type", clip(c.outs[0]))
	}
	shape, err := ints(meta.Sizes)
	if err != nil || len(shape) == 0 {
		return []*graph.Value{c.Scalar(dt, x)}, err
	}
	// A broadcast, which needs no memory.
	return one(c.add(graph.Broadcast, graph.Attrs{Shape: shape}, dt, c.Scalar(dt, x)))
}

// indexers take elements by index, or order them.
var indexers = map[string]operator{
	"embedding": func(c *call) ([]*graph.Value, error) {
		w, ids := c.tensor("weight"), c.tensor("indices")
		return one(c.add(graph.Embedding, graph.Attrs{}, c.outDType(0), w, ids))
	},
	"index": func(c *call) ([]*graph.Value, error) {
		x, list := c.tensor("self"), c.tensors("indices")
		if c.err != nil {
			return nil, c.err
		}
		lead := 0
		for lead < len(list) && list[lead] == nil {
			lead++
		}
		in := list[lead:]
		for len(in) > 0 && in[len(in)-1] == nil {
			in = in[:len(in)-1]
		}
		for _, i := range in {
			if i == nil || i.DType == graph.Bool {
				return nil, unsupported("indices with gaps, or of bools")
			}
		}
		switch {
		case len(in) == 0:
			return nil, malformed("it has no index")
		case lead == 0:
			return one(c.add(graph.Take, graph.Attrs{}, x.DType, append([]*graph.Value{x}, in...)...))
		case len(in) > 1 || len(in[0].Shape) > 1 || lead >= len(x.Shape):
			return nil, unsupported("indices after %d dimensions", lead)
		}
		y := c.add(graph.Take, graph.Attrs{}, x.DType, c.transpose(x, 0, lead), in[0])
		if len(in[0].Shape) == 0 {
			return nil, unsupported("an index without dimensions")
		}
		return one(c.transpose(y, 0, lead))
	},
	"index_select": func(c *call) ([]*graph.Value, error) {
		x, i := c.tensor("self"), c.tensor("index")
		axis := c.axis("dim", 0, x)
		if c.err != nil || len(i.Shape) != 1 {
			return nil, malformed("an index of other than one dimension")
		}
		y := c.add(graph.Take, graph.Attrs{}, x.DType, c.transpose(x, 0, axis), i)
		return one(c.transpose(y, 0, axis))
	},
	"index_put": func(c *call) ([]*graph.Value, error) {
		x, v, list := c.tensor("self"), c.tensor("values"), c.tensors("indices")
		if c.flag("accumulate", false) {
			return nil, unsupported("accumulate of index_put")
		}
		if c.err == nil && len(list) == 1 && list[0] != nil && list[0].DType == graph.Bool && v.Count() == 1 {
			mask := list[0]
			if len(mask.Shape) > len(x.Shape) {
				return nil, malformed("%s indexes %s", mask, x)
			}
			shape := append([]int64{}, mask.Shape...)
			for len(shape) < len(x.Shape) {
				shape = append(shape, 1)
			}
			v = c.reshape(c.cast(v, x.DType), []int64{})
			return one(c.add(graph.Where, graph.Attrs{}, x.DType, c.reshape(mask, shape), v, x))
		}
		for _, i := range list {
			if i == nil || i.DType == graph.Bool {
				return nil, unsupported("indices with gaps, or of bools")
			}
		}
		if c.err != nil {
			return nil, c.err
		}
		return one(c.add(graph.PutAt, graph.Attrs{}, x.DType,
			append([]*graph.Value{x, c.cast(v, x.DType)}, list...)...))
	},
	"index_copy": func(c *call) ([]*graph.Value, error) {
		x, at, rows := c.tensor("self"), c.tensor("index"), c.tensor("source")
		if c.err != nil {
			return nil, c.err
		}
		return one(c.add(graph.IndexCopy, graph.Attrs{Axis: c.axis("dim", 0, x)}, x.DType, x, at, rows))
	},
	"gather": func(c *call) ([]*graph.Value, error) {
		x, i := c.tensor("self"), c.tensor("index")
		return one(c.add(graph.TakeAlong, graph.Attrs{Axis: c.axis("dim", 0, x)}, c.outDType(0), x, i))
	},
	"scatter": scatter,
	"topk": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.err != nil {
			return nil, c.err
		}
		if c.axis("dim", -1, x) != len(x.Shape)-1 || !c.flag("largest", true) {
			return nil, unsupported("topk of the smallest, or of another dimension than the last")
		}
		n, err := c.Add(graph.TopK, graph.Attrs{K: c.int("k", 1)}, c.from, []graph.DType{x.DType, graph.I64}, x)
		if err != nil {
			return nil, malformed("%w", err)
		}
		return n.Out, nil
	},
	"sort":    sortOf,
	"argsort": func(c *call) ([]*graph.Value, error) { list, err := sortOf(c); return list[min(1, len(list)):], err },
	"argmax": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.arg("dim") == nil {
			return nil, unsupported("argmax of all elements")
		}
		return one(c.add(graph.ArgMax, graph.Attrs{Axis: c.axis("dim", -1, x), Keep: c.flag("keepdim", false)},
			graph.I64, x))
	},
	"cumsum": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		dt := c.outDType(0)
		return one(c.add(graph.Cumsum, graph.Attrs{Axis: c.axis("dim", 0, x)}, dt, c.cast(x, dt)))
	},
	"diff": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		axis := c.axis("dim", -1, x)
		if c.err != nil || c.int("n", 1) != 1 || len(x.Shape) == 0 {
			return nil, unsupported("differences of differences")
		}
		list := []*graph.Value{x}
		if c.has("prepend") {
			list = append([]*graph.Value{c.tensor("prepend")}, list...)
		}
		if c.has("append") {
			list = append(list, c.tensor("append"))
		}
		if len(list) > 1 {
			x = c.add(graph.Concat, graph.Attrs{Axis: axis}, x.DType, list...)
		}
		if c.err != nil {
			return nil, c.err
		}
		return one(c.add(graph.Sub, graph.Attrs{}, x.DType, c.slice(x, axis, 1, math.MaxInt64, 1),
			c.slice(x, axis, 0, -1, 1)))
	},
	"histc": func(c *call) ([]*graph.Value, error) {
		x, bins := c.tensor("self"), c.int("bins", 100)
		if lo, hi := c.number("min", 0), c.number("max", 0); lo != 0 || hi != float64(bins)-1 {
			return nil, unsupported("a histogram of other than one bin for each whole number from 0")
		}
		return one(c.add(graph.BinCount, graph.Attrs{K: bins}, c.outDType(0), x))
	},
	"bincount": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.has("weights") {
			return nil, unsupported("weights of bincount")
		}
		return one(c.add(graph.BinCount, graph.Attrs{K: c.int("minlength", 0)}, c.outDType(0), x))
	},
	"one_hot": func(c *call) ([]*graph.Value, error) {
		x, n := c.tensor("self"), c.int("num_classes", -1)
		if c.err != nil || n < 1 || n > 1<<24 {
			return nil, unsupported("one_hot with %d classes", n)
		}
		classes := graph.NewTensor(x.DType, []int64{n})
		for i := range classes.Elems {
			classes.Elems[i] = float64(i)
		}
		is := c.add(graph.Eq, graph.Attrs{}, graph.Bool, c.reshape(x, append(append([]int64{}, x.Shape...), 1)),
			c.Constant("", classes))
		return one(c.cast(is, c.outDType(0)))
	},
}

// scatter reads the scattering of one number along a dimension, as in masks of the experts of each token.
func scatter(c *call) ([]*graph.Value, error) {
	x, at := c.tensor("self"), c.tensor("index")
	axis := c.axis("dim", 0, x)
	if c.err != nil {
		return nil, c.err
	}
	if c.has("src") || c.arg("reduce") != nil || len(at.Shape) != len(x.Shape) || len(x.Shape) == 0 {
		return nil, unsupported("scatter of a tensor")
	}
	for d, n := range at.Shape {
		if d != axis && n != x.Shape[d] {
			return nil, unsupported("scatter to a part of the other dimensions")
		}
	}
	n := x.Shape[axis]
	if n > 1<<24 {
		return nil, unsupported("scatter along %d elements", n)
	}
	// Element j of a line is set where one of the line's indices is j.
	end := len(x.Shape) - 1
	x, at = c.transpose(x, axis, end), c.transpose(at, axis, end)
	if c.err != nil {
		return nil, c.err
	}
	places := graph.NewTensor(at.DType, []int64{n})
	for i := range places.Elems {
		places.Elems[i] = float64(i)
	}
	is := c.add(graph.Eq, graph.Attrs{}, graph.Bool, c.reshape(at, append(append([]int64{}, at.Shape...), 1)),
		c.Constant("", places))
	is = c.add(graph.MaxOf, graph.Attrs{Axes: []int64{int64(end)}}, graph.Bool, is)
	y := c.add(graph.Where, graph.Attrs{}, x.DType, is, c.Scalar(x.DType, c.number("value", 0)), x)
	return one(c.transpose(y, axis, end))
}

func sortOf(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	if c.err != nil {
		return nil, c.err
	}
	a := graph.Attrs{Axis: c.axis("dim", -1, x), Desc: c.flag("descending", false)}
	n, err := c.Add(graph.SortOp, a, c.from, []graph.DType{x.DType, graph.I64}, x)
	if err != nil {
		return nil, malformed("%w", err)
	}
	return n.Out, nil
}

// layers are operators that contract or normalize.
var layers = map[string]operator{
	"linear": func(c *call) ([]*graph.Value, error) {
		in := []*graph.Value{c.tensor("input"), c.tensor("weight")}
		if c.has("bias") {
			in = append(in, c.tensor("bias"))
		}
		return one(c.add(graph.Linear, graph.Attrs{}, c.outDType(0), in...))
	},
	"matmul": func(c *call) ([]*graph.Value, error) {
		a, b := c.tensor("self"), c.tensor("other")
		if c.err == nil && (len(a.Shape) < 2 || len(b.Shape) < 2) {
			return nil, unsupported("matmul of a vector")
		}
		return one(c.add(graph.MatMul, graph.Attrs{}, c.outDType(0), a, b))
	},
	"mm": multiply, "bmm": multiply,
	"addmm": addProduct("mat1", "mat2"), "baddbmm": addProduct("batch1", "batch2"), "conv1d": conv1d,
	"einsum":     einsum,
	"layer_norm": func(c *call) ([]*graph.Value, error) { return normalize(c, graph.LayerNorm, 1e-5) },
	"rms_norm":   func(c *call) ([]*graph.Value, error) { return normalize(c, graph.RMSNorm, math.NaN()) },
	"softmax":    softmax, "_softmax": softmax,
	"scaled_dot_product_attention": attention,
	"_grouped_mm":                  grouped, "transformers.grouped_mm_fallback": grouped,
}

// addProduct reads beta × self + alpha × the product of two operands.
func addProduct(first, second string) operator {
	return func(c *call) ([]*graph.Value, error) {
		bias, a, b := c.tensor("self"), c.tensor(first), c.tensor(second)
		dt := c.outDType(0)
		y := c.scaled(c.add(graph.MatMul, graph.Attrs{}, dt, a, b), c.number("alpha", 1))
		beta := c.number("beta", 1)
		if beta == 0 { // torch reads nothing of self then, not even NaN
			return one(y)
		}
		return one(c.add(graph.AddOp, graph.Attrs{}, dt, y, c.scaled(bias, beta)))
	}
}

// conv1d reads a convolution as one product for each element of the kernel: of matrices, or elementwise where each
// channel is a group.
func conv1d(c *call) ([]*graph.Value, error) {
	x, w := c.tensor("input"), c.tensor("weight")
	first := func(name string, def int64) int64 {
		if list := c.ints(name); len(list) > 0 {
			return list[0]
		}
		return def
	}
	if a := c.arg("padding"); a != nil && a.kind == "as_string" {
		return nil, unsupported("padding=%q", clip(c.word("padding", "")))
	}
	stride, padding, dilation, groups := first("stride", 1), first("padding", 0), first("dilation", 1),
		c.int("groups", 1)
	if c.err != nil || len(x.Shape) != 3 || len(w.Shape) != 3 || stride < 1 || dilation < 1 || padding < 0 {
		return nil, malformed("a convolution of %s by %s", x, w)
	}
	channels, taps := x.Shape[1], w.Shape[2]
	depthwise := groups == channels && w.Shape[0] == channels && w.Shape[1] == 1
	switch {
	case !depthwise && groups != 1:
		return nil, unsupported("a convolution of %d groups of %d channels", groups, channels)
	case taps > 64:
		return nil, unsupported("a convolution of %d elements", taps)
	}
	x = c.padded(x, 2, padding, padding, 0)
	if c.err != nil {
		return nil, c.err
	}
	span := x.Shape[2] - dilation*(taps-1)
	if span < 1 {
		return nil, malformed("a convolution of %s by %s", x, w)
	}
	var y *graph.Value
	dt := c.outDType(0)
	for k := range taps {
		part := c.slice(x, 2, k*dilation, k*dilation+span, stride)
		tap := c.drop(c.slice(w, 2, k, k+1, 1), 2) // [out, in of the group]
		op := graph.MatMul
		if depthwise {
			op = graph.Mul
		}
		z := c.add(op, graph.Attrs{}, dt, tap, part)
		if y == nil {
			y = z
		} else {
			y = c.add(graph.AddOp, graph.Attrs{}, dt, y, z)
		}
	}
	if c.has("bias") && c.err == nil {
		b := c.tensor("bias")
		y = c.add(graph.AddOp, graph.Attrs{}, dt, y, c.reshape(b, []int64{w.Shape[0], 1}))
	}
	return one(y)
}

// einsum reads a product of two operands whose indices are letters: a product of matrices after transpositions.
func einsum(c *call) ([]*graph.Value, error) {
	text, list := strings.ReplaceAll(c.word("equation", ""), " ", ""), c.tensors("tensors")
	in, out, ok := strings.Cut(text, "->")
	first, second, two := strings.Cut(in, ",")
	if c.err != nil || !ok || !two || len(list) != 2 || list[0] == nil || list[1] == nil {
		return nil, unsupported("einsum %q", clip(text))
	}
	a, b := list[0], list[1]
	extent := map[rune]int64{}
	for i, letters := range []string{first, second} {
		v := list[i]
		if len(letters) != len(v.Shape) {
			return nil, unsupported("einsum %q of %s", clip(text), v)
		}
		for d, r := range letters {
			if r < 'A' || r > 'z' || strings.Count(letters, string(r)) > 1 {
				return nil, unsupported("einsum %q", clip(text))
			}
			if n, ok := extent[r]; ok && n != v.Shape[d] {
				return nil, malformed("einsum %q of %s and %s", clip(text), a, b)
			}
			extent[r] = v.Shape[d]
		}
	}
	var batch, rows, cols, sums []rune
	for _, r := range first {
		switch inSecond, inOut := strings.ContainsRune(second, r), strings.ContainsRune(out, r); {
		case inSecond && inOut:
			batch = append(batch, r)
		case inSecond:
			sums = append(sums, r)
		case inOut:
			rows = append(rows, r)
		default:
			return nil, unsupported("einsum %q, which sums one operand alone", clip(text))
		}
	}
	for _, r := range second {
		if !strings.ContainsRune(first, r) {
			if !strings.ContainsRune(out, r) {
				return nil, unsupported("einsum %q, which sums one operand alone", clip(text))
			}
			cols = append(cols, r)
		}
	}
	if len(out) != len(batch)+len(rows)+len(cols) {
		return nil, unsupported("einsum %q", clip(text))
	}
	arranged := func(v *graph.Value, have string, groups ...[]rune) *graph.Value {
		var perm, shape []int64
		for i, g := range groups {
			n := int64(1)
			for _, r := range g {
				perm = append(perm, int64(strings.IndexRune(have, r)))
				n *= extent[r]
				if i == 0 {
					shape = append(shape, extent[r])
				}
			}
			if i > 0 {
				shape = append(shape, n)
			}
		}
		return c.reshape(c.add(graph.Transpose, graph.Attrs{Axes: perm}, v.DType, v), shape)
	}
	dt := c.outDType(0)
	y := c.add(graph.MatMul, graph.Attrs{}, dt, arranged(a, first, batch, rows, sums),
		arranged(b, second, batch, sums, cols))
	have := string(batch) + string(rows) + string(cols)
	var shape, perm []int64
	for _, r := range have {
		shape = append(shape, extent[r])
	}
	for _, r := range out {
		perm = append(perm, int64(strings.IndexRune(have, r)))
	}
	y = c.reshape(y, shape)
	return one(c.add(graph.Transpose, graph.Attrs{Axes: perm}, dt, y))
}

func multiply(c *call) ([]*graph.Value, error) {
	a, b := c.tensor("self"), c.tensor("mat2")
	return one(c.add(graph.MatMul, graph.Attrs{}, c.outDType(0), a, b))
}

func normalize(c *call, op graph.Op, eps float64) ([]*graph.Value, error) {
	x := c.tensor("input")
	if n := c.ints("normalized_shape"); len(n) != 1 {
		return nil, unsupported("normalization over %d dimensions", len(n))
	}
	if c.err != nil {
		return nil, c.err
	}
	in := []*graph.Value{x}
	if c.has("weight") {
		in = append(in, c.tensor("weight"))
	}
	if c.has("bias") {
		if len(in) == 1 {
			return nil, unsupported("a bias without a weight")
		}
		in = append(in, c.tensor("bias"))
	}
	if math.IsNaN(eps) { // torch's default is the type's own
		eps = map[graph.DType]float64{graph.F32: 0x1p-23,
			graph.BF16: 0x1p-23, graph.F16: 0x1p-23, graph.F64: 0x1p-52}[x.DType]
	}
	return one(c.add(op, graph.Attrs{Eps: c.number("eps", eps)}, c.outDType(0), in...))
}

func softmax(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	dt := c.outDType(0)
	return one(c.add(graph.Softmax, graph.Attrs{Axis: c.axis("dim", -1, x)}, dt, c.cast(x, dt)))
}

func attention(c *call) ([]*graph.Value, error) {
	q, k, v := c.tensor("query"), c.tensor("key"), c.tensor("value")
	if c.number("dropout_p", 0) != 0 {
		return nil, unsupported("dropout in attention; export model.eval()")
	}
	if c.err != nil {
		return nil, c.err
	}
	if len(q.Shape) < 3 || len(k.Shape) != len(q.Shape) || len(v.Shape) != len(q.Shape) {
		return nil, malformed("attention of %s, %s and %s", q, k, v)
	}
	if c.flag("enable_gqa", false) {
		k, v = c.groups(k, q), c.groups(v, q)
	}
	// Leading dimensions broadcast, as one head of keys for all of queries.
	d := len(q.Shape)
	lead := q.Shape[:d-2]
	for _, x := range []**graph.Value{&k, &v} {
		if c.err == nil && !slices.Equal((*x).Shape[:d-2], lead) {
			*x = c.add(graph.Broadcast, graph.Attrs{Shape: append(slices.Clone(lead), (*x).Shape[d-2:]...)}, (*x).DType,
				*x)
		}
	}
	a := graph.Attrs{Causal: c.flag("is_causal", false)}
	a.Scale = c.number("scale", 1/math.Sqrt(float64(q.Shape[len(q.Shape)-1])))
	in := []*graph.Value{q, k, v}
	if c.has("attn_mask") {
		in = append(in, c.tensor("attn_mask"))
	}
	return one(c.add(graph.Attention, a, c.outDType(0), in...))
}

// groups repeats the heads of k as often as q has heads for one of them.
func (c *call) groups(k, q *graph.Value) *graph.Value {
	d := len(k.Shape)
	have, want := k.Shape[d-3], q.Shape[d-3]
	if have == 0 || want%have != 0 {
		c.fail(malformed("%d heads of queries for %d of keys", want, have))
		return nil
	}
	if have == want {
		return k
	}
	from := append(append([]int64{}, k.Shape[:d-2]...), 1, k.Shape[d-2], k.Shape[d-1])
	to := append([]int64{}, from...)
	to[d-2] = want / have
	out := append([]int64{}, k.Shape...)
	out[d-3] = want
	y := c.add(graph.Broadcast, graph.Attrs{Shape: to}, k.DType, c.reshape(k, from))
	return c.reshape(y, out)
}

// grouped reads the product of sorted rows with the matrix of their group.
func grouped(c *call) ([]*graph.Value, error) {
	list := []*graph.Value{}
	for i := range c.node.Inputs {
		if a := &c.node.Inputs[i]; a.Arg.kind == "as_tensor" {
			list = append(list, c.tensor(a.Name))
		}
	}
	if c.err != nil || len(list) != 3 {
		return nil, malformed("it has %d tensors", len(list))
	}
	return one(c.add(graph.GroupedMatMul, graph.Attrs{}, c.outDType(0), list...))
}
