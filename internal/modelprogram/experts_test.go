package modelprogram

import (
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/graph"
)

// experts builds a graph like the exported mixtures of experts of transformers. There are 4 tokens with 2 features.
// Each token is sent to 2 of 3 experts. Experts whose number is at least the argument none are masked out.
func experts(t *testing.T, none float64) (m *maker, x, scores *graph.Value) {
	m = &maker{&graph.Graph{}, t}
	x, scores = m.Input("x", graph.F32, []int64{4, 2}), m.Input("scores", graph.F32, []int64{4, 3})
	two := func(op graph.Op, a graph.Attrs, dt graph.DType, in *graph.Value) (*graph.Value, *graph.Value) {
		n, err := m.Add(op, a, graph.Origin{Name: string(op)}, []graph.DType{dt, graph.I64}, in)
		if err != nil {
			t.Fatal(err)
		}
		return n.Out[0], n.Out[1]
	}
	shape := func(v *graph.Value, s ...int64) *graph.Value {
		return m.add(graph.Reshape, graph.Attrs{Shape: s}, v.DType, v)
	}
	none1 := graph.Attrs{}
	best, which := two(graph.TopK, graph.Attrs{K: 2}, graph.F32, scores)
	sorted, perm := two(graph.SortOp, graph.Attrs{}, graph.I64, shape(which, 8))
	token := m.add(graph.FloorDiv, none1, graph.I64, perm, m.Scalar(graph.I64, 2))
	rows := m.add(graph.Take, none1, graph.F32, x, token)
	weight := m.add(graph.Take, none1, graph.F32, shape(best, 8), perm)
	counts := m.add(graph.BinCount, graph.Attrs{K: 3}, graph.F32, m.add(graph.Cast, none1, graph.F32, sorted))
	ends := m.add(graph.Cumsum, none1, graph.I32, m.add(graph.Cast, none1, graph.I32, counts))
	masked := shape(m.add(graph.Ge, none1, graph.Bool, sorted, m.Scalar(graph.I64, none)), 8, 1)
	// Expert e multiplies by [[e+1, 0], [0, 10(e+1)]].
	w := m.constant(graph.F32, []int64{3, 2, 2}, 1, 0, 0, 10, 2, 0, 0, 20, 3, 0, 0, 30)
	y := m.add(graph.GroupedMatMul, none1, graph.F32, rows, w, ends)
	y = m.add(graph.Where, none1, graph.F32, masked, m.Scalar(graph.F32, 0), y)
	y = m.add(graph.Mul, none1, graph.F32, y, shape(weight, 8, 1))
	zeros := m.add(graph.Broadcast, graph.Attrs{Shape: []int64{8}}, graph.I64, m.Scalar(graph.I64, 0))
	back := m.add(graph.PutAt, none1, graph.I64, zeros, m.constant(graph.I64, []int64{8}, 0, 1, 2, 3, 4, 5, 6, 7), perm)
	y = shape(m.add(graph.Take, none1, graph.F32, y, back), 4, 2, 2)
	m.Outputs = []*graph.Value{m.add(graph.SumOp, graph.Attrs{Axes: []int64{1}}, graph.F32, y)}
	return m, x, scores
}

