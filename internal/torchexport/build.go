package torchexport

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// builder converts a program to a graph.
type builder struct {
	*graph.Graph
	archive *Archive
	program *program
	text    *subgraph               // the graph in the archive that is being read: the program's, or a nested one
	depth   int                     // nesting depth of the graph in text; 0 for the program's own graph
	env     map[string]*graph.Value // maps a name in the export to the value
	// The map storage assigns each name to a group. Names in one group may refer to the same memory, because one tensor
	// is a view of another. The map members lists the names of each group. The map named last gives the position of the
	// last use of each name.
	storage map[string]string
	members map[string][]string
	owner   map[string]string // for each group: the tensor that owns the memory; other names are views of it
	outer   map[string]bool   // groups that share memory with the enclosing graph
	copied  map[string]bool   // names of results that torch creates either as views or as copies
	last    map[string]int
	at      int                     // index of the node that is being read
	buffers map[string]string       // maps a buffer's name in the module tree to its name in the export
	leaf    map[string]*graph.Value // maps a name to the value of an input, parameter or constant before the first call
	numbers map[string]int64        // maps the name of an integer that the program computes from extents to its value
}

// maxNodes is the maximum number of operations in a program.
const maxNodes = 1 << 18

// Graph converts the archive's program to a graph. Buffers and constants that the program changes become states; all
// others become constants. The argument extents sets the values of symbols (see Symbols).
func (a *Archive) Graph(extents map[string]int64) (*graph.Graph, error) {
	b := newBuilder(&graph.Graph{File: a.path}, a, &a.program.GraphModule.Graph)
	err := b.resolve(extents)
	if err == nil {
		err = b.build()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.path, err)
	}
	return b.Graph, nil
}

func newBuilder(g *graph.Graph, a *Archive, text *subgraph) *builder {
	return &builder{Graph: g, archive: a, program: a.program, text: text, env: map[string]*graph.Value{},
		storage: map[string]string{}, members: map[string][]string{}, owner: map[string]string{},
		outer: map[string]bool{}, copied: map[string]bool{}, last: map[string]int{}, buffers: map[string]string{},
		leaf: map[string]*graph.Value{}}
}

func (b *builder) build() error {
	if err := b.leaves(); err != nil {
		return err
	}
	if err := b.nodes(); err != nil {
		return err
	}
	return b.results()
}

// nodes translates the calls of the graph that is being read.
func (b *builder) nodes() error {
	if len(b.text.Nodes) > maxNodes {
		return unsupported("the program has %d operations; the limit is %d", len(b.text.Nodes), maxNodes)
	}
	if err := b.uses(); err != nil {
		return err
	}
	for i := range b.text.Nodes {
		b.at = i
		if err := b.node(&b.text.Nodes[i]); err != nil {
			if _, placed := errors.AsType[*placedError](err); placed {
				return err // the error occurred in a nested graph and already has a position
			}
			return &placedError{b.text.Nodes[i].origin(), err}
		}
	}
	return nil
}

// placedError is an error with the call in which it occurred.
type placedError struct {
	at  graph.Origin
	err error
}

func (e *placedError) Error() string { return fmt.Sprintf("%s: %v", e.at, e.err) }
func (e *placedError) Unwrap() error { return e.err }

// leaves adds inputs, parameters and constants to the graph, in the order of the program's signature.
func (b *builder) leaves() error {
	elems := int64(0)
	for _, specs := range b.program.GraphModule.Signature.InputSpecs {
		if len(specs) != 1 {
			return malformed("an input has %d specifications", len(specs))
		}
		for kind, spec := range specs {
			if err := b.addLeaf(kind, spec, &elems); err != nil {
				return err
			}
		}
	}
	return nil
}

