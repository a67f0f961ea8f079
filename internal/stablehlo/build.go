package stablehlo

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// These constants limit the size of the graph that is made from a text.
const (
	maxNodes = 1 << 18 // operations of the graph
	maxCalls = 100     // maximum depth of nested calls
	maxSteps = 1 << 17 // maximum number of translated operations, in all calls and iterations
	maxUses  = 1 << 22 // maximum number of operands of all operations of the graph
)

// tens is a value of the text. The graph value v represents the value of the text, and broadcasts to the type's shape
// by the rules of numpy. Therefore, elements are repeated only when an operation requires repeated elements.
type tens struct {
	v *graph.Value
	t typ
	// lifted reports that v has an additional first dimension for the devices of a manual computation. The extent of
	// this dimension is b.lift or 1.
	lifted bool
	im     *graph.Value // the imaginary parts of a complex value
}

// scope maps names to values.
type scope struct {
	values map[string]tens
	outer  *scope
}

func (s *scope) find(name string) (tens, bool) {
	for ; s != nil; s = s.outer {
		if x, ok := s.values[name]; ok {
			return x, true
		}
	}
	return tens{}, false
}

// builder makes a graph from a text.
type builder struct {
	devices
	steps int
}

// nodes adds nodes to the graph, and reads the attributes of the current operation.
type nodes struct {
	name   string
	g      *graph.Graph
	folder *graph.Folder
	op     *op // the operation that is being translated
	calls  int
	uses   int
	lift   int64 // extent of the dimension for devices; 0 outside of manual computations
	given  bool  // set in a test, where constants of main become inputs
	checks []Check
}

// at describes the position of the current operation.
func (b *nodes) at() string {
	if b.op == nil {
		return b.name
	}
	return fmt.Sprintf("%s:%d: %s", b.name, b.op.line, b.op.name)
}

// refuse panics with the error that the program is not supported.
func (b *nodes) refuse(format string, args ...any) {
	panic(failure{fmt.Errorf("%s: %w: %s", b.at(), ErrUnsupported, fmt.Sprintf(format, args...))})
}

// wrong panics with the error that the text is malformed.
func (b *nodes) wrong(format string, args ...any) {
	panic(failure{fmt.Errorf("%s: %w: %s", b.at(), ErrMalformed, fmt.Sprintf(format, args...))})
}

// main translates the function main.
func (b *builder) main(o Options) {
	f := b.module.entry(b.name)
	b.op = &op{name: "function " + f.name, line: f.line}
	if f.body == nil {
		b.wrong("it has no body")
	}
	b.layouts(o)
	s := &scope{values: map[string]tens{}}
	for i, a := range f.args {
		name := a.name
		if name == "" {
			name = fmt.Sprintf("arg%d", i)
		}
		if b.tensor(a.t); a.t.narrow != "" || a.t.complex {
			b.refuse("%%%s is of type %s", name, a.t)
		}
		s.values[a.name] = b.input(name, a)
	}
	for i, x := range b.block(f.body, s, len(f.results)) {
		if !slices.Equal(x.t.shape, f.results[i].t.shape) || x.t.dt != f.results[i].t.dt {
			b.wrong("result %d is of type %s, but the function declares %s", i, x.t, f.results[i].t)
		}
		if x.t.narrow != "" || x.t.complex {
			b.refuse("result %d is of type %s", i, x.t)
		}
		b.output(x, b.layoutOf(fmt.Sprintf("out%d", i), x.t.shape, f.results[i].attrs))
	}
}

// output adds an output. Bools become i32.
func (b *nodes) output(x tens, layout graph.Layout) {
	v := b.full(x)
	if v.DType == graph.Bool {
		v = b.add(graph.Cast, graph.Attrs{}, graph.I32, v)
	}
	b.g.Outputs = append(b.g.Outputs, v)
	b.g.OutputLayouts = append(b.g.OutputLayouts, layout)
}

// moves lists operations that do not compute new elements: each element of their results is an element of an operand,
// or the position of one.
var moves = map[string]bool{"sort": true, "reshape": true, "transpose": true, "broadcast_in_dim": true, "slice": true,
	"concatenate": true, "gather": true, "select": true, "dynamic_slice": true, "call": true, "func.call": true,
	"while": true, "case": true, "if": true, "composite": true, "optimization_barrier": true}

