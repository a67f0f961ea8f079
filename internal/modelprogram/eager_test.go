package modelprogram

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"hocket.example/hocket/internal/graph"
)

// TestEagerAttention checks that attention that models compute by separate operations is recognized, and that scores to
// which a bias is added are not.
func TestEagerAttention(t *testing.T) {
	const tokens, width = 6, 4
	causal := func(hidden float64) *graph.Tensor {
		m := graph.NewTensor(graph.F32, []int64{1, 1, tokens, tokens})
		for i := range tokens {
			for j := i + 1; j < tokens; j++ {
				m.Elems[i*tokens+j] = hidden
			}
		}
		return m
	}
	type ops struct {
		*maker
		s *graph.Value
	}
	f := func(o *ops, op graph.Op, in ...*graph.Value) *graph.Value {
		return o.add(op, graph.Attrs{}, graph.F32, in...)
	}
	for name, c := range map[string]struct {
		scores func(o *ops) *graph.Value
		want   string // empty if attention must not be recognized
	}{
		"no mask": {func(o *ops) *graph.Value { return o.s }, "scale=1"},
		"scaled, then masked": {func(o *ops) *graph.Value {
			return f(o, graph.AddOp, f(o, graph.Mul, o.s, o.Scalar(graph.F32, 0.3)), o.Constant("", causal(-3.4e38)))
		}, "causal=true, scale=0.3"},
		"masked, then scaled": {func(o *ops) *graph.Value {
			return f(o, graph.Div, f(o, graph.AddOp, o.s, o.Constant("", causal(-3.4e38))), o.Scalar(graph.F32, 2))
		}, "causal=true"},
		"with a floor": {func(o *ops) *graph.Value {
			return f(o, graph.Max, f(o, graph.AddOp, o.s, o.Constant("", causal(-3.4e38))),
				o.Scalar(graph.F32, -3.4e38))
		}, "causal=true"},
		"chosen": {func(o *ops) *graph.Value {
			is := o.add(graph.Eq, graph.Attrs{}, graph.Bool, o.Constant("", causal(1)), o.Scalar(graph.F32, 0))
			return f(o, graph.Where, is, o.s, o.Scalar(graph.F32, -1e9))
		}, "causal=true"},
		"filled": {func(o *ops) *graph.Value {
			is := o.add(graph.Eq, graph.Attrs{}, graph.Bool, o.Constant("", causal(1)), o.Scalar(graph.F32, 1))
			return f(o, graph.Where, is, o.Scalar(graph.F32, -1e9), o.s)
		}, "causal=true"},
		"multiplied by a mask": {func(o *ops) *graph.Value {
			sees := causal(1)
			for i := range sees.Elems {
				sees.Elems[i] = 1 - sees.Elems[i]
			}
			return f(o, graph.AddOp, f(o, graph.Mul, o.s, o.Constant("", sees)), o.Constant("", causal(-1e4)))
		}, "causal=true"},
		"multiplied by a mask that nothing hides": {func(o *ops) *graph.Value {
			sees := causal(1)
			for i := range sees.Elems {
				sees.Elems[i] = 1 - sees.Elems[i]
			}
			return f(o, graph.Mul, o.s, o.Constant("", sees))
		}, ""},
		"capped": {func(o *ops) *graph.Value {
			s := f(o, graph.Tanh, f(o, graph.Div, o.s, o.Scalar(graph.F32, 5)))
			return f(o, graph.AddOp, f(o, graph.Mul, s, o.Scalar(graph.F32, 5)), o.Constant("", causal(-1e9)))
		}, "causal=true, softcap=5"},
		"biased": {func(o *ops) *graph.Value {
			return f(o, graph.AddOp, o.s, o.Constant("", causal(-3)))
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := &maker{&graph.Graph{}, t}
			shape := []int64{1, 2, tokens, width}
			given := map[*graph.Value]*graph.Tensor{}
			rng := rand.New(rand.NewPCG(5, 6))
			var in []*graph.Value
			for _, name := range []string{"q", "k", "v"} {
				v := m.Input(name, graph.F32, shape)
				given[v] = graph.NewTensor(graph.F32, shape)
				for i := range given[v].Elems {
					given[v].Elems[i] = float64(float32(3 * rng.NormFloat64()))
				}
				in = append(in, v)
			}
			kt := m.add(graph.Transpose, graph.Attrs{Axes: []int64{0, 1, 3, 2}}, graph.F32, in[1])
			o := &ops{m, m.add(graph.MatMul, graph.Attrs{}, graph.F32, in[0], kt)}
			p := m.add(graph.Softmax, graph.Attrs{Axis: 3}, graph.F32, c.scores(o))
			m.Outputs = []*graph.Value{m.add(graph.MatMul, graph.Attrs{}, graph.F32, p, in[2])}
			want, err := graph.Eval(m.Graph, given)
			if err != nil {
				t.Fatal(err)
			}
			made, err := Make("test", m.Graph, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if found := strings.Contains(made.Text, " attention "); found != (c.want != "") ||
				!strings.Contains(made.Text, c.want) {
				t.Errorf("want %q in\n%s", c.want, made.Text)
			}
			for i, x := range m.ran(given)[0].Elems {
				if math.Abs(x-want[0].Elems[i]) > 2e-5 {
					t.Fatalf("element %d is %v, want %v", i, x, want[0].Elems[i])
				}
			}
		})
	}
}
