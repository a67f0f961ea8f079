package torchexport

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/graph"
)

// builder makes a graph of a program.
type builder struct {
	*graph.Graph
	archive *Archive
	program *program
	env     map[string]*graph.Value // by the names of the export
	// storage groups names that may share memory, since one is a view of the other; members lists those of a group.
	// last is where each name is used last.
	storage map[string]string
	members map[string][]string
	last    map[string]int
	at      int                     // the node being read
	buffers map[string]string       // names of buffers by their names in the module tree
	leaf    map[string]*graph.Value // what env begins with
}

// maxNodes bounds the operations of a program.
const maxNodes = 1 << 18

// Graph makes a graph of the archive's program. Buffers and constants that it changes become states; others become
// constants.
func (a *Archive) Graph() (*graph.Graph, error) {
	b := &builder{Graph: &graph.Graph{File: a.path}, archive: a, program: a.program, env: map[string]*graph.Value{},
		storage: map[string]string{}, members: map[string][]string{}, last: map[string]int{}, buffers: map[string]string{},
		leaf: map[string]*graph.Value{}}
	if err := b.build(); err != nil {
		return nil, fmt.Errorf("%s: %w", a.path, err)
	}
	return b.Graph, nil
}

func (b *builder) build() error {
	g := &b.program.GraphModule.Graph
	if len(g.Nodes) > maxNodes {
		return unsupported("the program has %d operations, of at most %d", len(g.Nodes), maxNodes)
	}
	if err := b.leaves(); err != nil {
		return err
	}
	if err := b.uses(); err != nil {
		return err
	}
	for i := range g.Nodes {
		b.at = i
		if err := b.node(&g.Nodes[i]); err != nil {
			return fmt.Errorf("%s: %w", g.Nodes[i].origin(), err)
		}
	}
	return b.results()
}

// leaves adds inputs, parameters and constants, in the order of the signature.
func (b *builder) leaves() error {
	elems := int64(0)
	for _, specs := range b.program.GraphModule.Signature.InputSpecs {
		if len(specs) != 1 {
			return malformed("an input has %d specifications", len(specs))
		}
		for kind, spec := range specs {
			name, err := specName(spec.Arg)
			if err != nil {
				return err
			}
			if kind == "token" || name == "" {
				return unsupported("an input of the program is no tensor (%s)", clip(kind))
			}
			var s stored
			meta := b.program.GraphModule.Graph.TensorValues[name]
			if meta == nil || b.env[name] != nil {
				return malformed("input %q has no type, or is there twice", clip(name))
			}
			if err := meta.into(&s); err != nil {
				return fmt.Errorf("input %q: %w", clip(name), err)
			}
			switch kind {
			case "user_input":
				b.env[name] = b.Input(name, s.dtype, s.shape)
			case "parameter":
				b.env[name], err = b.weight(name, spec.ParameterName, &s)
			case "buffer", "tensor_constant":
				fqn := spec.BufferName + spec.TensorConstantName
				b.buffers[fqn] = name
				if b.env[name], err = b.buffer(name, fqn, &s, &elems); err == nil {
					b.share(name, "file "+b.archive.tensors[fqn].file)
				}
			default:
				return unsupported("an input of kind %q", clip(kind))
			}
			if err != nil {
				return err
			}
			if b.storage[name] == "" {
				b.share(name, name)
			}
			b.leaf[name] = b.env[name]
		}
	}
	return nil
}

// share puts a name into a group of names that may share memory.
func (b *builder) share(name, group string) {
	b.storage[name] = group
	b.members[group] = append(b.members[group], name)
}

