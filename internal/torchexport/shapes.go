package torchexport

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/graph"
)

// shapes holds the operators that move elements without computing new ones.
var shapes = map[string]operator{
	"fill": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.err != nil {
			return nil, c.err
		}
		v := c.Scalar(x.DType, c.number("value", 0))
		if c.has("value") {
			v = c.cast(c.tensor("value"), x.DType)
		}
		return one(c.broadcast(v, x.Shape))
	},
	"zero": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.err != nil {
			return nil, c.err
		}
		return one(c.broadcast(c.Scalar(x.DType, 0), x.Shape))
	},
	"roll": func(c *call) ([]*graph.Value, error) {
		x, by, dims := c.tensor("self"), c.ints("shifts"), c.ints("dims")
		if c.err != nil || len(by) != len(dims) {
			return nil, unsupported("roll without dims")
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
	"view": reshape, "reshape": reshape, "_unsafe_view": reshape, "unflatten": reshapeToOutput,
	"flatten": reshapeToOutput, "squeeze": reshapeToOutput, "view_as": reshapeToOutput, "reshape_as": reshapeToOutput,
	"unsqueeze": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.err != nil {
			return nil, c.err
		}
		d, err := c.newAxis(x)
		if err != nil {
			return nil, err
		}
		return one(c.reshape(x, slices.Insert(slices.Clone(x.Shape), d, 1)))
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
			return nil, malformed("dimensions %v cannot move to %v", from, to)
		}
		perm := make([]int64, len(x.Shape))
		for d := range perm {
			perm[d] = -1
		}
		moved := map[int64]bool{}
		for i := range from {
			a, b := int64(c.dim(from[i], x)), c.dim(to[i], x)
			if c.err != nil || len(perm) == 0 || moved[a] || perm[b] >= 0 {
				return nil, malformed("dimensions %v cannot move to %v", from, to)
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
		return one(c.broadcast(x, y.Shape))
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
			return nil, malformed("the list of tensors to join is empty")
		}
		for i, v := range list {
			if v == nil {
				return nil, malformed("it joins None")
			}
			list[i] = c.cast(v, dt)
		}
		// Torch ignores tensors of shape [0] if the other tensors have more dimensions.
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
			return nil, malformed("the list of tensors to join is empty")
		}
		d, err := c.newAxis(list[0])
		if err != nil {
			return nil, err
		}
		shape := list[0].Shape
		for i, v := range list {
			if v == nil || !slices.Equal(v.Shape, shape) {
				return nil, malformed("it joins tensors of different shapes")
			}
			v = c.cast(v, c.outDType(0))
			list[i] = c.reshape(v, slices.Insert(slices.Clone(shape), d, 1))
		}
		return one(c.add(graph.Concat, graph.Attrs{Axis: d}, c.outDType(0), list...))
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
		return one(c.repeated(x, from, to, out))
	},
	"repeat_interleave": func(c *call) ([]*graph.Value, error) {
		x, n := c.tensor("self"), c.int("repeats", 1)
		axis := c.axis("dim", 0, x)
		if c.err != nil || n < 0 || n > 1<<24 || axis >= len(x.Shape) {
			return nil, malformed("repeats %d", n)
		}
		from, to := slices.Insert(slices.Clone(x.Shape), axis+1, 1), slices.Insert(slices.Clone(x.Shape), axis+1, n)
		return one(c.repeated(x, from, to, graph.WithExtent(x.Shape, axis, n*x.Shape[axis])))
	},
	"clone": same, "lift_fresh_copy": same, "lift_fresh": same,
	"copy": func(c *call) ([]*graph.Value, error) {
		x, src := c.tensor("self"), c.tensor("src")
		if c.err != nil {
			return nil, c.err
		}
		if !slices.Equal(src.Shape, x.Shape) {
			src = c.broadcast(src, x.Shape)
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

// repeated returns v reshaped to from, repeated to the shape to, and reshaped to out.
func (c *call) repeated(v *graph.Value, from, to, out []int64) *graph.Value {
	return c.reshape(c.add(graph.Broadcast, graph.Attrs{Shape: to}, v.DType, c.reshape(v, from)), out)
}

// pad translates padding with a number. A negative width removes elements.
func pad(c *call) ([]*graph.Value, error) {
	x, widths := c.tensor("self"), c.ints("pad")
	if mode := c.word("mode", "constant"); mode != "constant" {
		return nil, unsupported("mode=%q", clip(mode))
	}
	by := c.number("value", 0)
	for i := 0; i+1 < len(widths) && c.err == nil; i += 2 {
		axis := len(x.Shape) - 1 - i/2
		if axis < 0 {
			return nil, malformed("padding %v does not fit %s", widths, x)
		}
		x = c.padded(x, axis, widths[i], widths[i+1], by)
	}
	return one(x)
}

// padded returns v with additional elements along a dimension. The arguments before and after are the numbers of
// elements to add at the beginning and at the end; a negative number removes elements. The argument by is the value of
// added elements.
func (c *call) padded(v *graph.Value, axis int, before, after int64, by float64) *graph.Value {
	if c.err != nil {
		return nil
	}
	const most = 1 << 24
	n := v.Shape[axis]
	if before > most || after > most || before < -n || after < -n || n+min(before, 0)+min(after, 0) < 0 {
		c.fail(malformed("%s cannot be padded by %d and %d elements", v, before, after))
		return nil
	}
	v = c.slice(v, axis, -min(before, 0), n+min(after, 0), 1)
	part := func(k int64) *graph.Value {
		return c.broadcast(c.Scalar(v.DType, by), graph.WithExtent(v.Shape, axis, k))
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

func reshape(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	shape := c.ints("size")
	if c.arg("shape") != nil {
		shape = c.ints("shape")
	}
	if c.arg("dtype") != nil {
		return nil, unsupported("a view with another element type")
	}
	return one(c.reshape(x, shape))
}

// reshapeToOutput reshapes the operand to the shape of the result according to the export.
func reshapeToOutput(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	if len(c.outs) != 1 {
		return nil, malformed("it has %d results", len(c.outs))
	}
	meta := c.text.TensorValues[c.outs[0]]
	if meta == nil {
		return nil, malformed("the export has no type for the result %q", clip(c.outs[0]))
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
	shape := slices.Clone(size)
	for i, d := range x.Shape {
		if j := len(shape) - len(x.Shape) + i; shape[j] == -1 {
			shape[j] = d
		}
	}
	if slices.Equal(shape, x.Shape) {
		return one(x)
	}
	return one(c.broadcast(x, shape))
}

// split translates the operators that cut a tensor into several tensors.
func split(c *call) ([]*graph.Value, error) {
	x := c.tensor("self")
	axis := c.axis("dim", 0, x)
	if c.err != nil || axis >= len(x.Shape) {
		return nil, malformed("it splits a tensor of no dimensions")
	}
	size := x.Shape[axis]
	var parts []int64
	switch c.node.base() {
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
		parts = c.ints("split_size")
	}
	if len(parts) == 1 && parts[0] > 0 && c.node.base() != "split_with_sizes" {
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
		if c.node.base() == "unbind" {
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
		return nil, malformed("triu or tril of a tensor with fewer than two dimensions")
	}
	rows, cols := x.Shape[len(x.Shape)-2], x.Shape[len(x.Shape)-1]
	if rows*cols > maxConstants/8 {
		return nil, unsupported("triu or tril of a matrix of %d × %d elements", rows, cols)
	}
	mask := graph.NewTensor(graph.Bool, []int64{rows, cols})
	for i := range rows {
		for j := range cols {
			if c.node.base() == "tril" && j-i <= k || c.node.base() == "triu" && j-i >= k {
				mask.Elems[i*cols+j] = 1
			}
		}
	}
	return one(c.op(graph.Where, x.DType, c.Constant("", mask), x, c.Scalar(x.DType, 0)))
}

// creators holds the operators that create tensors without tensor operands.
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
			return nil, malformed("an identity matrix of %d × %d", n, m)
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

// full translates operators that fill a tensor with one number. The number is x or, if x is NaN, the argument
// fill_value of the call. It also translates torch.empty, whose contents no program may read.
func full(x float64) operator {
	return func(c *call) ([]*graph.Value, error) {
		dt, by := c.outDType(0), x
		if math.IsNaN(x) {
			by = c.number("fill_value", 0)
		}
		if len(c.outs) != 1 {
			return nil, malformed("it has %d results", len(c.outs))
		}
		meta := c.text.TensorValues[c.outs[0]]
		if c.err != nil || meta == nil {
			return nil, malformed("the export has no type for the result %q", clip(c.outs[0]))
		}
		shape, err := ints(meta.Sizes)
		if err != nil || len(shape) == 0 {
			return []*graph.Value{c.Scalar(dt, by)}, err
		}
		return one(c.broadcast(c.Scalar(dt, by), shape)) // a broadcast of one number needs no memory
	}
}
