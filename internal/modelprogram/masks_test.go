package modelprogram

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/graph"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// maker builds graphs for tests.
type maker struct {
	*graph.Graph
	t *testing.T
}

func (m *maker) add(op graph.Op, a graph.Attrs, dt graph.DType, in ...*graph.Value) *graph.Value {
	m.t.Helper()
	n, err := m.Add(op, a, graph.Origin{Name: string(op)}, []graph.DType{dt}, in...)
	if err != nil {
		m.t.Fatal(err)
	}
	return n.Out[0]
}

func (m *maker) constant(dt graph.DType, shape []int64, elems ...float64) *graph.Value {
	return m.Constant("", &graph.Tensor{DType: dt, Shape: shape, Elems: elems})
}

// ran converts the graph to a program, evaluates the program and returns its results.
func (m *maker) ran(given map[*graph.Value]*graph.Tensor) []*graph.Tensor {
	t := m.t
	t.Helper()
	p, err := Make("test", m.Graph, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, ds := ir.Bind(p.Info, ir.Binding{})
	if ds.HasErrors() {
		t.Fatalf("%v\n%s", ds, p.Text)
	}
	in := map[string]*tensor.Tensor{}
	for _, param := range p.Params {
		src := param.Constant
		for v, x := range given {
			if param.Input && v.Name == param.Name {
				src = x
			}
		}
		if src == nil {
			t.Fatalf("nothing is given for %s\n%s", param.Name, p.Text)
		}
		dt, _ := ir.ParseDType(string(param.DType))
		x, err := tensor.New(dt, param.Shape)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range src.Elems {
			x.SetFloat64(int64(i), e)
		}
		in[param.Name] = x
	}
	res, err := eval.Run(t.Context(), b, in, eval.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Text)
	}
	var out []*graph.Tensor
	for i, o := range res.Outputs {
		y := graph.NewTensor(m.Outputs[i].DType, o.Tensor.Shape)
		for j := range y.Elems {
			y.Elems[j] = o.Tensor.Float64(int64(j))
		}
		out = append(out, y)
	}
	return out
}

