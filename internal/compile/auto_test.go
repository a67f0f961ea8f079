package compile

import (
	"math"
	"os"
	"strings"
	"testing"

	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
)

const tensorParallel = `dim P = 4
mesh tp[P]
func mlp(%x: bf16[T/tp, H], %w1: bf16[F/tp, H], %w2: bf16[H, F/tp]) -> bf16[T/tp, H] {
  %h = linear %x, %w1
  %g = gelu %h
  %y = linear %g, %w2
  return %y
}
func row(%x: bf16[T, F/tp], %w: bf16[H, F/tp]) -> bf16[T, H] {
  %y = linear %x, %w
  return %y
}
`

// TestMain makes the tests independent of tables that were tuned on the machine on which they run.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "compile")
	if err != nil {
		panic(err)
	}
	os.Setenv("HOCKET_CACHE", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// untabled returns the path of a description of four H200 for which there is no dispatch table.
func untabled(t *testing.T) string {
	t.Helper()
	return changed(t, "h200x4", "gpu", "")
}

// TestAutoChoosesByDims checks that auto chooses an exchange for large layers and sequential for small ones, and that
// no pair is predicted to be slower than sequential.
func TestAutoChoosesByDims(t *testing.T) {
	for _, c := range []struct {
		fn      string
		t, h, f int64
		want    string
	}{
		{"mlp", 8192, 8192, 28672, "exchange exchange"},
		{"mlp", 16, 64, 128, "sequential sequential"},
		{"row", 8192, 8192, 28672, "exchange(2)"},
		{"row", 8190, 8192, 28672, "exchange(2)"}, // the number of rows is not a multiple of 4
	} {
		u, err := Build(check(t, tensorParallel), Options{Strategy: Auto, Machine: untabled(t)})
		if err != nil {
			t.Fatal(err)
		}
		b := ir.Binding{Func: c.fn, Dims: map[string]int64{"T": c.t, "H": c.h, "F": c.f}}
		res, err := u.LoweredFor(b)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ch := range res.Choices {
			if ch.Pair.Func == c.fn {
				got = append(got, ch.Strategy.String())
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s %d %d %d: %s, want %s", c.fn, c.t, c.h, c.f, s, c.want)
		}
		if again, err := u.LoweredFor(b); err != nil || again != res {
			t.Errorf("lowered twice for one binding: %v", err)
		}
	}
}

// TestPlansTakeWhatPairsDo checks, for one layer, that the simulated plan under each strategy takes the time that was
// predicted for the pair of collective and GEMM.
func TestPlansTakeWhatPairsDo(t *testing.T) {
	info := check(t, tensorParallel)
	for _, fn := range []string{"mlp", "row"} {
		b := ir.Binding{Func: fn, Dims: map[string]int64{"T": 4096, "H": 4096, "F": 16384}}
		bound, ds := ir.Bind(info, b)
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		for _, st := range candidates {
			if st.Ahead || st.Own > 0 && fn == "mlp" {
				continue // ahead applies to none of these pairs, and parts of the own block not to all pairs of mlp
			}
			u, err := Build(info, Options{Strategy: st.String(), Machine: "h200x4"})
			if err != nil {
				t.Fatal(err)
			}
			m, _, err := u.machine(4)
			if err != nil {
				t.Fatal(err)
			}
			p := &predictor{bound: bound, machine: m}
			want := 0.0
			for _, ch := range u.Lowered.Choices {
				if ch.Pair.Func != fn {
					continue
				}
				es, err := p.estimates(&ch.Pair)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range es {
					if e.strategy == st {
						want += e.Time
					}
				}
			}
			pl, err := u.Plan(b)
			if err != nil {
				t.Fatal(err)
			}
			tl, err := sim.Plan(pl, m)
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(tl.Time-want) > 0.05*want {
				t.Errorf("%s, %s: the plan takes %.0f µs, its pairs %.0f", fn, st, tl.Time, want)
			}
		}
	}
}

// TestDescriptionFor checks the choice of a description. A machine with GPUs is described by the description of its GPU
// model or, if there is none, of the most similar model, and never by that of a CPU. If the description is for another
// model, or was selected by an option, the explanation mentions it.
func TestDescriptionFor(t *testing.T) {
	t.Setenv("HOCKET_CACHE", t.TempDir())
	const h100s, other = "NVIDIA H100 80GB HBM3 sm_90a", "NVIDIA A100-SXM4-80GB sm_80"
	for _, c := range []struct {
		name, identity, machine, want, extrapolated string
		fits                                        bool
	}{
		{"cpu", "", "", "cpu", "", true},
		{"cuda", h200s + ", 4 GPUs", "", "h200x4", "", true},
		{"cuda", h100s + ", 4 GPUs", "", "h100x2", "h100x2 was measured with 2 devices, not with 4", true},
		{"cuda", other + ", 4 GPUs", "", "h200x4", "h200x4 was measured on " + h200s + ", not on " + other, false},
		{"cuda", "", "", "h200x4", "", false},
		{"cuda", h100s + ", 4 GPUs", "h200x4", "h200x4", "h200x4 was measured on " + h200s + ", not on " + h100s, true},
	} {
		dev := sketcher{name: c.name, identity: c.identity}
		if d, fits, err := DescriptionFor(dev, 4); c.machine == "" && (err != nil || d.Name != c.want) || fits != c.fits {
			t.Errorf("%s, %s: %+v, fits %v, %v; want %s", c.name, c.identity, d, fits, err, c.want)
		}
		e, _ := chosen(t, Options{Machine: c.machine, Device: dev}, "bf16")
		if c.extrapolated != "" {
			c.extrapolated += "; the accuracy of predictions is unknown"
		}
		if e.Machine != c.want || e.Extrapolated != c.extrapolated {
			t.Errorf("%s, %s: by %s, %s; want %s, %s", c.name, c.identity, e.Machine, e.Extrapolated, c.want, c.extrapolated)
		}
	}
}

func TestAutoRunsRight(t *testing.T) {
	c := newCase(t, tensorParallel, ir.Binding{Func: "mlp", Dims: map[string]int64{"T": 12, "H": 4, "F": 8}})
	for _, m := range []string{"cpu", "h200x4"} {
		u, err := Build(c.info, Options{Strategy: Auto, Machine: m})
		if err != nil {
			t.Fatal(err)
		}
		res, err := u.LoweredFor(c.binding)
		if err != nil {
			t.Fatal(err)
		}
		c.run(t, res, 1)
	}
	if _, err := Build(c.info, Options{Strategy: Auto, Machine: "abacus"}); err == nil ||
		!strings.Contains(err.Error(), "the machines are cpu, h100x2") {
		t.Errorf("a machine that there is not: %v", err)
	}
}