// held returns x as the result of an operation with type t. Integers of a width that graphs do not support must be
// known, and must fit into that width.
func (b *devices) held(x tens, t typ) tens {
	shape := x.v.Shape[x.off():]
	skip := len(t.shape) - len(shape)
	for i, d := range shape {
		if skip < 0 || d != 1 && d != t.shape[skip+i] {
			b.wrong("the result is not of type %s", t)
		}
	}
	x.t = t
	if t.narrow == "" {
		return x
	}
	list := b.known(x)
	if list == nil {
		if name := strings.TrimPrefix(b.op.name, "stablehlo."); moves[name] ||
			name == "scatter" && bodyOp(b.op.region(&b.nodes, 0), 0, 1) != "add" { // the operand was checked before
			return x
		}
		b.refuse("%s that depends on the input", t)
	}
	for _, e := range list.Elems {
		if r := narrow[t.narrow]; e < r[0] || e > r[1] {
			b.refuse("%s with overflow", t)
		}
	}
	return x
}

// input adds an input of the graph for a parameter.
func (b *devices) input(name string, a arg) tens {
	dt := a.t.dt
	if dt == graph.Bool {
		dt = graph.I32
	}
	b.long = b.long || dt == graph.I64
	v := b.g.Input(name, dt, a.t.shape)
	v.Layout = b.layoutOf(name, a.t.shape, a.attrs)
	if a.t.dt == graph.Bool {
		v = b.add(graph.Ne, graph.Attrs{}, graph.Bool, v, b.g.Scalar(graph.I32, 0))
	}
	return tens{v: v, t: a.t}
}

// tensor reports an error for types whose elements graphs do not support.
func (b *nodes) tensor(t typ) {
	if t.other != "" {
		b.refuse("type %s; elements are of i1, i32, i64, f16, bf16, f32 or f64, and extents are known", t.other)
	}
}

// block translates the operations of a block and returns the operands of its terminator.
func (b *builder) block(blk *block, s *scope, results int) []tens {
	before := b.op
	for _, o := range blk.ops {
		b.op = o
		if b.steps++; b.steps > maxSteps {
			b.refuse("more than %d operations in all calls and iterations", maxSteps)
		}
		in := make([]tens, len(o.in))
		for i, name := range o.in {
			x, ok := s.find(name)
			if !ok {
				b.wrong("there is no %%%s", name)
			}
			in[i] = x
		}
		switch o.name {
		case "return", "func.return", "stablehlo.return", "sdy.return", "mhlo.return":
			if len(in) != results {
				b.wrong("%d results, want %d", len(in), results)
			}
			b.op = before
			return in
		}
		b.define(o, in, s)
	}
	if results != 0 {
		b.wrong("a block has no return")
	}
	b.op = before
	return nil
}

// define translates an operation and names its results in s.
func (b *builder) define(o *op, in []tens, s *scope) {
	if len(o.out) == 0 {
		b.walk(o, in, s)
		return
	}
	for _, t := range o.types {
		b.tensor(t)
	}
	out := b.walk(o, in, s)
	if len(out) != len(o.out) {
		b.wrong("it has %d results, not %d", len(out), len(o.out))
	}
	for i, x := range out {
		want := o.types[i]
		if x.t.dt != want.dt || x.t.complex != want.complex || !slices.Equal(x.t.shape, want.shape) {
			b.wrong("the result is of type %s, not %s", x.t, want)
		}
		x = b.held(x, want)
		name := o.out[i]
		s.values[name] = x
		if first, ok := strings.CutSuffix(name, "#0"); ok && i == 0 {
			s.values[first] = x
		} else if !strings.Contains(name, "#") {
			s.values[name+"#0"] = x
		}
	}
}

// controls lists operations that pass values through, of any type.
var controls = map[string]bool{"interpreter.run_parallel": true, "call": true, "func.call": true, "while": true,
	"case": true, "if": true, "composite": true, "sdy.manual_computation": true, "sdy.named_computation": true}

