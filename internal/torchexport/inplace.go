package torchexport

import (
	"maps"
	"slices"

	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/tensor"
)

// Values of a graph are immutable. If an operator changes a tensor in place, the names of the tensor and of all tensors
// that share its memory get new values. One tensor of a group that shares memory owns the memory. The other tensors are
// views of the owner, which reshapes, transpositions, slices and broadcasts create.

// mayCopy reports whether the result of a call is either a view of the operand self or a copy of it, depending on
// the strides of self.
func (c *call) mayCopy(self string) bool {
	switch c.node.base() {
	case "reshape", "flatten", "reshape_as":
		return !contiguous(c.text.TensorValues[self])
	}
	return false
}

// contiguous reports whether a tensor's elements are in row-major order without gaps.
func contiguous(m *tensorMeta) bool {
	if m == nil {
		return false
	}
	sizes, err := ints(m.Sizes)
	have, err2 := ints(m.Strides)
	if err != nil || err2 != nil || len(sizes) != len(have) {
		return false
	}
	return isDense(sizes, have)
}

// isDense reports whether the strides of a shape are those of row-major order.
func isDense(shape, strides []int64) bool {
	for i, step := range tensor.Strides(shape) {
		if shape[i] != 1 && strides[i] != step {
			return false
		}
	}
	return true
}

// inPlace assigns the result of a call to the name of the call's first operand, and updates the values of the
// tensors that share the operand's memory. If the operand is a buffer of the model, the buffer becomes a state.
func (c *call) inPlace(results []*graph.Value) ([]*graph.Value, error) {
	self := c.tensorNamed("self")
	old := c.env[self]
	if old == nil || len(results) == 0 {
		return nil, malformed("its first operand, which it changes, is not a tensor")
	}
	group := c.storage[self]
	owner := c.owner[group]
	root := c.env[owner]
	if c.depth > 0 && c.outer[group] || root == nil {
		return nil, unsupported("it changes %q, which belongs to the enclosing graph", clip(self))
	}
	v := c.cast(results[0], old.DType)
	if c.err != nil {
		return nil, c.err
	}
	if !slices.Equal(v.Shape, old.Shape) {
		return nil, malformed("its result %s does not have the shape of %s", v, old)
	}
	c.inPlaced = true
	var others []string // other names of the group that have later uses or are buffers
	for _, name := range c.members[group] {
		seen := c.last[name] > c.at || c.leaf[name] != nil
		if name != self && c.storage[name] == group && seen {
			others = append(others, name)
		}
	}
	if len(others) == 0 && owner != self {
		c.share(self, self)
		c.env[self] = v
		return []*graph.Value{v}, nil
	}
	path, ok := pathOf(old, root)
	if !ok {
		return nil, unsupported("it changes %q in place, a view of %q through which hocket cannot write", clip(self),
			clip(owner))
	}
	now := c.put(root, path, v)
	v = c.view(now, path)
	if c.err != nil {
		return nil, c.err
	}
	changed := map[string]*graph.Value{owner: now, self: v}
	for _, name := range others {
		steps, ok := pathOf(c.env[name], root)
		if !ok || c.copied[name] || c.copied[self] {
			return nil, unsupported("it changes %q in place while %q is in use, which is a view or a copy of it",
				clip(self), clip(name))
		}
		changed[name] = c.view(now, steps)
	}
	for _, name := range slices.Sorted(maps.Keys(changed)) {
		if leaf := c.leaf[name]; leaf != nil {
			if err := c.change(name, leaf); err != nil {
				return nil, err
			}
		}
		c.env[name] = changed[name]
	}
	return []*graph.Value{v}, c.err
}

// pathOf lists the nodes that compute the view v from the tensor root. It returns false if v is not computed from
// root by views alone.
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

// view applies the operations of a path to root.
func (c *call) view(root *graph.Value, path []*graph.Node) *graph.Value {
	for _, n := range path {
		if c.err != nil {
			return nil
		}
		root = c.add(n.Op, n.Attrs, root.DType, root)
	}
	return root
}

// put returns root with new values v for the elements that a path of views selects.
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
		return c.add(graph.Transpose, graph.Attrs{Axes: graph.Inverse(n.Attrs.Axes)}, v.DType, v)
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
	c.fail(unsupported("it changes a part of a tensor in place, through a view that %s creates", n.Op))
	return nil
}