// addLeaf adds the input, parameter or constant that a specification describes. The argument elems counts the elements
// of all constants so far.
func (b *builder) addLeaf(kind string, spec inputSpec, elems *int64) error {
	if kind == "constant_input" { // the argument is not a tensor, such as use_cache=False; the export fixes its value
		return nil
	}
	name, err := specName(spec.Arg)
	if err != nil {
		return err
	}
	if kind == "token" || name == "" {
		return unsupported("an input of the program is not a tensor (%s)", clip(kind))
	}
	var s stored
	meta := b.text.TensorValues[name]
	if meta == nil || b.env[name] != nil {
		return malformed("input %q has no type, or is listed twice", clip(name))
	}
	if err := meta.into(&s); err != nil {
		return fmt.Errorf("input %q: %w", clip(name), err)
	}
	group := name
	switch kind {
	case "user_input":
		b.env[name], err = b.input(name, &s)
	case "parameter":
		b.env[name], err = b.weight(name, spec.ParameterName, &s)
	case "buffer", "tensor_constant":
		fqn := spec.BufferName + spec.TensorConstantName
		b.buffers[fqn] = name
		if b.env[name], err = b.buffer(name, fqn, &s, elems); err == nil {
			group = "file " + b.archive.tensors[fqn].file
		}
	default:
		return unsupported("an input of kind %q", clip(kind))
	}
	if err != nil {
		return err
	}
	b.share(name, group)
	b.leaf[name] = b.env[name]
	return nil
}

// input adds an input. Programs have no type bool, so an input of bools becomes an input of i32, with 0 for false.
func (b *builder) input(name string, s *stored) (*graph.Value, error) {
	if s.dtype != graph.Bool {
		return b.Input(name, s.dtype, s.shape), nil
	}
	v := b.Input(name, graph.I32, s.shape)
	n, err := b.Add(graph.Ne, graph.Attrs{}, graph.Origin{Name: name}, []graph.DType{graph.Bool}, v, b.Scalar(graph.I32, 0))
	if err != nil {
		return nil, malformed("input %q: %w", clip(name), err)
	}
	return n.Out[0], nil
}

// share adds a name to a group of names that may share memory.
func (b *builder) share(name, group string) {
	if b.members[group] == nil {
		b.owner[group] = name
	}
	b.storage[name] = group
	b.members[group] = append(b.members[group], name)
}

// buffer adds a buffer as a constant of the graph. If the constants would then have too many elements, it adds the
// buffer as a weight. The argument elems counts the elements of all constants so far. Two names of one tensor get the
// same value.
func (b *builder) buffer(name, fqn string, s *stored, elems *int64) (*graph.Value, error) {
	have := b.archive.tensors[fqn]
	if have == nil {
		return nil, malformed("buffer %q is not in the archive", clip(fqn))
	}
	if err := have.fits("buffer", fqn, s); err != nil {
		return nil, err
	}
	for _, other := range b.members["file "+have.file] {
		v := b.env[other]
		if o := b.archive.tensors[v.Path]; o != nil && o.same(have) {
			return v, nil
		}
	}
	n := graph.Product(s.shape)
	if n > maxConstants/8 || *elems+n > maxConstants/8 {
		v, err := b.weight(name, fqn, s)
		if err == nil && v.Path == fqn {
			v.Buffer = true
		}
		return v, err
	}
	*elems += n
	t, err := b.archive.constant(fqn, have)
	if err != nil {
		return nil, err
	}
	v := b.Constant(name, t)
	v.Path = fqn
	return v, nil
}

// fits returns an error unless an entry of the index has the type that the program declares for a buffer or parameter.
func (s *stored) fits(kind, fqn string, declared *stored) error {
	if slices.Equal(s.shape, declared.shape) && s.dtype == declared.dtype {
		return nil
	}
	return malformed("%s %q has type %s%v in the index and %s%v in the program", kind, clip(fqn), s.dtype, s.shape,
		declared.dtype, declared.shape)
}

// same reports whether two entries of the index describe the same tensor.
func (s *stored) same(o *stored) bool {
	return o.file == s.file && o.offset == s.offset && slices.Equal(o.shape, s.shape) &&
		slices.Equal(o.strides, s.strides) && o.dtype == s.dtype
}