// walk translates an operation and returns its results.
func (b *builder) walk(o *op, in []tens, s *scope) []tens {
	one := func(x tens) []tens { return []tens{x} }
	if isCheck(o.name) {
		b.compared(in)
		return nil
	}
	name := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(o.name, "stablehlo."), "chlo."), "mhlo.")
	if slices.ContainsFunc(in, func(x tens) bool { return x.t.complex }) ||
		slices.ContainsFunc(o.types, func(t typ) bool { return t.complex }) || name == "real" || name == "imag" {
		if !controls[name] {
			return b.ofComplex(o, name, in, s)
		}
	}
	if x, ok := b.wholeNumbers(name, in); ok {
		return one(x)
	}
	if f := unaryOps[name]; f != nil {
		b.want(in, 1)
		return one(f(b, in[0], b.result()))
	}
	if f := binaryOps[name]; f != nil {
		b.want(in, 2)
		if !slices.Equal(in[0].t.shape, in[1].t.shape) && !strings.HasPrefix(o.name, "chlo.") {
			b.wrong("operands are of types %s and %s", in[0].t, in[1].t)
		}
		return one(f(b, in[0], in[1], b.result()))
	}
	if f := otherOps[name]; f != nil {
		return f(b, in)
	}
	switch name { // operations with regions
	case "while":
		return b.while(in, s)
	case "case", "if":
		return b.choose(in, s)
	case "sdy.manual_computation":
		return b.manual(in, s)
	case "sdy.named_computation":
		return b.inner(o.region(&b.nodes, 0), in, s, len(o.types))
	case "reduce":
		return b.reduce(in, s)
	case "reduce_window":
		return b.reduceWindow(in, s)
	case "scatter":
		return one(b.scatter(in, s))
	}
	b.refuse("there is no rule for it")
	return nil
}

// region returns the i-th region of an operation.
func (o *op) region(b *nodes, i int) *block {
	if i >= len(o.regions) {
		b.wrong("it has %d regions", len(o.regions))
	}
	return o.regions[i]
}

// want reports an error if the number of operands is not n.
func (b *nodes) want(in []tens, n int) {
	if len(in) != n {
		b.wrong("it has %d operands, want %d", len(in), n)
	}
}

// result returns the type of the operation's result. The operation must have exactly one.
func (b *nodes) result() typ {
	if len(b.op.types) != 1 {
		b.wrong("it has %d results, want 1", len(b.op.types))
	}
	return b.op.types[0]
}

// inner translates a region with the given arguments.
func (b *builder) inner(blk *block, in []tens, s *scope, results int) []tens {
	if len(blk.args) != len(in) {
		b.wrong("a region has %d parameters, but gets %d values", len(blk.args), len(in))
	}
	inner := &scope{values: map[string]tens{}, outer: s}
	for i, a := range blk.args {
		inner.values[a.name] = in[i]
	}
	return b.block(blk, inner, results)
}

// function translates a function at a call.
func (b *builder) function(name string, in []tens) []tens {
	f := b.module.funcs[name]
	if f == nil || f.body == nil {
		b.wrong("there is no function %s", name)
	}
	if len(f.args) != len(in) {
		b.wrong("function %s has %d parameters, but gets %d values", name, len(f.args), len(in))
	}
	if b.calls++; b.calls > maxCalls {
		b.refuse("functions that call each other more than %d deep", maxCalls)
	}
	s := &scope{values: map[string]tens{}}
	for i, a := range f.args {
		if a.t.dt != in[i].t.dt || a.t.complex != in[i].t.complex || !slices.Equal(a.t.shape, in[i].t.shape) {
			b.wrong("parameter %d of %s is of type %s, not %s", i, name, a.t, in[i].t)
		}
		s.values[a.name] = in[i]
	}
	out := b.block(f.body, s, len(f.results))
	b.calls--
	return out
}

func (b *builder) call(in []tens) []tens {
	name := ""
	if a := b.op.attrs["callee"]; a != nil {
		name = a.text
	} else if len(b.op.words) > 0 {
		name = b.op.words[0]
	}
	return b.function(name, in)
}

// composite translates the function that defines a composite operation.
func (b *builder) composite(in []tens) []tens {
	a := b.op.attrs["decomposition"]
	if a == nil {
		b.wrong("it has no decomposition")
	}
	return b.function(a.text, in)
}

