package torchexport

import (
	"math"
	"slices"

	"hocket.example/hocket/internal/graph"
)

// indexers holds the operators that select elements by index, and those that sort elements.
var indexers = map[string]operator{
	"embedding": func(c *call) ([]*graph.Value, error) {
		w, ids := c.tensor("weight"), c.tensor("indices")
		return one(c.op(graph.Embedding, c.outDType(0), w, ids))
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
				return nil, unsupported("indices that are bools, or that skip a dimension")
			}
		}
		switch {
		case len(in) == 0:
			return nil, malformed("the call has no index tensor")
		case lead == 0:
			return one(c.op(graph.Take, x.DType, append([]*graph.Value{x}, in...)...))
		case len(in) > 1 || len(in[0].Shape) > 1 || lead >= len(x.Shape):
			return nil, unsupported("indices after %d dimensions", lead)
		}
		y := c.op(graph.Take, x.DType, c.transpose(x, 0, lead), in[0])
		if len(in[0].Shape) == 0 {
			return nil, unsupported("an index without dimensions")
		}
		return one(c.transpose(y, 0, lead))
	},
	"index_select": func(c *call) ([]*graph.Value, error) {
		x, i := c.tensor("self"), c.tensor("index")
		axis := c.axis("dim", 0, x)
		if c.err != nil || len(i.Shape) != 1 {
			return nil, malformed("an index that does not have one dimension")
		}
		y := c.op(graph.Take, x.DType, c.transpose(x, 0, axis), i)
		return one(c.transpose(y, 0, axis))
	},
	"index_put": func(c *call) ([]*graph.Value, error) {
		x, v, list := c.tensor("self"), c.tensor("values"), c.tensors("indices")
		if c.flag("accumulate", false) {
			return nil, unsupported("index_put with accumulate=True")
		}
		if c.err == nil && len(list) == 1 && list[0] != nil && list[0].DType == graph.Bool && v.Count() == 1 {
			mask := list[0]
			if len(mask.Shape) > len(x.Shape) {
				return nil, malformed("the mask %s does not fit the tensor %s", mask, x)
			}
			shape := slices.Concat(mask.Shape, slices.Repeat([]int64{1}, len(x.Shape)-len(mask.Shape)))
			v = c.reshape(c.cast(v, x.DType), []int64{})
			return one(c.op(graph.Where, x.DType, c.reshape(mask, shape), v, x))
		}
		for _, i := range list {
			if i == nil || i.DType == graph.Bool {
				return nil, unsupported("indices that are bools, or that skip a dimension")
			}
		}
		if c.err != nil {
			return nil, c.err
		}
		return one(c.op(graph.PutAt, x.DType,
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
			return nil, unsupported("topk with largest=False, or along another dimension than the last")
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
			return nil, unsupported("diff with n other than 1, or of a tensor without dimensions")
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
		return one(c.op(graph.Sub, x.DType, c.slice(x, axis, 1, math.MaxInt64, 1),
			c.slice(x, axis, 0, -1, 1)))
	},
	"histc": func(c *call) ([]*graph.Value, error) {
		x, bins := c.tensor("self"), c.int("bins", 100)
		if lo, hi := c.number("min", 0), c.number("max", 0); lo != 0 || hi != float64(bins)-1 {
			return nil, unsupported("a histogram whose bins are not the integers from 0 on")
		}
		return one(c.add(graph.BinCount, graph.Attrs{K: bins}, c.outDType(0), x))
	},
	"bincount": func(c *call) ([]*graph.Value, error) {
		x := c.tensor("self")
		if c.has("weights") {
			return nil, unsupported("bincount with weights")
		}
		return one(c.add(graph.BinCount, graph.Attrs{K: c.int("minlength", 0)}, c.outDType(0), x))
	},
	"one_hot": func(c *call) ([]*graph.Value, error) {
		x, n := c.tensor("self"), c.int("num_classes", -1)
		if c.err != nil || n < 1 || n > 1<<24 {
			return nil, unsupported("one_hot with %d classes", n)
		}
		return one(c.cast(c.oneHot(x, n), c.outDType(0)))
	},
}

// scatter translates the operator that writes one number to the elements that an index tensor selects along a
// dimension. Models use the operator, for example, to build masks of the experts of each token.
func scatter(c *call) ([]*graph.Value, error) {
	x, at := c.tensor("self"), c.tensor("index")
	axis := c.axis("dim", 0, x)
	if c.err != nil {
		return nil, c.err
	}
	if c.has("src") || c.arg("reduce") != nil || len(at.Shape) != len(x.Shape) || len(x.Shape) == 0 {
		return nil, unsupported("scatter that writes a tensor, reduces, or has an index with another number of " +
			"dimensions")
	}
	for d, n := range at.Shape {
		if d != axis && n != x.Shape[d] {
			return nil, unsupported("scatter whose index has other extents than the tensor in the other dimensions")
		}
	}
	n := x.Shape[axis]
	if n > 1<<24 {
		return nil, unsupported("scatter along %d elements", n)
	}
	// Element j of a row along the dimension is written if one of the indices in the same row is j.
	end := len(x.Shape) - 1
	x, at = c.transpose(x, axis, end), c.transpose(at, axis, end)
	if c.err != nil {
		return nil, c.err
	}
	is := c.add(graph.MaxOf, graph.Attrs{Axes: []int64{int64(end)}}, graph.Bool, c.oneHot(at, n))
	y := c.op(graph.Where, x.DType, is, c.Scalar(x.DType, c.number("value", 0)), x)
	return one(c.transpose(y, axis, end))
}

// oneHot compares each element of x with 0, 1, … n-1, along an additional last dimension.
func (c *call) oneHot(x *graph.Value, n int64) *graph.Value {
	classes := graph.NewTensor(x.DType, []int64{n})
	for i := range classes.Elems {
		classes.Elems[i] = float64(i)
	}
	return c.op(graph.Eq, graph.Bool, c.reshape(x, append(slices.Clone(x.Shape), 1)), c.Constant("", classes))
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
