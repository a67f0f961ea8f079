package torchexport

import (
	"math"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// call translates one call of an operator. After the field err has been set, the methods of call return zero values. A
// translation therefore needs to check err only at its end, and before it uses a tensor.
type call struct {
	arguments
	from     graph.Origin
	inPlaced bool // set if the operator changes its operand in place
}

// arguments reads the arguments of a call.
type arguments struct {
	*builder
	node *node
	outs []string // names of the results; "" for a result that is not used
	err  error
}

// base returns the operator's name without namespace and overload. It also removes the suffix "_" of operators that
// change their operand in place.
func (n *node) base() string { return strings.TrimSuffix(operatorName(n.Target), "_") }

// operatorName returns "add" for "torch.ops.aten.add.Tensor". In the names of other namespaces, it keeps the namespace.
func operatorName(target string) string {
	space, rest, _ := strings.Cut(strings.TrimPrefix(target, "torch.ops."), ".")
	name, _, _ := strings.Cut(rest, ".")
	if space != "aten" {
		return space + "." + name
	}
	return name
}

func (c *arguments) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// arg returns an argument, or nil if it is absent or None.
func (c *arguments) arg(name string) *arg {
	for i := range c.node.Inputs {
		if a := &c.node.Inputs[i]; a.Name == name && a.Arg.kind != "as_none" {
			return &a.Arg
		}
	}
	return nil
}

// tensorNamed returns the name of the tensor that an argument refers to, or "" if the argument is not a tensor.
func (c *arguments) tensorNamed(name string) string {
	a := c.arg(name)
	if a == nil || a.kind != "as_tensor" {
		return ""
	}
	n, _ := a.tensor() // the method uses has already read the argument without an error
	return n
}

// lookup returns the value of a name.
func (c *arguments) lookup(name string) *graph.Value {
	v := c.env[name]
	if v == nil {
		c.fail(malformed("an argument is %q, which no earlier call computes", clip(name)))
	}
	return v
}

// has reports whether an argument is a tensor.
func (c *arguments) has(name string) bool { return c.tensorNamed(name) != "" }

// tensor returns an argument that must be a tensor.
func (c *arguments) tensor(name string) *graph.Value {
	if !c.has(name) {
		c.fail(malformed("argument %q is not a tensor", name))
		return nil
	}
	return c.lookup(c.tensorNamed(name))
}

// tensors returns the elements of an argument that is a list of tensors. An element that is None is returned as nil.
func (c *arguments) tensors(name string) []*graph.Value {
	a := c.arg(name)
	if a == nil {
		c.fail(malformed("there is no argument %q", name))
		return nil
	}
	names, err := tensorNames(a)
	if err != nil {
		c.fail(err)
	}
	var list []*graph.Value
	for _, n := range names {
		if n == "" {
			list = append(list, nil)
		} else {
			list = append(list, c.lookup(n))
		}
	}
	return list
}

// number returns an argument that is a number, or def if the argument is absent.
func (c *arguments) number(name string, def float64) float64 {
	a := c.arg(name)
	if a == nil {
		return def
	}
	x := def
	switch a.kind {
	case "as_float":
		var s any
		if err := a.into(&s); err != nil {
			c.fail(err)
			return def
		}
		switch s := s.(type) {
		case float64:
			x = s
		case string:
			named, ok := map[string]float64{"Infinity": math.Inf(1), "-Infinity": math.Inf(-1), "NaN": math.NaN()}[s]
			if x = named; !ok {
				x = def
				c.fail(malformed("number %q", clip(s)))
			}
		default:
			c.fail(malformed("argument %q is not a number", name))
		}
	case "as_int", "as_sym_int":
		x = float64(c.int(name, 0))
	case "as_bool":
		if x = 0; c.flag(name, false) {
			x = 1
		}
	default:
		c.fail(unsupported("argument %q is %s", name, clip(a.kind)))
	}
	return x
}

// int returns an argument that is an integer, or def if the argument is absent.
func (c *arguments) int(name string, def int64) int64 {
	a := c.arg(name)
	if a == nil {
		return def
	}
	n := def
	switch a.kind {
	case "as_int":
		if err := a.into(&n); err != nil {
			c.fail(err)
		}
	case "as_sym_int":
		var s symInt
		if err := a.into(&s); err != nil {
			c.fail(err)
		} else if v, ok := c.named(s); !ok {
			c.fail(unsupported("argument %q is computed from the input", name))
		} else {
			n = v
		}
	default:
		c.fail(unsupported("argument %q is %s, not a whole number", name, clip(a.kind)))
	}
	return n
}

// ints returns an argument that is a list of integers. A single integer is returned as a list of one.
func (c *arguments) ints(name string) []int64 {
	a := c.arg(name)
	if a == nil {
		return nil
	}
	var list []int64
	switch a.kind {
	case "as_ints":
		if err := a.into(&list); err != nil {
			c.fail(err)
		}
	case "as_int":
		list = []int64{c.int(name, 0)}
	case "as_sym_ints":
		var syms []symInt
		if err := a.into(&syms); err != nil {
			c.fail(err)
		}
		for _, s := range syms {
			v, ok := c.named(s)
			if !ok {
				c.fail(unsupported("argument %q is computed from the input", name))
				return nil
			}
			list = append(list, v)
		}
	default:
		c.fail(unsupported("argument %q is %s, not whole numbers", name, clip(a.kind)))
	}
	if len(list) > 1<<16 {
		c.fail(malformed("argument %q has %d numbers", name, len(list)))
		return nil
	}
	return list
}

func (c *arguments) flag(name string, def bool) bool {
	a := c.arg(name)
	if a == nil {
		return def
	}
	b := def
	if a.kind != "as_bool" {
		c.fail(unsupported("argument %q is %s, not a bool", name, clip(a.kind)))
	} else if err := a.into(&b); err != nil {
		c.fail(err)
	}
	return b
}

func (c *arguments) word(name, def string) string {
	a := c.arg(name)
	if a == nil {
		return def
	}
	s := def
	if a.kind != "as_string" {
		c.fail(unsupported("argument %q is %s, not a string", name, clip(a.kind)))
	} else if err := a.into(&s); err != nil {
		c.fail(err)
	}
	return s
}

// outDType returns the element type of result i according to the export.
func (c *arguments) outDType(i int) graph.DType {
	if i < len(c.outs) {
		if meta := c.text.TensorValues[c.outs[i]]; meta != nil {
			d, err := dtypeOf(meta.DType)
			if err != nil {
				c.fail(err)
			}
			return d
		}
	}
	c.fail(malformed("result %d has no type", i))
	return graph.F32
}

// axis returns an argument that names a dimension of v. A negative number counts from the end.
func (c *arguments) axis(name string, def int64, v *graph.Value) int {
	return c.dim(c.int(name, def), v)
}

func (c *arguments) dim(d int64, v *graph.Value) int {
	if v == nil {
		return 0
	}
	n := int64(len(v.Shape))
	if d < 0 {
		d += n
	}
	if d < 0 || d >= max(n, 1) {
		c.fail(malformed("%s has no dimension %d", v, d))
		return 0
	}
	return int(d)
}

// newAxis returns the argument dim of an operator that adds a dimension to v.
func (c *arguments) newAxis(v *graph.Value) (int, error) {
	d := c.int("dim", 0)
	if d < 0 {
		d += int64(len(v.Shape)) + 1
	}
	if d < 0 || d > int64(len(v.Shape)) {
		return 0, malformed("%s has no dimension %d", v, d)
	}
	return int(d), nil
}

// axes returns an argument that lists dimensions of v. If the list is empty or absent, it returns all dimensions.
func (c *arguments) axes(name string, v *graph.Value) []int64 {
	list := []int64{}
	for _, d := range c.ints(name) {
		list = append(list, int64(c.dim(d, v)))
	}
	if len(list) == 0 && v != nil {
		for d := range v.Shape {
			list = append(list, int64(d))
		}
	}
	return list
}

// add adds an operation with one result to the graph, and returns the result.
func (c *call) add(op graph.Op, a graph.Attrs, dt graph.DType, in ...*graph.Value) *graph.Value {
	if c.err != nil {
		return nil
	}
	n, err := c.Add(op, a, c.from, []graph.DType{dt}, in...)
	if err != nil {
		c.fail(malformed("%w", err))
		return nil
	}
	return n.Out[0]
}

// op adds an operation without attributes.
func (c *call) op(op graph.Op, dt graph.DType, in ...*graph.Value) *graph.Value {
	return c.add(op, graph.Attrs{}, dt, in...)
}

// broadcast returns v repeated to a shape.
func (c *call) broadcast(v *graph.Value, shape []int64) *graph.Value {
	if v == nil {
		return nil
	}
	return c.add(graph.Broadcast, graph.Attrs{Shape: shape}, v.DType, v)
}

// cast returns v converted to the type dt. A conversion to integers rounds towards zero, as torch's does; the cast of
// hocket's language rounds to the nearest integer.
func (c *call) cast(v *graph.Value, dt graph.DType) *graph.Value {
	if v == nil || v.DType == dt {
		return v
	}
	if v.DType.IsFloat() && !dt.IsFloat() && dt != graph.Bool && !integral(v) {
		negative := c.op(graph.Lt, graph.Bool, v, c.Scalar(v.DType, 0))
		v = c.op(graph.Where, v.DType, negative, c.ceil(v), c.op(graph.Floor, v.DType, v))
	}
	return c.op(graph.Cast, dt, v)
}

// integral reports whether it is known from the operation that computes v that its elements are integers.
func integral(v *graph.Value) bool {
	from := v.Made(graph.Cast)
	return v.Made(graph.Floor) != nil || v.Made(graph.BinCount) != nil || from != nil && !from.In[0].DType.IsFloat()
}

// ceil returns v rounded up to integers.
func (c *call) ceil(v *graph.Value) *graph.Value {
	if v == nil {
		return nil
	}
	return c.op(graph.Neg, v.DType, c.op(graph.Floor, v.DType, c.op(graph.Neg, v.DType, v)))
}

// reshape returns v with another shape. One extent of the shape may be -1, which is then computed from the others.
func (c *call) reshape(v *graph.Value, shape []int64) *graph.Value {
	if v == nil || c.err != nil {
		return nil
	}
	shape = append([]int64{}, shape...)
	at, n := -1, int64(1)
	for i, d := range shape {
		switch {
		case d == -1 && at < 0:
			at = i
		case d < 0 || d > 1<<40 || n*max(d, 1) > 1<<40:
			c.fail(malformed("shape %v", shape))
			return nil
		default:
			n *= d
		}
	}
	if at >= 0 {
		if n == 0 || v.Count()%n != 0 {
			c.fail(malformed("%s cannot be reshaped to %v", v, shape))
			return nil
		}
		shape[at] = v.Count() / n
	}
	if slices.Equal(shape, v.Shape) {
		return v
	}
	return c.add(graph.Reshape, graph.Attrs{Shape: shape}, v.DType, v)
}

// transpose swaps dimensions i and j of v.
func (c *call) transpose(v *graph.Value, i, j int) *graph.Value {
	if v == nil || i == j {
		return v
	}
	return c.add(graph.Transpose, graph.Attrs{Axes: graph.Swapped(len(v.Shape), i, j)}, v.DType, v)
}

// slice selects every step-th element from lo to hi, exclusive, along a dimension.
func (c *call) slice(v *graph.Value, axis int, lo, hi, step int64) *graph.Value {
	if v == nil || c.err != nil {
		return nil
	}
	if axis >= len(v.Shape) {
		c.fail(malformed("%s has no dimension %d", v, axis))
		return nil
	}
	size := v.Shape[axis]
	within := func(i int64) int64 {
		if i < 0 {
			i += size
		}
		return min(max(i, 0), size)
	}
	lo, hi = within(lo), within(hi)
	hi = max(lo, hi)
	if lo == 0 && hi == size && step == 1 {
		return v
	}
	if step <= 1 {
		return c.add(graph.SliceOp, graph.Attrs{Axis: axis, Lo: lo, Hi: hi, Step: step}, v.DType, v)
	}
	return c.strided(v, axis, lo, (hi-lo+step-1)/step, step)
}

// strided selects every step-th element along a dimension, count elements in total, beginning with element lo.
func (c *call) strided(v *graph.Value, axis int, lo, count, step int64) *graph.Value {
	if step > 1<<24 {
		c.fail(malformed("step %d", step))
		return nil
	}
	if count == 0 {
		return c.slice(v, axis, lo, lo, 1)
	}
	size := v.Shape[axis]
	within := lo % step
	if (lo-within)+count*step <= size {
		lo -= within
	} else {
		within = 0
		if short := lo + count*step - size; short > 0 {
			v = c.padded(v, axis, 0, short, 0)
		}
	}
	v = c.slice(v, axis, lo, lo+count*step, 1)
	if c.err != nil {
		return nil
	}
	shape := slices.Replace(slices.Clone(v.Shape), axis, axis+1, count, step)
	return c.drop(c.slice(c.reshape(v, shape), axis+1, within, within+1, 1), axis+1)
}

// drop removes the dimension axis, whose extent is 1.
func (c *call) drop(v *graph.Value, axis int) *graph.Value {
	if v == nil || c.err != nil {
		return nil
	}
	return c.reshape(v, slices.Delete(slices.Clone(v.Shape), axis, axis+1))
}