// buffer adds a buffer: a constant, or a weight where constants would have too many elements. elems counts those there
// are. Two names of one tensor are one.
func (b *builder) buffer(name, fqn string, s *stored, elems *int64) (*graph.Value, error) {
	have := b.archive.tensors[fqn]
	switch {
	case have == nil:
		return nil, malformed("buffer %q is not in the archive", clip(fqn))
	case !slices.Equal(have.shape, s.shape) || have.dtype != s.dtype:
		return nil, malformed("buffer %q is %s%v in one place and %s%v in another", clip(fqn), have.dtype, have.shape,
			s.dtype, s.shape)
	}
	for _, other := range b.members["file "+have.file] {
		v := b.env[other]
		if o := b.archive.tensors[v.Path]; o != nil && o.same(have) {
			return v, nil
		}
	}
	n := product(s.shape)
	if n > maxConstants/8 || *elems+n > maxConstants/8 {
		return b.weight(name, fqn, s)
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

// same reports whether two names in the index stand for one tensor.
func (s *stored) same(o *stored) bool {
	return o.file == s.file && o.offset == s.offset && slices.Equal(o.shape, s.shape) &&
		slices.Equal(o.strides, s.strides) && o.dtype == s.dtype
}

// weight adds a parameter. Two names of one tensor are one weight.
func (b *builder) weight(name, fqn string, s *stored) (*graph.Value, error) {
	have := b.archive.tensors[fqn]
	if have != nil {
		if !slices.Equal(have.shape, s.shape) || have.dtype != s.dtype {
			return nil, malformed("parameter %q is %s%v in one place and %s%v in another", clip(fqn), have.dtype, have.shape,
				s.dtype, s.shape)
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

func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// uses finds where each name is used last.
func (b *builder) uses() error {
	g := &b.program.GraphModule.Graph
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

// node reads a call.
func (b *builder) node(n *node) error {
	base, overload := operatorName(n.Target)
	c := &call{builder: b, node: n, from: n.origin(), overload: overload}
	if strings.HasPrefix(base, "_assert") {
		return nil
	}
	for i := range n.Outputs {
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
			return malformed("%q is made twice", clip(name))
		}
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

// define names the results of a call, and holds them to the types that the export has for them.
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
		meta := c.program.GraphModule.Graph.TensorValues[name]
		if meta == nil {
			return malformed("%q has no type", clip(name))
		}
		var s stored
		if err := meta.into(&s); err != nil {
			return err
		}
		if s.dtype != v.DType || !slices.Equal(s.shape, v.Shape) {
			return malformed("%q is said to be %s%v and is %s", clip(name), s.dtype, s.shape, v)
		}
		if v.Name == "" {
			v.Name = name
		}
		c.env[name] = v
		if self != "" && c.shares(self, name) {
			c.share(name, c.storage[self])
		} else {
			c.share(name, name)
		}
	}
	return nil
}

// shares reports whether a call's result may have the memory of its operand self.
func (c *call) shares(self, result string) bool {
	from, to := c.program.GraphModule.Graph.TensorValues[self], c.program.GraphModule.Graph.TensorValues[result]
	switch base := c.base(); {
	case c.inPlaced:
		return true
	case !views[base] || from == nil || from.DType != to.DType || base == "_to_copy" || c.flag("copy", false):
		return false
	case base == "contiguous" || base == "to": // which copy to change the order of elements
		a, err := ints(from.Strides)
		b, err2 := ints(to.Strides)
		return err != nil || err2 != nil || slices.Equal(a, b)
	}
	return true
}

// inPlace makes the first operand's name, and others of the same tensor, those of the result. A view of its memory must
// not be used any more: it would have to change with it. A buffer that is changed becomes a state.
func (c *call) inPlace(results []*graph.Value) ([]*graph.Value, error) {
	self := c.tensorNamed("self")
	old := c.env[self]
	if old == nil || len(results) != 1 {
		return nil, malformed("it has no tensor to change")
	}
	v := results[0]
	if v.DType != old.DType {
		v = c.add(graph.Cast, graph.Attrs{}, old.DType, v)
	}
	if c.err != nil {
		return nil, c.err
	}
	if !slices.Equal(v.Shape, old.Shape) {
		return nil, malformed("its result %s is not of the shape of %s", v, old)
	}
	for _, name := range c.members[c.storage[self]] {
		leaf := c.leaf[name]
		switch {
		case c.env[name] == old:
			if leaf != nil {
				if err := c.change(name, leaf); err != nil {
					return nil, err
				}
			}
			c.env[name] = v
		case c.last[name] > c.at || leaf != nil:
			return nil, unsupported("it changes %q in place while %q, which has elements of it, is in use",
				clip(self), clip(name))
		}
	}
	c.inPlaced = true
	return []*graph.Value{v}, nil
}

// change makes a state of a buffer.
func (b *builder) change(name string, leaf *graph.Value) error {
	if b.buffers[leaf.Path] == "" || b.Change(leaf) != nil {
		return unsupported("it changes %q, an input or parameter of the model", clip(name))
	}
	return nil
}

// results sets the outputs, and what states are left with.
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
			return malformed("output %q is made by nothing", clip(name))
		}
		switch kind {
		case "user_output":
			b.Outputs = append(b.Outputs, v)
		case "buffer_mutation":
			at := b.buffers[buffer]
			leaf := b.leaf[at]
			if leaf == nil || leaf.DType != v.DType || !slices.Equal(leaf.Shape, v.Shape) {
				return malformed("it changes buffer %q, which is not there or of another type", clip(buffer))
			}
			if err := b.change(at, leaf); err != nil {
				return err
			}
			b.env[at] = v
		case "user_input_mutation", "parameter_mutation":
			return unsupported("the program changes an input or parameter, %q", clip(name))
		default:
			return unsupported("an output of kind %q", clip(kind))
		}
	}
	if len(b.Outputs) == 0 {
		return unsupported("the program has no result")
	}
	b.updates()
	return nil
}

// updates says what is left in states, and drops those whose contents nothing reads that a result depends on.
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