// weight adds a parameter of the model. Two names of one tensor get the same value.
func (b *builder) weight(name, fqn string, s *stored) (*graph.Value, error) {
	have := b.archive.tensors[fqn]
	if have != nil {
		if err := have.fits("parameter", fqn, s); err != nil {
			return nil, err
		}
		for _, v := range b.Weights {
			if o := b.archive.tensors[v.Path]; o != nil && o.same(have) {
				v.Also = append(v.Also, fqn)
				return v, nil
			}
		}
	}
	return b.Graph.Weight(name, fqn, s.dtype, s.shape), nil
}

// uses finds the last use of each name.
func (b *builder) uses() error {
	g := b.text
	for i := range g.Nodes {
		for j := range g.Nodes[i].Inputs {
			names, err := tensorNames(&g.Nodes[i].Inputs[j].Arg)
			if err != nil {
				return err
			}
			for _, name := range names {
				b.last[name] = i
			}
		}
	}
	for i := range g.Outputs {
		if name, err := g.Outputs[i].tensor(); err == nil {
			b.last[name] = len(g.Nodes)
		}
	}
	return nil
}

// tensorNames lists the tensors that an argument names.
func tensorNames(a *arg) ([]string, error) {
	switch a.kind {
	case "as_tensor":
		name, err := a.tensor()
		return []string{name}, err
	case "as_tensors":
		var list []tensorName
		err := a.into(&list)
		var names []string
		for _, n := range list {
			names = append(names, n.Name)
		}
		return names, err
	case "as_optional_tensors":
		var list []arg
		if err := a.into(&list); err != nil {
			return nil, err
		}
		var names []string
		for i := range list {
			name, err := list[i].tensor()
			if err != nil {
				return nil, malformed("%w", err)
			}
			names = append(names, name)
		}
		return names, nil
	}
	return nil, nil
}

// node translates a call.
func (b *builder) node(n *node) error {
	base := operatorName(n.Target)
	c := &call{}
	c.builder, c.node, c.from = b, n, n.origin()
	if strings.HasPrefix(base, "_assert") {
		return nil
	}
	for i := range n.Outputs {
		// The result is a number, for example one that the program checks. Such calls are ignored; a call that uses
		// their result as an argument is refused.
		if k := n.Outputs[i].kind; k == "as_sym_int" || k == "as_sym_bool" || k == "as_sym_float" {
			return nil
		}
		names, err := tensorNames(&n.Outputs[i])
		if err != nil {
			return err
		}
		if names == nil {
			return unsupported("its result is %s, not a tensor", clip(n.Outputs[i].kind))
		}
		c.outs = append(c.outs, names...)
	}
	for _, name := range c.outs {
		if name != "" && b.env[name] != nil {
			return malformed("two calls have the result %q", clip(name))
		}
	}
	if strings.HasPrefix(base, "higher_order.") {
		return c.inline()
	}
	op, inPlace := operators[base], false
	if op == nil && strings.HasSuffix(base, "_") {
		op, inPlace = operators[strings.TrimSuffix(base, "_")], true
	}
	if op == nil {
		return unsupported("hocket has no such operator")
	}
	results, err := op(c)
	if err == nil {
		err = c.err
	}
	if err != nil {
		return err
	}
	if inPlace {
		if results, err = c.inPlace(results); err != nil {
			return err
		}
	}
	return c.define(results)
}

