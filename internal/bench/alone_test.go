package bench

import (
	"slices"
	"testing"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// TestAlone: the lines that are timed are GEMMs, or collectives, of each number of parts, as many as said.
func TestAlone(t *testing.T) {
	const ranks = 2
	for _, k := range []*layerKind{agGEMM, gemmRS, gemmAR} {
		a := k.aloneOf(Shape{24, 12, 36}, ranks)
		if len(a.parts) != 3 {
			t.Fatalf("%s: %d numbers of parts", k.name, len(a.parts))
		}
		p, err := build(a.text, "sequential", ranks)
		if err != nil {
			t.Fatalf("%s: %v\n%s", k.name, err, a.text)
		}
		for _, part := range a.parts {
			count := func(lines [2]int32, is func(*plan.Cmd) bool) (n int) {
				for i := range p.Cmds {
					c := &p.Cmds[i]
					if line := p.Sites[c.Site].Pos.Line; lines[0] <= line && line <= lines[1] {
						if !is(c) {
							t.Errorf("%s in %d parts: %s in lines %d", k.name, part.parts, c.Kind, lines)
						}
						n++
					}
				}
				return n
			}
			gemms := count(part.gemm, func(c *plan.Cmd) bool {
				return c.Op == ir.OpLinear && c.Outs[0].Shape[0] == 24/part.parts
			})
			wires := count(part.wire, func(c *plan.Cmd) bool { return c.Kind == plan.Collective })
			if gemms != ranks*layerRepeats || wires != ranks*layerRepeats {
				t.Errorf("%s in %d parts: %d GEMMs and %d collectives", k.name, part.parts, gemms, wires)
			}
		}
	}
	if a := agGEMM.aloneOf(Shape{20, 12, 36}, ranks); len(a.parts) != 2 {
		t.Errorf("20 rows on 2 ranks in %d numbers of parts", len(a.parts))
	}
}

// TestAloneTimed: layers say what their parts take alone, what auto takes, and what it expects.
func TestAloneTimed(t *testing.T) {
	j := &job{Options: Options{Ranks: 2, Rounds: 2, Strategies: []string{"exchange"}, Alone: true},
		machine: cpu.New(cpu.Options{}), report: &Report{}}
	l, err := j.layer(t.Context(), gemmRS, Shape{64, 64, 64}, 10, &turns{})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Alone) != 3 || !(l.Alone[0].GEMM.Median > 0 && l.Alone[2].Collective.Median > 0) {
		t.Errorf("alone: %+v", l.Alone)
	}
	auto := slices.IndexFunc(l.Strategies, func(s StrategyTimes) bool { return s.Strategy == l.Auto })
	if auto < 0 || !(l.Strategies[auto].Predicted > 0 && l.Strategies[auto].Time.Median > 0) {
		t.Errorf("auto takes %q: %+v", l.Auto, l.Strategies)
	}
}

// TestByGraphOnly: layers that are measured by graph only have a GEMM, times by graph, and none call by call. Here
// what is replayed on GPUs runs as it would the first time.
func TestByGraphOnly(t *testing.T) {
	s, k, m := Shape{64, 64, 64}, gemmAR, cpu.New(cpu.Options{})
	load := func(c *candidate) {
		t.Helper()
		var err error
		if c.plan, err = build(c.text, c.strategy, 2); err == nil {
			c.graph = true
			c.replayed, err = exec.Load(t.Context(), m, c.plan, exec.Options{Trace: true, Ends: c.part})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var cands []*candidate
	for _, strategy := range []string{"sequential", "exchange(2)"} {
		c := &candidate{strategy: strategy, layerText: k.textOf(s, 2, layerRepeats)}
		load(c)
		defer c.close()
		cands = append(cands, c)
	}
	a := k.aloneOf(s, 2)
	load(&a.candidate)
	defer a.close()
	in, err := randomInputs(cands[0].plan)
	if err != nil {
		t.Fatal(err)
	}
	in["aw"] = in["a"]
	want := k.expected(s, in)
	for round := range 3 {
		for _, c := range cands {
			if err := c.round(t.Context(), 0, in, want, round > 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.round(t.Context(), round > 0); err != nil {
			t.Fatal(err)
		}
	}
	l := &Layer{Shape: s}
	l.summarize(cands)
	if !(l.GEMM.Median > 0) {
		t.Errorf("the GEMM alone takes %v", l.GEMM)
	}
	for _, st := range l.Strategies {
		if st.Time.Median != 0 || st.Graph == nil || !(st.Graph.Median > 0) || !(st.GraphOverBound.Median > 0) {
			t.Errorf("%+v", st)
		}
	}
	for _, f := range a.figures() {
		if f.GEMM.Median != 0 || f.GraphGEMM == nil || !(f.GraphGEMM.Median > 0 && f.GraphCollective.Median > 0) {
			t.Errorf("%+v", f)
		}
	}
}