// TestMasks compares the results of programs with bools with results that were computed by hand.
func TestMasks(t *testing.T) {
	x := func(m *maker) *graph.Value { return m.Input("x", graph.F32, []int64{2, 3}) }
	number := func(m *maker, v float64) *graph.Value { return m.Scalar(graph.F32, v) }
	given := []float64{-1, 0, 2, 3, 2, -4}
	for name, c := range map[string]struct {
		make func(m *maker, x *graph.Value) *graph.Value
		want []float64
	}{
		"where": {func(m *maker, x *graph.Value) *graph.Value {
			is := m.add(graph.Gt, graph.Attrs{}, graph.Bool, x, number(m, 0))
			return m.add(graph.Where, graph.Attrs{}, graph.F32, is, x, number(m, 7))
		}, []float64{7, 7, 2, 3, 2, 7}},
		"number first": {func(m *maker, x *graph.Value) *graph.Value {
			is := m.add(graph.Gt, graph.Attrs{}, graph.Bool, number(m, 2), x) // x < 2
			return m.add(graph.Cast, graph.Attrs{}, graph.F32, is)
		}, []float64{1, 1, 0, 0, 0, 1}},
		"and, or, not": {func(m *maker, x *graph.Value) *graph.Value {
			a := m.add(graph.Ge, graph.Attrs{}, graph.Bool, x, number(m, 0))
			b := m.add(graph.Ne, graph.Attrs{}, graph.Bool, x, number(m, 2))
			c := m.add(graph.Eq, graph.Attrs{}, graph.Bool, x, number(m, -1))
			both := m.add(graph.And, graph.Attrs{}, graph.Bool, a, b)
			either := m.add(graph.Or, graph.Attrs{}, graph.Bool, both, c)
			return m.add(graph.Cast, graph.Attrs{}, graph.F32, m.add(graph.Not, graph.Attrs{}, graph.Bool, either))
		}, []float64{0, 0, 1, 0, 1, 1}},
		"a vector of bools that is known": {func(m *maker, x *graph.Value) *graph.Value {
			is := m.add(graph.Gt, graph.Attrs{}, graph.Bool, x, number(m, 0))
			both := m.add(graph.And, graph.Attrs{}, graph.Bool, m.constant(graph.Bool, []int64{3}, 1, 1, 0), is)
			return m.add(graph.Where, graph.Attrs{}, graph.F32, both, m.constant(graph.F32, []int64{3}, 5, 6, 7), x)
		}, []float64{-1, 0, 2, 5, 6, -4}},
		"a mask of rows": {func(m *maker, x *graph.Value) *graph.Value {
			rows := m.add(graph.MinOf, graph.Attrs{Axes: []int64{1}, Keep: true}, graph.F32, x)
			is := m.add(graph.Lt, graph.Attrs{}, graph.Bool, rows, number(m, -2))
			return m.add(graph.Where, graph.Attrs{}, graph.F32, is, number(m, 0), x)
		}, []float64{-1, 0, 2, 0, 0, 0}},
		"any": {func(m *maker, x *graph.Value) *graph.Value {
			is := m.add(graph.Eq, graph.Attrs{}, graph.Bool, x, number(m, 3))
			any := m.add(graph.MaxOf, graph.Attrs{Axes: []int64{1}, Keep: true}, graph.Bool, is)
			return m.add(graph.Where, graph.Attrs{}, graph.F32, any, x, number(m, 1))
		}, []float64{1, 1, 1, 3, 2, -4}},
		"how many so far": {func(m *maker, x *graph.Value) *graph.Value {
			is := m.add(graph.Gt, graph.Attrs{}, graph.Bool, x, number(m, 0))
			n := m.add(graph.Cumsum, graph.Attrs{Axis: 1}, graph.I64, m.add(graph.Cast, graph.Attrs{}, graph.I64, is))
			return m.add(graph.Cast, graph.Attrs{}, graph.F32, n)
		}, []float64{0, 0, 1, 1, 2, 2}},
		"sums down": {func(m *maker, x *graph.Value) *graph.Value {
			return m.add(graph.Cumsum, graph.Attrs{Axis: 0}, graph.F32, x)
		}, []float64{-1, 0, 2, 2, 2, -2}},
		"rows by index from the end": {func(m *maker, x *graph.Value) *graph.Value {
			return m.add(graph.Take, graph.Attrs{}, graph.F32, x, m.constant(graph.I64, []int64{2}, -1, 0))
		}, []float64{3, 2, -4, -1, 0, 2}},
		"elements by two indices": {func(m *maker, x *graph.Value) *graph.Value {
			y := m.add(graph.Take, graph.Attrs{}, graph.F32, x, m.constant(graph.I64, []int64{2, 1}, 0, 1),
				m.constant(graph.I64, []int64{3}, 2, 1, 0))
			return y
		}, []float64{2, 0, -1, -4, 2, 3}},
		"rows by the largest": {func(m *maker, x *graph.Value) *graph.Value {
			i := m.add(graph.ArgMax, graph.Attrs{Axis: 0}, graph.I64, x) // 1, 1, 0
			return m.add(graph.Take, graph.Attrs{}, graph.F32, x, i)
		}, []float64{3, 2, -4, 3, 2, -4, -1, 0, 2}},
		"times a vector of one": {func(m *maker, x *graph.Value) *graph.Value {
			one := m.add(graph.SumOp, graph.Attrs{Axes: []int64{0, 1}}, graph.F32, x) // 2
			return m.add(graph.Mul, graph.Attrs{}, graph.F32, x, m.add(graph.Reshape, graph.Attrs{Shape: []int64{1}},
				graph.F32, one))
		}, []float64{-2, 0, 4, 6, 4, -8}},
		"less than a vector of one": {func(m *maker, x *graph.Value) *graph.Value {
			one := m.add(graph.SumOp, graph.Attrs{Axes: []int64{0, 1}, Keep: true}, graph.F32, x) // 2
			return m.add(graph.Cast, graph.Attrs{}, graph.F32, m.add(graph.Lt, graph.Attrs{}, graph.Bool, x, one))
		}, []float64{1, 1, 0, 0, 0, 1}},
		"products of one matrix and two": {func(m *maker, x *graph.Value) *graph.Value {
			two := m.add(graph.Reshape, graph.Attrs{Shape: []int64{2, 3, 1}}, graph.F32, x)
			w := m.constant(graph.F32, []int64{1, 3}, 1, 10, 100)
			return m.add(graph.MatMul, graph.Attrs{}, graph.F32, w, two)
		}, []float64{199, -377}},
		"a power of two": {func(m *maker, x *graph.Value) *graph.Value {
			return m.add(graph.Pow, graph.Attrs{}, graph.F32, number(m, 2), x)
		}, []float64{0.5, 1, 4, 8, 4, 0.0625}},
		"part of what was joined": {func(m *maker, x *graph.Value) *graph.Value {
			y := m.add(graph.Neg, graph.Attrs{}, graph.F32, x)
			z := m.add(graph.Concat, graph.Attrs{Axis: 0}, graph.F32, x, y, x)
			return m.add(graph.SliceOp, graph.Attrs{Axis: 0, Lo: 2, Hi: 4, Step: 1}, graph.F32, z)
		}, []float64{1, 0, -2, -3, -2, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &maker{&graph.Graph{}, t}
			in := x(m)
			m.Outputs = []*graph.Value{c.make(m, in)}
			got := m.ran(map[*graph.Value]*graph.Tensor{in: {DType: graph.F32, Shape: in.Shape, Elems: given}})[0]
			if len(got.Elems) != len(c.want) {
				t.Fatalf("%v, want %v", got.Elems, c.want)
			}
			for i, x := range got.Elems {
				if math.Abs(x-c.want[i]) > 1e-5*math.Max(1, math.Abs(c.want[i])) {
					t.Fatalf("%v, want %v", got.Elems, c.want)
				}
			}
		})
	}
}