// define names the results of a call, and checks that they have the types that the export declares.
func (c *call) define(results []*graph.Value) error {
	if len(c.outs) > len(results) {
		return malformed("it has %d results, not %d", len(results), len(c.outs))
	}
	self := c.tensorNamed("self")
	if self == "" {
		self = c.tensorNamed("input")
	}
	for i, name := range c.outs {
		if name == "" {
			continue
		}
		v := results[i]
		meta := c.text.TensorValues[name]
		if meta == nil {
			return malformed("the export has no type for the result %q", clip(name))
		}
		var s stored
		if err := meta.into(&s); err != nil {
			return err
		}
		if s.dtype != v.DType || !slices.Equal(s.shape, v.Shape) {
			return malformed("the result %q has type %s%v in the export, but its operands give %s",
				clip(name), s.dtype, s.shape, v)
		}
		if v.Name == "" {
			v.Name = name
		}
		c.env[name] = v
		if self != "" && c.shares(self, name) {
			c.share(name, c.storage[self])
			c.copied[name] = c.copied[self] || !c.inPlaced && c.mayCopy(self)
		} else {
			c.share(name, name)
		}
	}
	return nil
}

// shares reports whether the result of a call may refer to the memory of the operand self.
func (c *call) shares(self, result string) bool {
	from, to := c.text.TensorValues[self], c.text.TensorValues[result]
	switch base := c.node.base(); {
	case c.inPlaced:
		return true
	case !views[base] || from == nil || from.DType != to.DType || base == "_to_copy" || c.flag("copy", false):
		return false
	case base == "contiguous" || base == "to": // these operators copy if the order of elements changes
		a, err := ints(from.Strides)
		b, err2 := ints(to.Strides)
		return err != nil || err2 != nil || slices.Equal(a, b)
	}
	return true
}

// change turns the buffer with the given name into a state of the graph, because the program changes it.
func (b *builder) change(name string, leaf *graph.Value) error {
	if b.buffers[leaf.Path] == "" || b.Change(leaf) != nil {
		return unsupported("it changes %q, an input or parameter of the model", clip(name))
	}
	return nil
}

// results sets the outputs of the graph, and the new contents of its states.
func (b *builder) results() error {
	specs := b.program.GraphModule.Signature.OutputSpecs
	outs := b.program.GraphModule.Graph.Outputs
	for i := range outs {
		kind, buffer := "user_output", ""
		if i < len(specs) {
			for k, spec := range specs[i] {
				kind, buffer = k, spec.BufferName
			}
		}
		name, err := outs[i].tensor()
		if err != nil {
			return unsupported("output %d: %w", i, err)
		}
		if name == "" {
			continue // None
		}
		v := b.env[name]
		if v == nil {
			return malformed("no call computes the output %q", clip(name))
		}
		switch kind {
		case "user_output":
			b.Outputs = append(b.Outputs, v)
		case "buffer_mutation":
			at := b.buffers[buffer]
			leaf := b.leaf[at]
			if leaf == nil || leaf.DType != v.DType || !slices.Equal(leaf.Shape, v.Shape) {
				return malformed("it changes buffer %q, which does not exist or has another type", clip(buffer))
			}
			if err := b.change(at, leaf); err != nil {
				return err
			}
			b.env[at] = v
		case "user_input_mutation", "parameter_mutation":
			return unsupported("the program changes an input or parameter, %q", clip(name))
		default:
			return unsupported("an output of kind %q; only tensors and changed buffers are supported", clip(kind))
		}
	}
	if len(b.Outputs) == 0 {
		return unsupported("the program has no result")
	}
	b.updates()
	return nil
}

// updates sets the new contents of states. It removes the states that affect no result.
func (b *builder) updates() {
	left := map[*graph.Value]*graph.Value{}
	for _, s := range b.States {
		if v := b.env[b.buffers[s.Path]]; v != s {
			left[s] = v
		}
	}
	read := map[*graph.Value]bool{}
	todo := slices.Clone(b.Outputs)
	for len(todo) > 0 {
		v := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if read[v] {
			continue
		}
		read[v] = true
		if v.Node != nil {
			todo = append(todo, v.Node.In...)
		} else if left[v] != nil {
			todo = append(todo, left[v])
		}
	}
	b.States = slices.DeleteFunc(b.States, func(s *graph.Value) bool { return !read[s] })
	for _, s := range b.States {
		if left[s] != nil {
			b.Updates = append(b.Updates, graph.Update{State: s, To: left[s]})
		}
	}
}
