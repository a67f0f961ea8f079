package torchexport

import (
	"errors"
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
	text    *subgraph               // what is being read
	depth   int                     // of text: 0 is the program
	env     map[string]*graph.Value // by the names of the export
	// storage groups names that may share memory, since one is a view of the other; last is where each name is
	// used last.
	storage map[string]string
	outer   map[string]bool // groups of storage that belong to the graph around this one
	leaf    map[string]bool // names of inputs, parameters and buffers
	copied  map[string]bool // names that are views or copies, as torch finds them
	last    map[string]int
	at      int // the node being read
}

// maxNodes bounds the operations of a program.
const maxNodes = 1 << 18

// Graph makes a graph of the archive's program. Buffers and constants that it does not change become constants.
func (a *Archive) Graph() (*graph.Graph, error) {
	b := &builder{Graph: &graph.Graph{File: a.path}, archive: a, program: a.program, text: &a.program.GraphModule.Graph,
		env:     map[string]*graph.Value{},
		storage: map[string]string{}, last: map[string]int{}, copied: map[string]bool{},
		leaf: map[string]bool{}}
	if err := b.build(); err != nil {
		return nil, fmt.Errorf("%s: %w", a.path, err)
	}
	return b.Graph, nil
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

// nodes reads the calls of the graph being read.
func (b *builder) nodes() error {
	if len(b.text.Nodes) > maxNodes {
		return unsupported("the program has %d operations, of at most %d", len(b.text.Nodes), maxNodes)
	}
	if err := b.uses(); err != nil {
		return err
	}
	for i := range b.text.Nodes {
		b.at = i
		if err := b.node(&b.text.Nodes[i]); err != nil {
			if _, placed := errors.AsType[*placedError](err); placed {
				return err // by a call of a graph within
			}
			return &placedError{b.text.Nodes[i].origin(), err}
		}
	}
	return nil
}

// placedError is an error of a call.
type placedError struct {
	at  graph.Origin
	err error
}

func (e *placedError) Error() string { return fmt.Sprintf("%s: %v", e.at, e.err) }
func (e *placedError) Unwrap() error { return e.err }

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
			meta := b.text.TensorValues[name]
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
				have := b.archive.tensors[fqn]
				switch n := product(s.shape); {
				case have == nil:
					return malformed("buffer %q is not in the archive", clip(fqn))
				case !slices.Equal(have.shape, s.shape) || have.dtype != s.dtype:
					return malformed("buffer %q is %s%v in one place and %s%v in another", clip(fqn), have.dtype, have.shape,
						s.dtype, s.shape)
				case n > maxConstants/8 || elems+n > maxConstants/8:
					b.env[name], err = b.weight(name, fqn, &s)
				default:
					elems += n
					var t *graph.Tensor
					if t, err = b.archive.constant(fqn, have); err == nil {
						b.env[name] = b.Constant(name, t)
					}
				}
			default:
				return unsupported("an input of kind %q", clip(kind))
			}
			if err != nil {
				return err
			}
			b.storage[name] = name
			b.leaf[name] = true
		}
	}
	return nil
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
			if o := b.archive.tensors[v.Path]; o != nil && o.file == have.file && o.offset == have.offset &&
				slices.Equal(o.shape, have.shape) && slices.Equal(o.strides, have.strides) && o.dtype == have.dtype {
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

// node reads a call.
func (b *builder) node(n *node) error {
	base, overload := operatorName(n.Target)
	c := &call{builder: b, node: n, from: n.origin(), overload: overload}
	if strings.HasPrefix(base, "_assert") {
		return nil
	}
	for i := range n.Outputs {
		// A number that the program computes, as for its own checks. What uses it as an argument is refused.
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
			return malformed("%q is made twice", clip(name))
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
	if !inPlace {
		return c.define(results)
	}
	if results, err = c.inPlace(results); err != nil {
		return err
	}
	if err := c.define(results); err != nil {
		return err
	}
	for _, name := range c.outs { // other names of what was changed
		self := c.tensorNamed("self")
		c.storage[name], c.copied[name] = c.storage[self], c.copied[self]
	}
	return nil
}

// define names the results of a call, and holds them to the types that the export has for them.
func (c *call) define(results []*graph.Value) error {
	if len(c.outs) > len(results) {
		return malformed("it has %d results, not %d", len(results), len(c.outs))
	}
	self := c.tensorNamed("self")
	for i, name := range c.outs {
		if name == "" {
			continue
		}
		v := results[i]
		meta := c.text.TensorValues[name]
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
		c.storage[name] = name
		if self != "" && views[c.base()] {
			c.storage[name] = c.storage[self]
			c.copied[name] = c.copied[self] || mayCopy[c.base()]
		}
	}
	return nil
}

// results sets the outputs.
func (b *builder) results() error {
	for _, specs := range b.program.GraphModule.Signature.OutputSpecs {
		for kind, spec := range specs {
			switch kind {
			case "user_output":
			case "buffer_mutation", "user_input_mutation", "parameter_mutation":
				return unsupported("the program changes buffer %q", clip(spec.BufferName))
			default:
				return unsupported("an output of kind %q", clip(kind))
			}
		}
	}
	outs := b.text.Outputs
	for i := range outs {
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
		b.Outputs = append(b.Outputs, v)
	}
	if len(b.Outputs) == 0 {
		return unsupported("the program has no result")
	}
	return nil
}