// TestBoolWeight refuses a weight of type bool, which programs do not have.
func TestBoolWeight(t *testing.T) {
	m := &maker{&graph.Graph{}, t}
	x := m.Input("x", graph.F32, []int64{2})
	is := m.Weight("is", "layer.is", graph.Bool, []int64{2})
	m.Outputs = []*graph.Value{m.add(graph.Where, graph.Attrs{}, graph.F32, is, x, m.Scalar(graph.F32, 0))}
	if _, err := Make("test", m.Graph, Options{}); !errors.Is(err, ErrUnsupported) ||
		!strings.Contains(err.Error(), "layer.is is of type bool") {
		t.Errorf("error: %v", err)
	}
}

// TestAttentionByParts compares attention with unusual masks and shapes with its formula.
func TestAttentionByParts(t *testing.T) {
	for name, c := range map[string]struct {
		q, k, v []int64
		mask    []int64
		dt      graph.DType
		causal  bool
	}{
		"a mask of the input": {[]int64{1, 2, 3, 4}, []int64{1, 2, 3, 4}, []int64{1, 2, 3, 4}, []int64{3, 3},
			graph.Bool, false},
		"numbers added": {[]int64{1, 2, 3, 4}, []int64{1, 2, 5, 4}, []int64{1, 2, 5, 4},
			[]int64{1, 2, 3, 5}, graph.F32, false},
		"fewer queries than keys": {[]int64{1, 2, 2, 4}, []int64{1, 2, 5, 4}, []int64{1, 2, 5, 4}, nil, "", true},
		"one query":               {[]int64{1, 2, 1, 4}, []int64{1, 2, 5, 4}, []int64{1, 2, 5, 4}, nil, "", true},
		"values of other extent":  {[]int64{1, 2, 3, 4}, []int64{1, 2, 3, 4}, []int64{1, 2, 3, 2}, nil, "", true},
		"wider values":            {[]int64{1, 2, 3, 2}, []int64{1, 2, 3, 2}, []int64{1, 2, 3, 4}, nil, "", false},
		"three dimensions":        {[]int64{2, 3, 4}, []int64{2, 3, 4}, []int64{2, 3, 4}, nil, "", true},
		"three dimensions, masked": {[]int64{2, 3, 4}, []int64{2, 3, 4}, []int64{2, 3, 4}, []int64{2, 1, 3},
			graph.Bool, false},
		"five dimensions, one mask": {[]int64{1, 2, 2, 3, 4}, []int64{1, 2, 2, 3, 4}, []int64{1, 2, 2, 3, 4},
			[]int64{3, 3}, graph.F32, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := &maker{&graph.Graph{}, t}
			rng := rand.New(rand.NewPCG(1, 2))
			given := map[*graph.Value]*graph.Tensor{}
			input := func(name string, shape []int64) *graph.Value {
				v := m.Input(name, graph.F32, shape)
				x := graph.NewTensor(graph.F32, shape)
				for i := range x.Elems {
					x.Elems[i] = float64(float32(rng.NormFloat64()))
				}
				given[v] = x
				return v
			}
			in := []*graph.Value{input("q", c.q), input("k", c.k), input("v", c.v)}
			if c.mask != nil {
				mask := input("mask", c.mask)
				if c.dt == graph.Bool {
					for i := range len(given[mask].Elems) / 3 { // a row of zeros: its query uses no key
						given[mask].Elems[i] = -1
					}
					mask = m.add(graph.Gt, graph.Attrs{}, graph.Bool, mask, m.Scalar(graph.F32, 0))
				}
				in = append(in, mask)
			}
			y := m.add(graph.Attention, graph.Attrs{Causal: c.causal, Scale: 0.7}, graph.F32, in...)
			m.Outputs = []*graph.Value{y}
			nodes := len(m.Nodes)
			want, err := graph.Eval(m.Graph, given)
			if err != nil {
				t.Fatal(err)
			}
			got := m.ran(given)[0]
			if len(m.Nodes) == nodes {
				t.Error("it was lowered as it is")
			}
			for i, x := range got.Elems {
				if math.Abs(x-want[0].Elems[i]) > 1e-5 {
					t.Fatalf("element %d is %v, want %v", i, x, want[0].Elems[i])
				}
			}
		})
	}
}
