package modelprogram

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"hocket.example/hocket/internal/graph"
)

// TestRope checks that rotary embeddings are recognized, and compares their results with the formula. Variants rotate a
// part of each head, have frequencies that are not powers of a base, have a scale, or compute their tables.
func TestRope(t *testing.T) {
	const tokens, width = 40, 8
	for name, c := range map[string]struct {
		freqs []float64
		scale float64
		given bool // set if the tables of cosines and sines are constants
		want  string
	}{
		"powers":             {[]float64{1, 0.1, 0.01, 0.001}, 1, false, "theta=10000"},
		"powers, in tables":  {[]float64{1, 0.1, 0.01, 0.001}, 1, true, "theta=10000"},
		"others":             {[]float64{1, 0.3, 0.2, 0.0001}, 1, false, "%freqs"},
		"others, in tables":  {[]float64{0.7, 0.3, 0.2, 0.0001}, 1, true, "%freqs"},
		"a scale":            {[]float64{1, 0.3, 0.2, 0.0001}, 1.25, false, "%freqs, scale=1.25"},
		"a scale, in tables": {[]float64{1, 0.1, 0.01, 0.001}, 1.25, true, "theta=10000, scale=1.25"},
		"a part":             {[]float64{1, 0.01}, 1, false, "%freqs"},
		"a part, in tables":  {[]float64{1, 0.05}, 0.5, true, "%freqs, scale=0.5"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &maker{&graph.Graph{}, t}
			n := int64(len(c.freqs))
			given := m.Input("x", graph.F32, []int64{2 * tokens, width})
			x := m.add(graph.Reshape, graph.Attrs{Shape: []int64{1, 2, tokens, width}}, graph.F32, given)
			var cos, sin *graph.Value
			if c.given {
				tables := []*graph.Tensor{graph.NewTensor(graph.F32, []int64{1, 1, tokens, 2 * n}),
					graph.NewTensor(graph.F32, []int64{1, 1, tokens, 2 * n})}
				for p := range int64(tokens) {
					for i := range 2 * n {
						at := float64(p) * c.freqs[i%n]
						tables[0].Elems[p*2*n+i] = float64(float32(c.scale * math.Cos(at)))
						tables[1].Elems[p*2*n+i] = float64(float32(c.scale * math.Sin(at)))
					}
				}
				cos, sin = m.Constant("cos", tables[0]), m.Constant("sin", tables[1])
			} else {
				at := graph.NewTensor(graph.I64, []int64{1, 1, tokens, 1})
				for i := range at.Elems {
					at.Elems[i] = float64(i)
				}
				pos := m.add(graph.Cast, graph.Attrs{}, graph.F32, m.Constant("at", at))
				angle := m.add(graph.Mul, graph.Attrs{}, graph.F32, pos, m.constant(graph.F32, []int64{n}, c.freqs...))
				both := m.add(graph.Concat, graph.Attrs{Axis: 3}, graph.F32, angle, angle)
				by := m.Scalar(graph.F32, c.scale)
				cos = m.add(graph.Mul, graph.Attrs{}, graph.F32, m.add(graph.Cos, graph.Attrs{}, graph.F32, both), by)
				sin = m.add(graph.Mul, graph.Attrs{}, graph.F32, m.add(graph.Sin, graph.Attrs{}, graph.F32, both), by)
			}
			cut := func(v *graph.Value, lo, hi int64) *graph.Value {
				if lo == 0 && hi == graph.Last(v.Shape) {
					return v
				}
				return m.add(graph.SliceOp, graph.Attrs{Axis: 3, Lo: lo, Hi: hi, Step: 1}, graph.F32, v)
			}
			part := cut(x, 0, 2*n)
			turned := m.add(graph.Concat, graph.Attrs{Axis: 3}, graph.F32,
				m.add(graph.Neg, graph.Attrs{}, graph.F32, cut(part, n, 2*n)), cut(part, 0, n))
			y := m.add(graph.AddOp, graph.Attrs{}, graph.F32, m.add(graph.Mul, graph.Attrs{}, graph.F32, part, cos),
				m.add(graph.Mul, graph.Attrs{}, graph.F32, turned, sin))
			if 2*n < width {
				y = m.add(graph.Concat, graph.Attrs{Axis: 3}, graph.F32, y, cut(x, 2*n, width))
			}
			m.Outputs = []*graph.Value{y}
			p, err := Make("test", m.Graph, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(p.Text, " rope ") != 1 || !strings.Contains(p.Text, c.want) ||
				strings.Contains(p.Text, "concat") {
				t.Errorf("want %s in\n%s", c.want, p.Text)
			}
			in := graph.NewTensor(graph.F32, given.Shape)
			rng := rand.New(rand.NewPCG(3, 4))
			for i := range in.Elems {
				in.Elems[i] = float64(float32(rng.NormFloat64()))
			}
			got := m.ran(map[*graph.Value]*graph.Tensor{given: in})[0]
			for i, have := range got.Elems {
				d := int64(i) % width
				pos := int64(i) / width % tokens
				want := in.Elems[i]
				if d < 2*n {
					at := float64(pos) * c.freqs[d%n]
					pair, sign := int64(i)+n, -1.0
					if d >= n {
						pair, sign = int64(i)-n, 1
					}
					want = c.scale * (in.Elems[i]*math.Cos(at) + sign*in.Elems[pair]*math.Sin(at))
				}
				if math.Abs(have-want) > 3e-5 {
					t.Fatalf("element %d is %v, want %v", i, have, want)
				}
			}
		})
	}
}