// TestDispatch checks that the result of each token is the sum of the results of its two best experts, weighted by
// their scores. A mask must be omitted if the bounds of indices decide it, and must not be omitted otherwise.
func TestDispatch(t *testing.T) {
	features := []float64{1, 2, 3, 4, 5, 6, 7, 8}
	scores := []float64{.5, .25, .125, .125, .25, .5, .5, .125, .25, .25, .5, .125}
	for _, none := range []float64{3, 2} {
		m, x, s := experts(t, none)
		got := m.ran(map[*graph.Value]*graph.Tensor{x: {DType: graph.F32, Shape: x.Shape, Elems: features},
			s: {DType: graph.F32, Shape: s.Shape, Elems: scores}})[0]
		for token := range 4 {
			mine := scores[3*token:][:3]
			worst := slices.Min(mine)
			sum := 0.0
			for e, score := range mine {
				if score != worst && float64(e) < none {
					sum += score * float64(e+1)
				}
			}
			for d, scale := range []float64{1, 10} {
				want := features[2*token+d] * scale * sum
				if g := got.Elems[2*token+d]; math.Abs(g-want) > 1e-5*want {
					t.Errorf("without experts from %v on, token %d has %v, want %v", none, token, g, want)
				}
			}
		}
		p, err := Make("test", m.Graph, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if masks := strings.Contains(p.Text, " where "); masks != (none == 2) {
			t.Errorf("experts from %v on are masked: %v\n%s", none, masks, p.Text)
		}
		for _, want := range []string{"argtopk", "argsort", "bincount", "grouped_linear"} {
			if !strings.Contains(p.Text, want) {
				t.Errorf("it lacks %s:\n%s", want, p.Text)
			}
		}
	}
}

// TestBounds checks the bounds that are derived for indices.
func TestBounds(t *testing.T) {
	m := &maker{&graph.Graph{}, t}
	x := m.Input("x", graph.F32, []int64{4, 3})
	n, err := m.Add(graph.TopK, graph.Attrs{K: 2}, graph.Origin{}, []graph.DType{graph.F32, graph.I64}, x)
	if err != nil {
		t.Fatal(err)
	}
	ids, free := n.Out[1], m.Input("ids", graph.I64, []int64{4, 2})
	l := &lowerer{}
	l.g, l.folder, l.uniforms = m.Graph, &graph.Folder{Elems: 1000}, map[*graph.Value]uniform{}
	number := func(x float64) *graph.Value { return m.Scalar(graph.I64, x) }
	for _, c := range []struct {
		v      *graph.Value
		lo, hi float64
		ok     bool
	}{
		{ids, 0, 2, true}, {free, 0, 0, false}, {x, 0, 0, false},
		{m.add(graph.Min, graph.Attrs{}, graph.I64, ids, number(1)), 0, 1, true},
		{m.add(graph.Max, graph.Attrs{}, graph.I64, ids, number(1)), 1, 2, true},
		{m.add(graph.FloorDiv, graph.Attrs{}, graph.I64, ids, number(2)), 0, 1, true},
		{m.add(graph.Min, graph.Attrs{}, graph.I64, free, number(1)), 0, 0, false},
	} {
		if lo, hi, ok := l.bounds(c.v); ok != c.ok || ok && (lo != c.lo || hi != c.hi) {
			t.Errorf("%v: from %v to %v, %v; want %v to %v, %v", c.v.Node, lo, hi, ok, c.lo, c.hi, c.ok)
		}
	}
	for _, c := range []struct {
		op      graph.Op
		v       *graph.Value
		with    float64
		yes, ok bool
	}{
		{graph.Ge, ids, 3, false, true}, {graph.Ge, ids, 2, false, false}, {graph.Ge, ids, 0, true, true},
		{graph.Lt, ids, 3, true, true}, {graph.Lt, ids, 2, false, false}, {graph.Le, ids, 2, true, true},
		{graph.Gt, ids, 2, false, true}, {graph.Gt, ids, -1, true, true}, {graph.Ge, free, 3, false, false},
	} {
		v := m.add(c.op, graph.Attrs{}, graph.Bool, c.v, number(c.with))
		if yes, ok := l.decided(v); ok != c.ok || ok && yes != c.yes {
			t.Errorf("%s %v: %v, %v; want %v, %v", c.op, c.with, yes, ok, c.yes, c.ok)
		}
	}
}

// TestOddNames checks that parameters get valid names for any names of modules.
func TestOddNames(t *testing.T) {
	m := &maker{&graph.Graph{}, t}
	y := m.Input("x", graph.F32, []int64{2, 2})
	for _, path := range []string{"0", "1", "", "a..b", "é", "weight", "x"} {
		y = m.add(graph.Linear, graph.Attrs{}, graph.F32, y, m.Weight("w", path, graph.F32, []int64{2, 2}))
	}
	m.Outputs = []*graph.Value{y}
	p, err := Make("test", m.Graph, Options{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, q := range p.Params {
		if q.Name == "" || names[q.Name] {
			t.Errorf("a parameter has the name %q:\n%s", q.Name, p.Text)
		}
		names[q.Name] = true
	}
}

// TestDeep checks that a graph with too long a chain of operations is refused and does not exhaust the stack.
func TestDeep(t *testing.T) {
	m := &maker{&graph.Graph{}, t}
	y := m.Input("x", graph.F32, []int64{1})
	for range maxDepth + 1 {
		y = m.add(graph.Neg, graph.Attrs{}, graph.F32, y)
	}
	m.Outputs = []*graph.Value{y}
	if _, err := Make("test", m.Graph, Options{}); err == nil || !strings.Contains(err.Error(), "a chain of") {
		t.Errorf("%v", err)
	}
}

// TestQuantizeExperts checks that the weights of experts, which have no 8-bit form, are named in a message that gives
// the reason.
func TestQuantizeExperts(t *testing.T) {
	m, _, _ := experts(t, 3)
	for _, n := range m.Nodes {
		for i, v := range n.In {
			if n.Op == graph.GroupedMatMul && i == 1 {
				n.In[i] = m.Weight("experts", "mlp.experts.up", v.DType, v.Shape)
			}
		}
	}
	up := m.Weight("up", "mlp.up.weight", graph.F32, []int64{2, 2})
	m.Outputs = []*graph.Value{m.add(graph.MatMul, graph.Attrs{}, graph.F32, m.Outputs[0],
		m.add(graph.Transpose, graph.Attrs{Axes: []int64{1, 0}}, graph.F32, up))}
	p, err := Make("test", m.Graph, Options{Quantize: "fp8-row"})
	if err != nil {
		t.Fatal(err)
	}
	if text := UnfitText(p.Unfit); !strings.Contains(text, "matmul and grouped_linear take no 8-bit operands: mlp.experts.up") {
		t.Errorf("%q; the program is\n%s", text, p.Text)
	}
}