// known returns the elements of a value that depends only on constants. It returns nil for other values.
func (b *nodes) known(x tens) *graph.Tensor {
	if !b.folder.IsConstant(x.v) {
		return nil
	}
	t, err := b.folder.Value(x.v)
	if err != nil {
		b.refuse("%v", err)
	}
	return t
}

// uniform returns the number that all elements of x equal, if they are known to be equal.
func (b *nodes) uniform(x tens) (float64, bool) {
	t := b.known(x)
	if t == nil {
		return 0, false
	}
	return t.Uniform()
}

// isTrue returns the value of a condition, which must be known.
func (b *nodes) isTrue(x tens, what string) bool {
	c, ok := b.uniform(x)
	if !ok {
		b.refuse("%s depends on the input", what)
	}
	return c != 0
}

// while translates the iterations of a loop one after another.
func (b *builder) while(in []tens, s *scope) []tens {
	o := b.op
	cond, body := o.region(&b.nodes, 0), o.region(&b.nodes, 1)
	for {
		c := b.inner(cond, in, s, 1)[0]
		b.op = o
		if c.t.dt != graph.Bool {
			b.wrong("the condition is of type %s", c.t)
		}
		if !b.isTrue(c, "how often it runs") {
			return in
		}
		if b.steps++; b.steps > maxSteps {
			b.refuse("more than %d operations in all calls and iterations", maxSteps)
		}
		out := b.inner(body, in, s, len(in))
		for i, x := range out {
			if x.t.dt != in[i].t.dt || !slices.Equal(x.t.shape, in[i].t.shape) {
				b.wrong("value %d of the loop has type %s, but the body returns type %s for it", i, in[i].t, x.t)
			}
		}
		in = out
	}
}

// choose translates a case or an if. If the branch is known, it translates only that branch; otherwise it selects
// between the results of all branches.
func (b *builder) choose(in []tens, s *scope) []tens {
	o := b.op
	b.want(in, 1)
	n := len(o.regions)
	if n == 0 {
		b.wrong("it has no branches")
	}
	index := in[0]
	if o.name == "stablehlo.if" { // the first branch is executed if the condition is true
		if n != 2 {
			b.wrong("it has %d branches", n)
		}
		i := b.elementwise(graph.Cast, graph.I32, index)
		index = b.elementwise(graph.Sub, graph.I32, b.scalar(graph.I32, 1), i)
	}
	if x, ok := b.uniform(index); ok {
		k := int(x)
		if x < 0 || x >= float64(n) {
			k = n - 1
		}
		return b.inner(o.regions[k], nil, s, len(o.types))
	}
	var out []tens
	for k := n - 1; k >= 0; k-- {
		got := b.inner(o.regions[k], nil, s, len(o.types))
		b.op = o
		if out == nil {
			out = got
			continue
		}
		is := b.elementwise(graph.Eq, graph.Bool, index, b.scalar(index.t.dt, float64(k)))
		for i := range out {
			if got[i].t.complex || out[i].t.complex {
				b.refuse("a choice of complex numbers that depends on the input")
			}
			if got[i].t.dt != out[i].t.dt || !slices.Equal(got[i].t.shape, out[i].t.shape) {
				b.wrong("branches have results of types %s and %s", got[i].t, out[i].t)
			}
			out[i] = b.retyped(b.elementwise(graph.Where, out[i].t.dt, b.stretched(is, out[i].t.shape), got[i], out[i]),
				out[i].t)
		}
	}
	return out
}

// add adds a node to the graph.
func (b *nodes) add(op graph.Op, a graph.Attrs, dt graph.DType, in ...*graph.Value) *graph.Value {
	if len(b.g.Nodes) >= maxNodes {
		b.refuse("it becomes more than %d operations", maxNodes)
	}
	if b.uses += len(in); b.uses > maxUses {
		b.refuse("it becomes operations of more than %d operands", maxUses)
	}
	from := graph.Origin{}
	if b.op != nil {
		from = graph.Origin{Name: b.op.name, Source: fmt.Sprintf("line %d", b.op.line)}
	}
	n, err := b.g.Add(op, a, from, []graph.DType{dt}, in...)
	if err != nil {
		if errors.Is(err, graph.ErrTooLarge) {
			b.refuse("%v", err)
		}
		b.wrong("%v", err)
	}
	return n.Out[0]
}

