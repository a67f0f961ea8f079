package compile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
)

// TestExplainedBytes checks that the bytes that an explanation gives for reshards are those that a rank receives in the
// collectives of the sequential plan.
func TestExplainedBytes(t *testing.T) {
	for _, g := range [][2]int64{{1, 1}, {2, 2}, {1, 4}, {4, 2}} {
		for name, body := range layers {
			u, err := Build(check(t, fmt.Sprintf("mesh dp[%d] tp[%d]\nfunc f%s\n", g[0], g[1], body)), Options{})
			if err != nil {
				t.Fatal(err)
			}
			b := ir.Binding{Dims: map[string]int64{"T": 24, "K": 16, "N": 32}}
			e, err := u.Explain(b)
			if err != nil {
				t.Fatal(err)
			}
			got := int64(0)
			for _, r := range e.Reshards {
				if got += r.Bytes; r.Why == "" || r.How == "" || r.Line == 0 {
					t.Errorf("%s: a reshard without a reason: %+v", name, r)
				}
			}
			p, err := u.Plan(b)
			if err != nil {
				t.Fatal(err)
			}
			if want := movedTo(p, 0); got != want {
				t.Errorf("%s on %v: %d bytes are explained, %d are moved", name, g, got, want)
			}
		}
	}
}

func movedTo(p *plan.Plan, rank int32) int64 {
	n := int64(0)
	for i := range p.Cmds {
		if c := &p.Cmds[i]; c.Kind == plan.Collective && c.Rank == rank {
			n += p.Colls[c.Coll].Moved(int(c.Part))
		}
	}
	return n
}

// TestExplainedFLOPs checks that FLOPs counts a rank's part of both products of the layer, for every strategy.
func TestExplainedFLOPs(t *testing.T) {
	b := ir.Binding{Func: "mlp", Dims: map[string]int64{"T": 4096, "H": 4096, "F": 16384}}
	for _, st := range []string{"sequential", "exchange"} {
		u, err := Build(check(t, tensorParallel), Options{Strategy: st, Machine: "h200x4"})
		if err != nil {
			t.Fatal(err)
		}
		e, err := u.Explain(b)
		if err != nil {
			t.Fatal(err)
		}
		if want := float64(2 * 2 * 4096 * 4096 * 16384 / int64(e.Ranks)); e.FLOPs != want {
			t.Errorf("%s: %g, want %g of each of %d ranks", st, e.FLOPs, want, e.Ranks)
		}
	}
}

// TestExplainedTimes checks for every strategy that an explanation's time is that of the simulated plan, and that its
// timeline ends at that time.
func TestExplainedTimes(t *testing.T) {
	b := ir.Binding{Func: "mlp", Dims: map[string]int64{"T": 4096, "H": 4096, "F": 16384}}
	for _, st := range []string{"sequential", "chunked(3)", "exchange", Auto} {
		u, err := Build(check(t, tensorParallel), Options{Strategy: st, Machine: "h200x4"})
		if err != nil {
			t.Fatal(err)
		}
		e, err := u.Explain(b)
		if err != nil {
			t.Fatal(err)
		}
		if took := simulated(t, u, b); math.Abs(took-e.Time) > 0.05*e.Time {
			t.Errorf("%s: explained %.0f µs, the plan takes %.0f", st, e.Time, took)
		}
		if last := e.Timeline[len(e.Timeline)-1]; math.Abs(last.End-e.Time) > 0.02*e.Time {
			t.Errorf("%s: the timeline ends at %.0f of %.0f µs", st, last.End, e.Time)
		}
		if st == "sequential" != (e.Time == e.Sequential) {
			t.Errorf("%s: %.0f µs, sequential %.0f", st, e.Time, e.Sequential)
		}
		var text bytes.Buffer
		if err := e.WriteTimeline(&text, 80); err != nil || !strings.Contains(text.String(), "L linear") {
			t.Errorf("%v: %s", err, &text)
		}
		if _, err := json.Marshal(e); err != nil {
			t.Error(err)
		}
	}
}

