package torchexport

import (
	"hocket.example/hocket/internal/graph"
)

// operator translates one call: it adds operations to the graph and returns the results of the call.
type operator func(c *call) ([]*graph.Value, error)

// views holds the operators whose result may share the memory of their first operand.
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

// operators maps the names of ATen operators, without overload, to their translations. An operator that changes its
// operand in place has a name that ends with "_"; it is translated like the operator without the "_".
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
				return nil, unsupported("bitwise operations on %s", dt)
			}
			return one(c.op(op, dt, x))
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
			return one(c.op(op, graph.Bool, a, b))
		}
	}
	for name, op := range map[string]graph.Op{
		"__and__": graph.And, "bitwise_and": graph.And, "logical_and": graph.And, "__or__": graph.Or,
		"bitwise_or": graph.Or, "logical_or": graph.Or,
	} {
		operators[name] = func(c *call) ([]*graph.Value, error) {
			a, b := c.pair("self", "other")
			if c.err == nil && (a.DType != graph.Bool || b.DType != graph.Bool) {
				return nil, unsupported("bitwise operations on %s", a.DType)
			}
			return one(c.op(op, graph.Bool, a, b))
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
	operators["detach_"] = same // detach_ changes no element
	for _, list := range []map[string]operator{elementwise, shapes, creators, indexers, layers} {
		for name, op := range list {
			operators[name] = op
		}
	}
	for alias, name := range map[string]string{"concat": "cat", "concatenate": "cat", "greater": "gt", "less": "lt",
		"negative": "neg", "absolute": "abs", "swapaxes": "transpose", "swapdims": "transpose", "clip": "clamp"} {
		operators[alias] = operators[name]
	}
}

// same translates contiguous, detach, to and similar operators. The result of these operators is their operand,
// converted if the result has another element type.
func same(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	if c.err != nil {
		return nil, c.err
	}
	return one(c.cast(x, c.outDType(0)))
}