// scalar returns a constant without dimensions.
func (b *nodes) scalar(dt graph.DType, x float64) tens {
	return tens{v: b.g.Scalar(dt, x), t: typ{dt: dt, shape: []int64{}}}
}

// retyped returns x with another type. x must broadcast to the shape of that type.
func (b *nodes) retyped(x tens, t typ) tens {
	x.t = t
	return x
}

// stretched returns the scalar x broadcast to a shape.
func (b *nodes) stretched(x tens, shape []int64) tens {
	if len(x.t.shape) == 0 {
		if x.lifted {
			ones := append([]int64{x.v.Shape[0]}, slices.Repeat([]int64{1}, len(shape))...)
			x.v = b.reshaped(x.v, ones)
		}
		x.t = typ{dt: x.t.dt, shape: shape}
	}
	return x
}

// reshaped returns v with another shape.
func (b *nodes) reshaped(v *graph.Value, shape []int64) *graph.Value {
	if slices.Equal(v.Shape, shape) {
		return v
	}
	return b.add(graph.Reshape, graph.Attrs{Shape: slices.Clone(shape)}, v.DType, v)
}

// permuted returns v with its dimensions in another order.
func (b *nodes) permuted(v *graph.Value, perm []int64) *graph.Value {
	if slices.Equal(perm, graph.Counting(len(perm))) {
		return v
	}
	return b.add(graph.Transpose, graph.Attrs{Axes: perm}, v.DType, v)
}

// padded returns x with all dimensions of its type, where dimensions along which x broadcasts have extent 1. If lifted
// is set, the dimension of the devices is added in front.
func (b *nodes) padded(x tens, lifted bool) *graph.Value {
	front, shape := x.v.Shape[:x.off()], x.v.Shape[x.off():]
	if lifted && !x.lifted {
		front = []int64{1}
	}
	if len(shape) > len(x.t.shape) {
		b.wrong("operands have other shapes than type %s", x.t)
	}
	ones := slices.Repeat([]int64{1}, len(x.t.shape)-len(shape))
	return b.reshaped(x.v, slices.Concat(front, ones, shape))
}

// full returns x with all its elements repeated as its type requires. If x is lifted, the dimension of the devices is
// in front.
func (b *nodes) full(x tens) *graph.Value {
	return b.fullAs(x, x.lifted)
}

// fullAs is like full, but adds the dimension of the devices if lifted is set.
func (b *nodes) fullAs(x tens, lifted bool) *graph.Value {
	want := x.t.shape
	if lifted {
		want = append([]int64{b.lift}, want...)
	}
	v := x.v
	if lifted && !x.lifted {
		v = b.padded(x, true)
	}
	if slices.Equal(v.Shape, want) {
		return v
	}
	if v.Count() == 1 && lifted == x.lifted && len(v.Shape) > 0 && !lifted {
		v = b.reshaped(v, []int64{})
	}
	return b.add(graph.Broadcast, graph.Attrs{Shape: slices.Clone(want)}, v.DType, v)
}

// elementwise adds an elementwise operation. The result has the shape of the first operand that has dimensions.
func (b *nodes) elementwise(op graph.Op, dt graph.DType, in ...tens) tens {
	lifted := false
	shape := []int64{}
	for _, x := range in {
		lifted = lifted || x.lifted
		if len(shape) == 0 {
			shape = x.t.shape
		}
	}
	list := make([]*graph.Value, len(in))
	for i, x := range in {
		list[i] = x.v
		if len(x.t.shape) == 0 && len(shape) > 0 {
			x = b.stretched(x, shape)
			list[i] = x.v
		}
		if lifted && len(list[i].Shape) > 0 {
			list[i] = b.padded(x, true)
		}
	}
	v := b.add(op, graph.Attrs{}, dt, list...)
	return tens{v: v, t: typ{dt: dt, shape: shape}, lifted: lifted}
}

// anyLifted reports whether any of the values is lifted.
func anyLifted(in ...tens) bool {
	return slices.ContainsFunc(in, func(x tens) bool { return x.lifted })
}
