package graph

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// of returns an f32 tensor with the given shape and elements.
func of(shape []int64, elems ...float64) *Tensor {
	return &Tensor{DType: F32, Shape: shape, Elems: elems}
}

func ints(shape []int64, elems ...float64) *Tensor {
	return &Tensor{DType: I64, Shape: shape, Elems: elems}
}

func bools(shape []int64, elems ...float64) *Tensor {
	return &Tensor{DType: Bool, Shape: shape, Elems: elems}
}

// eval evaluates one operation on inputs, and returns its results.
func eval(t *testing.T, op Op, a Attrs, dts []DType, in ...*Tensor) []*Tensor {
	t.Helper()
	g := &Graph{}
	given := map[*Value]*Tensor{}
	var list []*Value
	for _, x := range in {
		v := g.Input("x", x.DType, x.Shape)
		given[v] = x
		list = append(list, v)
	}
	n, err := g.Add(op, a, Origin{}, dts, list...)
	if err != nil {
		t.Fatal(err)
	}
	g.Outputs = n.Out
	out, err := Eval(g, given)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEval evaluates small cases that were worked out by hand.
func TestEval(t *testing.T) {
	v := []int64{4}
	m := []int64{2, 3}
	x := of(m, 1, 2, 3, 4, 5, 6)
	e := math.E
	for name, c := range map[string]struct {
		op    Op
		a     Attrs
		dt    DType
		in    []*Tensor
		shape []int64
		want  []float64
	}{
		"neg":   {op: Neg, in: []*Tensor{of(v, 1, -2, 0, 3)}, shape: v, want: []float64{-1, 2, 0, -3}},
		"exp":   {op: Exp, in: []*Tensor{of(v, 0, 1, -1, 2)}, shape: v, want: []float64{1, e, 1 / e, e * e}},
		"log":   {op: Log, in: []*Tensor{of(v, 1, e, e*e, 4)}, shape: v, want: []float64{0, 1, 2, 2 * math.Ln2}},
		"rsqrt": {op: Rsqrt, in: []*Tensor{of(v, 1, 4, 16, .25)}, shape: v, want: []float64{1, .5, .25, 2}},
		"sigmoid": {op: Sigmoid, in: []*Tensor{of(v, 0, 1, -1, 0)}, shape: v,
			want: []float64{.5, e / (1 + e), 1 / (1 + e), .5}},
		"silu": {op: SiLU, in: []*Tensor{of(v, 0, 1, -1, 2)}, shape: v,
			want: []float64{0, e / (1 + e), -1 / (1 + e), 2 * e * e / (1 + e*e)}},
		"relu": {op: ReLU, in: []*Tensor{of(v, 0, 1, -1, 2)}, shape: v, want: []float64{0, 1, 0, 2}},
		"gelu": {op: GELU, in: []*Tensor{of([]int64{2}, 0, 1)}, shape: []int64{2},
			want: []float64{0, .8413447460685429}},
		"gelutanh": {op: GELUTanh, in: []*Tensor{of([]int64{2}, 0, 1)}, shape: []int64{2},
			want: []float64{0, .8411919906082768}},
		"softplus": {op: Softplus, in: []*Tensor{of([]int64{2}, 0, 1)}, shape: []int64{2},
			want: []float64{math.Ln2, 1.3132616875182228}},
		"not": {op: Not, dt: Bool, in: []*Tensor{bools(v, 0, 1, 1, 0)}, shape: v, want: []float64{1, 0, 0, 1}},
		"cast": {op: Cast, dt: I64, in: []*Tensor{of(v, 1.9, -1.9, 0.5, 7)}, shape: v,
			want: []float64{1, -1, 0, 7}},
		"to bf16": {op: Cast, dt: BF16, in: []*Tensor{of([]int64{2}, 257, 1.01)}, shape: []int64{2},
			want: []float64{256, 1.0078125}},

		"add": {op: AddOp, in: []*Tensor{x, of([]int64{3}, 10, 20, 30)}, shape: m,
			want: []float64{11, 22, 33, 14, 25, 36}},
		"add columns": {op: AddOp, in: []*Tensor{x, of([]int64{2, 1}, 10, 20)}, shape: m,
			want: []float64{11, 12, 13, 24, 25, 26}},
		"sub": {op: Sub, in: []*Tensor{x, of([]int64{}, 1)}, shape: m, want: []float64{0, 1, 2, 3, 4, 5}},
		"div": {op: Div, in: []*Tensor{of([]int64{}, 12), x}, shape: m, want: []float64{12, 6, 4, 3, 2.4, 2}},
		"floor_div": {op: FloorDiv, dt: I64, in: []*Tensor{ints(v, 7, -7, 6, 1), ints([]int64{}, 2)}, shape: v,
			want: []float64{3, -4, 3, 0}},
		"rem": {op: Rem, dt: I64, in: []*Tensor{ints(v, 7, -7, 6, 1), ints([]int64{}, 4)}, shape: v,
			want: []float64{3, 1, 2, 1}},
		"pow": {op: Pow, in: []*Tensor{x, of([]int64{}, 2)}, shape: m, want: []float64{1, 4, 9, 16, 25, 36}},
		"le": {op: Le, dt: Bool, in: []*Tensor{x, of([]int64{}, 3)}, shape: m,
			want: []float64{1, 1, 1, 0, 0, 0}},
		"and": {op: And, dt: Bool, in: []*Tensor{bools(v, 0, 0, 1, 1), bools(v, 0, 1, 0, 1)}, shape: v,
			want: []float64{0, 0, 0, 1}},
		"where": {op: Where, in: []*Tensor{bools([]int64{3}, 1, 0, 1), x, of([]int64{}, -1)}, shape: m,
			want: []float64{1, -1, 3, 4, -1, 6}},

		"reshape": {op: Reshape, a: Attrs{Shape: []int64{3, 2}}, in: []*Tensor{x}, shape: []int64{3, 2},
			want: []float64{1, 2, 3, 4, 5, 6}},
		"transpose": {op: Transpose, a: Attrs{Axes: []int64{1, 0}}, in: []*Tensor{x}, shape: []int64{3, 2},
			want: []float64{1, 4, 2, 5, 3, 6}},
		"broadcast": {op: Broadcast, a: Attrs{Shape: []int64{2, 2}}, in: []*Tensor{of([]int64{2, 1}, 7, 8)},
			shape: []int64{2, 2}, want: []float64{7, 7, 8, 8}},
		"slice": {op: SliceOp, a: Attrs{Axis: 1, Lo: 0, Hi: 3, Step: 2}, in: []*Tensor{x}, shape: []int64{2, 2},
			want: []float64{1, 3, 4, 6}},
		"concat": {op: Concat, a: Attrs{Axis: 1}, in: []*Tensor{x, of([]int64{2, 1}, 8, 9)}, shape: []int64{2, 4},
			want: []float64{1, 2, 3, 8, 4, 5, 6, 9}},

		"sum": {op: SumOp, a: Attrs{Axes: []int64{0}}, in: []*Tensor{x}, shape: []int64{3},
			want: []float64{5, 7, 9}},
		"mean": {op: Mean, a: Attrs{Axes: []int64{1}, Keep: true}, in: []*Tensor{x}, shape: []int64{2, 1},
			want: []float64{2, 5}},
		"max_of": {op: MaxOf, a: Attrs{Axes: []int64{0, 1}}, in: []*Tensor{x}, shape: []int64{}, want: []float64{6}},
		"min_of": {op: MinOf, a: Attrs{Axes: []int64{1}}, in: []*Tensor{x}, shape: []int64{2}, want: []float64{1, 4}},
		"argmax": {op: ArgMax, a: Attrs{Axis: 1}, dt: I64, in: []*Tensor{of(m, 1, 3, 3, 9, 8, 7)}, shape: []int64{2},
			want: []float64{1, 0}},
		"cumsum": {op: Cumsum, a: Attrs{Axis: 0}, in: []*Tensor{x}, shape: m, want: []float64{1, 2, 3, 5, 7, 9}},
		"softmax": {op: Softmax, a: Attrs{Axis: 1}, in: []*Tensor{of([]int64{1, 2}, 0, math.Log(3))},
			shape: []int64{1, 2}, want: []float64{.25, .75}},
		"bincount": {op: BinCount, a: Attrs{K: 3}, dt: I64, in: []*Tensor{ints(v, 0, 2, 2, 5)}, shape: []int64{3},
			want: []float64{1, 0, 2}},

		"linear": {op: Linear, in: []*Tensor{of([]int64{1, 2}, 1, 2), of([]int64{3, 2}, 1, 0, 0, 1, 3, 4),
			of([]int64{3}, 10, 20, 30)},
			shape: []int64{1, 3}, want: []float64{11, 22, 41}},
		"matmul": {op: MatMul, in: []*Tensor{x, of([]int64{3, 1}, 1, 10, 100)}, shape: []int64{2, 1},
			want: []float64{321, 654}},
		"grouped_matmul": {op: GroupedMatMul, in: []*Tensor{of([]int64{3, 1}, 1, 2, 3), of([]int64{2, 1, 1}, 10, 100),
			ints([]int64{2}, 1, 3)}, shape: []int64{3, 1}, want: []float64{10, 200, 300}},
		"rms_norm": {op: RMSNorm, in: []*Tensor{of([]int64{1, 2}, 1, 7), of([]int64{2}, 5, 10)}, shape: []int64{1, 2},
			want: []float64{1, 14}},
		"layer_norm": {op: LayerNorm, in: []*Tensor{of([]int64{1, 2}, 1, 3), of([]int64{2}, 5, 5),
			of([]int64{2}, 0, 1)},
			shape: []int64{1, 2}, want: []float64{-5, 6}},
		// The scores are 0 and ln 3, so the second value has three times the weight of the first.
		"attention": {op: Attention, a: Attrs{Scale: 1},
			in: []*Tensor{of([]int64{1, 1}, 1), of([]int64{2, 1}, 0, math.Log(3)),
				of([]int64{2, 1}, 4, 8)}, shape: []int64{1, 1}, want: []float64{7}},
		"causal": {op: Attention, a: Attrs{Scale: 1, Causal: true},
			in: []*Tensor{of([]int64{2, 1}, 0, 0), of([]int64{2, 1}, 1, 1),
				of([]int64{2, 1}, 4, 8)}, shape: []int64{2, 1}, want: []float64{4, 6}},
		"masked": {op: Attention, a: Attrs{Scale: 1}, in: []*Tensor{of([]int64{2, 1}, 0, 0), of([]int64{2, 1}, 1, 1),
			of([]int64{2, 1}, 4, 8), bools([]int64{2, 2}, 0, 1, 0, 0)}, shape: []int64{2, 1}, want: []float64{8, 0}},

		"embedding": {op: Embedding, in: []*Tensor{x, ints([]int64{2}, 1, 0)}, shape: m,
			want: []float64{4, 5, 6, 1, 2, 3}},
		"index_add": {op: IndexAdd, a: Attrs{K: 3}, in: []*Tensor{of([]int64{4, 2}, 1, 2, 3, 4, 5, 6, 7, 8),
			ints([]int64{4}, 2, 0, 2, -1)}, shape: []int64{3, 2}, want: []float64{3, 4, 0, 0, 6, 8}},
		"take": {op: Take, in: []*Tensor{x, ints([]int64{2}, 1, 0), ints([]int64{2}, 2, -1)}, shape: []int64{2},
			want: []float64{6, 3}},
		"take_along": {op: TakeAlong, a: Attrs{Axis: 1}, in: []*Tensor{x, ints([]int64{2, 1}, 2, 0)},
			shape: []int64{2, 1}, want: []float64{3, 4}},
		"put_at": {op: PutAt, in: []*Tensor{x, of([]int64{1, 3}, 7, 8, 9), ints([]int64{1}, 1)}, shape: m,
			want: []float64{1, 2, 3, 7, 8, 9}},
		"index_copy": {op: IndexCopy, a: Attrs{Axis: 1}, in: []*Tensor{x, ints([]int64{1}, 2), of([]int64{2, 1}, 8, 9)},
			shape: m,
			want:  []float64{1, 2, 8, 4, 5, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.dt == "" {
				c.dt = F32
			}
			got := eval(t, c.op, c.a, []DType{c.dt}, c.in...)[0]
			if !slices.Equal(got.Shape, c.shape) || len(got.Elems) != len(c.want) {
				t.Fatalf("shape %v, want %v", got.Shape, c.shape)
			}
			for i, w := range c.want {
				if g := got.Elems[i]; math.Abs(g-w) > 1e-6*math.Abs(w) || round(c.dt, g) != g {
					t.Errorf("element %d is %v, want %v", i, g, w)
				}
			}
		})
	}
}

// TestOrdered checks that topk and sort return the index of each element, and keep equal elements
// in order.
func TestOrdered(t *testing.T) {
	x := of([]int64{1, 4}, 3, 9, 3, 1)
	for name, c := range map[string]struct {
		op          Op
		a           Attrs
		values, was []float64
	}{
		"topk": {TopK, Attrs{K: 3}, []float64{9, 3, 3}, []float64{1, 0, 2}},
		"sort": {SortOp, Attrs{Axis: 1}, []float64{1, 3, 3, 9}, []float64{3, 0, 2, 1}},
		"down": {SortOp, Attrs{Axis: 1, Desc: true}, []float64{9, 3, 3, 1}, []float64{1, 0, 2, 3}},
	} {
		out := eval(t, c.op, c.a, []DType{F32, I64}, x)
		if !slices.Equal(out[0].Elems, c.values) || !slices.Equal(out[1].Elems, c.was) {
			t.Errorf("%s: %v and %v", name, out[0].Elems, out[1].Elems)
		}
	}
}

// TestRefused checks that Add returns an error for operands that do not fit.
func TestRefused(t *testing.T) {
	shape := func(s ...int64) []int64 { return s }
	for name, c := range map[string]struct {
		op Op
		a  Attrs
		in [][]int64
	}{
		"no such operation":        {op: "sideways", in: [][]int64{shape(2)}},
		"too few operands":         {op: AddOp, in: [][]int64{shape(2)}},
		"shapes":                   {op: AddOp, in: [][]int64{shape(2), shape(3)}},
		"elements":                 {op: Reshape, a: Attrs{Shape: shape(3)}, in: [][]int64{shape(2)}},
		"a huge shape":             {op: Reshape, a: Attrs{Shape: shape(1<<40, 1<<40)}, in: [][]int64{shape(2)}},
		"a negative extent":        {op: Broadcast, a: Attrs{Shape: shape(-1)}, in: [][]int64{shape(1)}},
		"a large broadcast":        {op: Broadcast, a: Attrs{Shape: shape(1<<30, 1<<30)}, in: [][]int64{shape(1)}},
		"an axis twice":            {op: Transpose, a: Attrs{Axes: shape(0, 0)}, in: [][]int64{shape(2, 3)}},
		"past the end":             {op: SliceOp, a: Attrs{Hi: 3, Step: 1}, in: [][]int64{shape(2)}},
		"no step":                  {op: SliceOp, a: Attrs{Hi: 2}, in: [][]int64{shape(2)}},
		"no such dimension":        {op: Softmax, a: Attrs{Axis: 2}, in: [][]int64{shape(2, 2)}},
		"no such axis":             {op: SumOp, a: Attrs{Axes: shape(-1)}, in: [][]int64{shape(2)}},
		"more than there are":      {op: TopK, a: Attrs{K: 3}, in: [][]int64{shape(2)}},
		"a contraction":            {op: Linear, in: [][]int64{shape(2, 3), shape(4, 2)}},
		"a bias":                   {op: Linear, in: [][]int64{shape(2, 3), shape(4, 3), shape(3)}},
		"inner dimensions":         {op: MatMul, in: [][]int64{shape(2, 3), shape(2, 3)}},
		"groups":                   {op: GroupedMatMul, in: [][]int64{shape(2, 3), shape(4, 3, 5), shape(3)}},
		"a mask":                   {op: Attention, in: [][]int64{shape(2, 3), shape(4, 3), shape(4, 3), shape(2, 3)}},
		"heads":                    {op: Attention, in: [][]int64{shape(4, 2, 3), shape(2, 4, 3), shape(2, 4, 3)}},
		"too many indices":         {op: Take, in: [][]int64{shape(2), shape(1), shape(1)}},
		"rows of another length":   {op: IndexCopy, in: [][]int64{shape(4, 2), shape(1), shape(1, 3)}},
		"rows without an index":    {op: IndexCopy, in: [][]int64{shape(4, 2), shape(2), shape(1, 2)}},
		"columns of another count": {op: Concat, in: [][]int64{shape(4, 2), shape(4, 3)}},
	} {
		g := &Graph{}
		var in []*Value
		for _, s := range c.in {
			in = append(in, g.Input("x", F32, s))
		}
		if n, err := g.Add(c.op, c.a, Origin{}, []DType{F32}, in...); err == nil || len(g.Nodes) != 0 {
			t.Errorf("%s: it is %v", name, n.Out[0])
		}
	}
	g := &Graph{}
	if _, err := g.Add(Neg, Attrs{}, Origin{}, []DType{F32}, nil); err == nil {
		t.Error("a nil operand is accepted")
	}
}

// TestIndices checks that Eval returns an error for indices out of range.
func TestIndices(t *testing.T) {
	for name, c := range map[string]struct {
		op Op
		in []*Tensor
	}{
		"embedding":  {Embedding, []*Tensor{of([]int64{2, 1}, 1, 2), ints([]int64{1}, 2)}},
		"index_add":  {IndexAdd, []*Tensor{of([]int64{1, 1}, 1), ints([]int64{1}, -2)}},
		"take":       {Take, []*Tensor{of([]int64{2}, 1, 2), ints([]int64{1}, -3)}},
		"take_along": {TakeAlong, []*Tensor{of([]int64{2}, 1, 2), ints([]int64{1}, 2)}},
		"index_copy": {IndexCopy, []*Tensor{of([]int64{2}, 1, 2), ints([]int64{1}, 2), of([]int64{1}, 5)}},
		"put_at":     {PutAt, []*Tensor{of([]int64{2}, 1, 2), of([]int64{1}, 5), ints([]int64{1}, 2)}},
		"groups":     {GroupedMatMul, []*Tensor{of([]int64{1, 1}, 1), of([]int64{1, 1, 1}, 1), ints([]int64{1}, 2)}},
	} {
		g := &Graph{}
		given := map[*Value]*Tensor{}
		var in []*Value
		for _, x := range c.in {
			v := g.Input("x", x.DType, x.Shape)
			given[v], in = x, append(in, v)
		}
		n, err := g.Add(c.op, Attrs{}, Origin{}, []DType{F32}, in...)
		if err != nil {
			t.Fatal(err)
		}
		g.Outputs = n.Out
		if _, err := Eval(g, given); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestStates checks that a call changes a state for the next call, and that the results of the call
// itself use the state before the change.
func TestStates(t *testing.T) {
	g := &Graph{}
	s := g.Constant("count", of([]int64{1}, 5))
	s.Path = "model.count"
	x := g.Input("x", F32, []int64{1})
	if err := g.Change(s); err != nil {
		t.Fatal(err)
	}
	if err := g.Change(x); err == nil {
		t.Error("an input is accepted as a state")
	}
	n, err := g.Add(AddOp, Attrs{}, Origin{}, []DType{F32}, s, x)
	if err != nil {
		t.Fatal(err)
	}
	g.Outputs, g.Updates = []*Value{s}, []Update{{s, n.Out[0]}}
	given := map[*Value]*Tensor{s: of([]int64{1}, 5), x: of([]int64{1}, 2)}
	for _, want := range []float64{5, 7, 9} {
		out, err := Eval(g, given)
		if err != nil || out[0].Elems[0] != want {
			t.Errorf("%v, %v; want %v", out, err, want)
		}
	}
	if (&Folder{Elems: 100}).IsConstant(n.Out[0]) {
		t.Error("a value that depends on a state counts as constant")
	}
}

// TestShared checks that equal operations on the same operands become one node, and different ones
// do not.
func TestShared(t *testing.T) {
	g := &Graph{}
	x, y := g.Input("x", F32, []int64{4}), g.Input("y", F32, []int64{4})
	add := func(op Op, a Attrs, dt DType, in ...*Value) *Value {
		n, err := g.Add(op, a, Origin{}, []DType{dt}, in...)
		if err != nil {
			t.Fatal(err)
		}
		return n.Out[0]
	}
	one := add(AddOp, Attrs{}, F32, x, g.Scalar(F32, 1))
	if again := add(AddOp, Attrs{}, F32, x, g.Scalar(F32, 1)); again != one {
		t.Error("x + 1 is two nodes")
	}
	for name, other := range map[string]*Value{"x + 2": add(AddOp, Attrs{}, F32, x, g.Scalar(F32, 2)),
		"y + 1": add(AddOp, Attrs{}, F32, y, g.Scalar(F32, 1)), "x - 1": add(Sub, Attrs{}, F32, x, g.Scalar(F32, 1)),
		"bf16": add(AddOp, Attrs{}, BF16, x, g.Scalar(F32, 1))} {
		if other == one {
			t.Errorf("%s is the same node as x + 1", name)
		}
	}
	lo, hi := add(SliceOp, Attrs{Hi: 2, Step: 1}, F32, x), add(SliceOp, Attrs{Lo: 2, Hi: 4, Step: 1}, F32, x)
	if lo == hi {
		t.Error("two parts are one")
	}
}

// TestFolder checks that constants are computed, up to the limit of elements.
func TestFolder(t *testing.T) {
	g := &Graph{}
	c := g.Constant("", of([]int64{2}, 1, 2))
	wide, err := g.Add(Broadcast, Attrs{Shape: []int64{3, 2}}, Origin{Name: "aten.expand"}, []DType{F32}, c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := (&Folder{Elems: 6}).Value(wide.Out[0])
	if err != nil || !slices.Equal(got.Elems, []float64{1, 2, 1, 2, 1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err = (&Folder{Elems: 5}).Value(wide.Out[0]); !errors.Is(err, ErrTooLarge) ||
		!strings.Contains(err.Error(), "aten.expand") {
		t.Errorf("six elements with a limit of five: %v", err)
	}
}