// TestExplainManyRanks checks that the size of an explanation does not grow with the number of ranks.
func TestExplainManyRanks(t *testing.T) {
	u, err := Build(check(t, tensorParallel), Options{Strategy: Auto, Machine: "h200x4"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := u.Explain(ir.Binding{Func: "mlp", Ranks: 1024, Dims: map[string]int64{"T": 65536, "H": 8192, "F": 28672}})
	if err != nil {
		t.Fatal(err)
	}
	if e.Ranks != 1024 || e.Time <= 0 || e.Time > e.Sequential || len(e.Pairs) != 2 ||
		len(e.Pairs[0].Strategies) != len(candidates)-3 { // ahead and parts of the own block do not apply
		t.Errorf("%d ranks, %v of %v µs, %d pairs", e.Ranks, e.Time, e.Sequential, len(e.Pairs))
	}
}

// TestExplainLong checks that a run whose nanoseconds would overflow 64 bits has a predicted time but no timeline.
func TestExplainLong(t *testing.T) {
	u, err := Build(check(t, tensorParallel), Options{Strategy: Auto, Machine: "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	for rows, want := range map[int64]bool{256: true, 4e9: false} {
		e, err := u.Explain(ir.Binding{Func: "mlp", Ranks: 4,
			Dims: map[string]int64{"T": rows, "H": rows / 64, "F": rows / 16}})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := e.WriteTimeline(&text, 100); err != nil || e.Time <= 0 || (len(e.Timeline) > 0) != want ||
			strings.Contains(text.String(), "No timeline") == want {
			t.Errorf("%d rows: %v µs, %d spans, %v\n%s", rows, e.Time, len(e.Timeline), err, text.String())
		}
	}
}

// TestExplainCalls checks that a function that is called several times is counted once for each call.
func TestExplainCalls(t *testing.T) {
	source := tensorParallel + `func two(%x: bf16[T/tp, H], %w1: bf16[F/tp, H], %w2: bf16[H, F/tp]) -> bf16[T/tp, H] {
  %y = call mlp %x, %w1, %w2
  %z = call mlp %y, %w1, %w2
  return %z
}
`
	u, err := Build(check(t, source), Options{Strategy: "exchange", Machine: "h200x4"})
	if err != nil {
		t.Fatal(err)
	}
	dims := map[string]int64{"T": 4096, "H": 4096, "F": 16384}
	one, err := u.Explain(ir.Binding{Func: "mlp", Dims: dims})
	if err != nil {
		t.Fatal(err)
	}
	two, err := u.Explain(ir.Binding{Func: "two", Dims: dims})
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(two.Time-2*one.Time) > 1 || math.Abs(two.Sequential-2*one.Sequential) > 1 ||
		len(two.Pairs) != len(one.Pairs) {
		t.Errorf("one layer %.0f of %.0f µs, two %.0f of %.0f", one.Time, one.Sequential, two.Time, two.Sequential)
	}
}

// TestExplainExplicit checks that programs that order streams themselves are predicted by simulating their plans.
func TestExplainExplicit(t *testing.T) {
	const source = `mesh tp[2]
func f(%x: f32[1024, 1024], %w: f32[1024, 1024]) -> f32[1024, 1024] {
  %y = linear %x, %w
  return %y
}
func g(%x: f32[1024, 1024], %w: f32[1024, 1024]) -> f32[1024, 1024] refines f {
  %y = alloc f32[1024, 1024]
  for %i in 0..2 stream(2) {
    %xi = chunk %x, axis=0, %i of 2
    %yi = chunk %y, axis=0, %i of 2
    linear %xi, %w into %yi
  }
  return %y
}
`
	u, err := Build(check(t, source), Options{Machine: "h200x4"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := u.Explain(ir.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	if e.Time <= 0 || e.Sequential <= 0 || e.Time == e.Sequential || len(e.Timeline) != 2 {
		t.Errorf("%+v", e)
	}
}

// simulated returns the predicted time of the unit's whole plan in microseconds.
func simulated(t *testing.T, u *Unit, b ir.Binding) float64 {
	t.Helper()
	p, err := u.Plan(b)
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := u.machine(b.Ranks)
	if err != nil {
		t.Fatal(err)
	}
	tl, err := sim.Plan(p, m)
	if err != nil {
		t.Fatal(err)
	}
	return tl.Time
}

// TestPublishedRates compares predictions for a program on eight H100 with published rates (docs/sources.md): 560
// TFLOP/s sequentially and 678 with a ring. Predictions must be within a quarter of the published rates, and the
// overlapped program must be predicted to be faster.
func TestPublishedRates(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "sources.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```\ndim M")
	text, _, found := strings.Cut("dim M"+text, "```")
	if !found {
		t.Fatal("the page has no program")
	}
	u, err := Build(check(t, text), Options{Strategy: Auto, Machine: "h100x8"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := u.Explain(ir.Binding{Func: "columnwise"})
	if err != nil {
		t.Fatal(err)
	}
	if want := 2.0 * 32768 * 16384 * 8192; e.FLOPs != want {
		t.Errorf("%g operations, want %g", e.FLOPs, want)
	}
	for name, c := range map[string]struct{ us, published float64 }{"sequential": {e.Sequential, 560},
		"auto": {e.Time, 678}} {
		if rate := e.FLOPs / c.us / 1e6; math.Abs(rate/c.published-1) > 0.25 {
			t.Errorf("%s: %.0f TFLOP/s, published %.0f", name, rate, c.published)
		}
	}
	if e.Time >= e.Sequential {
		t.Errorf("overlapped %.0f µs, %.0f one after the other", e.Time, e.Sequential)
	}
}
