package torchexport

import (
	"slices"

	"hocket.example/hocket/internal/graph"
)

// Values of a graph do not change. What changes a tensor in place gives its name a new value, and so the names of all
// tensors that share its memory: a group has the name of the tensor that owns the memory, and the others are views of
// it, made by reshapes, transpositions, slices and broadcasts.

// mayCopy are operators whose result is a view of the operand or a copy of it, depending on strides.
var mayCopy = names("reshape", "flatten", "contiguous", "to", "type_as", "reshape_as", "_to_copy")

// inPlace makes the first operand's name that of the result, and changes the tensors that share its memory alike.
func (c *call) inPlace(results []*graph.Value) ([]*graph.Value, error) {
	self := c.tensorNamed("self")
	old := c.env[self]
	if old == nil || len(results) == 0 {
		return nil, malformed("it has no tensor to change")
	}
	group := c.storage[self]
	root := c.env[group]
	if c.leaf[group] || c.depth > 0 && c.outer[group] || root == nil {
		return nil, unsupported("it changes %q, a buffer, input or parameter of the model", clip(group))
	}
	v := c.cast(results[0], old.DType)
	if c.err != nil {
		return nil, c.err
	}
	if !slices.Equal(v.Shape, old.Shape) {
		return nil, malformed("its result %s is not of the shape of %s", v, old)
	}
	var others []string
	for name, s := range c.storage {
		if s == group && name != self && name != group && c.env[name] != nil && c.last[name] > c.at {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	rootUsed := group != self && c.last[group] > c.at
	if len(others) == 0 && !rootUsed && group != self {
		c.env[self], c.storage[self] = v, self // nobody else looks
		return []*graph.Value{v}, nil
	}
	for _, name := range append(others, self) {
		if c.copied[name] {
			return nil, unsupported("it changes %q in place, whose memory %q shares or not", clip(self), clip(name))
		}
	}
	path, ok := pathOf(old, root)
	if !ok {
		return nil, unsupported("it changes %q in place, a view of %q that hocket does not write through", clip(self),
			clip(group))
	}
	now := c.put(root, path, v)
	for _, name := range others {
		steps, ok := pathOf(c.env[name], root)
		if !ok {
			return nil, unsupported("it changes %q in place while its view %q is in use", clip(self), clip(name))
		}
		c.env[name] = c.view(now, steps)
	}
	v = c.view(now, path)
	c.env[group], c.env[self] = now, v
	return []*graph.Value{v}, c.err
}

// pathOf lists the nodes that make the view v of root.
func pathOf(v, root *graph.Value) ([]*graph.Node, bool) {
	var path []*graph.Node
	for v != root {
		if v.Node == nil {
			return nil, false
		}
		switch v.Node.Op {
		case graph.Reshape, graph.Transpose, graph.SliceOp, graph.Broadcast:
		default:
			return nil, false
		}
		path = append(path, v.Node)
		v = v.Node.In[0]
	}
	slices.Reverse(path)
	return path, true
}

// view makes the view of root that a path makes.
func (c *call) view(root *graph.Value, path []*graph.Node) *graph.Value {
	for _, n := range path {
		if c.err != nil {
			return nil
		}
		root = c.add(n.Op, n.Attrs, root.DType, root)
	}
	return root
}

// put returns root with v in the place of the view of it that a path makes.
func (c *call) put(root *graph.Value, path []*graph.Node, v *graph.Value) *graph.Value {
	if len(path) == 0 || c.err != nil {
		return v
	}
	n := path[0]
	v = c.put(c.view(root, path[:1]), path[1:], v)
	if c.err != nil {
		return nil
	}
	switch n.Op {
	case graph.Reshape:
		return c.reshape(v, root.Shape)
	case graph.Transpose:
		back := make([]int64, len(n.Attrs.Axes))
		for i, p := range n.Attrs.Axes {
			back[p] = int64(i)
		}
		return c.add(graph.Transpose, graph.Attrs{Axes: back}, v.DType, v)
	case graph.SliceOp:
		if n.Attrs.Step != 1 {
			break
		}
		axis := n.Attrs.Axis
		var list []*graph.Value
		if n.Attrs.Lo > 0 {
			list = append(list, c.slice(root, axis, 0, n.Attrs.Lo, 1))
		}
		list = append(list, v)
		if size := root.Shape[axis]; n.Attrs.Hi < size {
			list = append(list, c.slice(root, axis, n.Attrs.Hi, size, 1))
		}
		if len(list) == 1 {
			return v
		}
		return c.add(graph.Concat, graph.Attrs{Axis: axis}, v.DType, list...)
	}
	c.fail(unsupported("it changes a part of a tensor in place by %s", n.Op))
	return nil
}
