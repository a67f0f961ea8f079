package hocket_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
)

// onRanks returns an example program whose mesh has more ranks.
func onRanks(t *testing.T, file string, ranks int) string {
	t.Helper()
	src, err := os.ReadFile("examples/" + file)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(src), "mesh tp[4]", fmt.Sprintf("mesh tp[%d]", ranks), 1)
	for _, d := range []string{"T = 64", "K = 32", "K = 64", "N = 64", "N = 32"} {
		text = strings.Replace(text, "dim "+d+"\n", fmt.Sprintf("dim %s = %d\n", d[:1], 4*ranks), 1)
	}
	return text
}

func verdictOf(t *testing.T, text string, b hocket.Binding, opts ...hocket.CheckOptions) hocket.Verdict {
	t.Helper()
	p, err := hocket.Parse("scale.hkt", text)
	if err != nil {
		t.Fatal(err)
	}
	v, err := hocket.Check(p, b, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestCheckOfManyRanks checks that large programs are proved by symmetry, from one rank that represents all, and that a
// program is refuted if one of its ranks lacks a wait.
func TestCheckOfManyRanks(t *testing.T) {
	text := onRanks(t, "ag_linear_exchange.hkt", 192)
	v := verdictOf(t, text, hocket.Binding{})
	if v.Kind != hocket.Proved || v.Proof != "symmetry" || v.Commands != 192*(4*191+9) ||
		!strings.Contains(v.String(), "one rank that represents all") {
		t.Errorf("%v by %s: %v\n%s", v.Kind, v.Proof, v, v.Diagnostics)
	}
	const wait = "      wait %here[%j] >= 1\n"
	if !strings.Contains(text, wait) {
		t.Fatal(text)
	}
	v = verdictOf(t, strings.Replace(text, wait, "", 1), hocket.Binding{})
	if v.Kind != hocket.Refuted || v.Proof != "symmetry" || len(v.Diagnostics) == 0 || v.Diagnostics[0].Kind != "race" {
		t.Errorf("without a wait: %v by %s\n%s", v.Kind, v.Proof, v.Diagnostics)
	}
	v = verdictOf(t, strings.Replace(text, wait, "      if %r != 7 {\n  "+wait+"      }\n", 1), hocket.Binding{})
	if v.Kind != hocket.Refuted || !strings.Contains(v.Diagnostics.String(), "rank 7 main") {
		t.Errorf("without a wait on one rank: %v by %s\n%s", v.Kind, v.Proof, v.Diagnostics)
	}
}

// TestCheckOfLongLoops checks that Check first tries to prove a long loop from shorter loops, even if the loop could be
// unrolled.
func TestCheckOfLongLoops(t *testing.T) {
	src, err := os.ReadFile("examples/row_parallel_chunked.hkt")
	if err != nil {
		t.Fatal(err)
	}
	for _, trips := range []int64{100_000, 10_000_000} {
		b := hocket.Binding{Dims: map[string]int64{"C": trips, "T": trips}}
		if v := verdictOf(t, string(src), b); v.Kind != hocket.Proved || v.Proof != "loops" || v.Diagnostics != nil {
			t.Errorf("%d: %v by %s\n%s", trips, v.Kind, v.Proof, v.Diagnostics)
		}
		mutant := strings.Replace(string(src), "wait main", "", 1)
		if v := verdictOf(t, mutant, b); v.Kind != hocket.Refuted {
			t.Errorf("%d, without a fork: %v by %s\n%s", trips, v.Kind, v.Proof, v.Diagnostics)
		}
		merged := strings.Replace(string(src), "    }\n  }\n  for %j in 0..2 { wait %s[%j] }",
			"    }\n    wait %s[%i mod 2]\n    on %s[(%i + 1) mod 2] { wait main }\n  }", 1)
		if v := verdictOf(t, merged, b); v.Proof != "loops" || !strings.Contains(v.Diagnostics.String(), "lost overlap: ") {
			t.Errorf("%d, with its loops merged: %v by %s\n%s", trips, v.Kind, v.Proof, v.Diagnostics)
		}
	}
}

// TestCheckOfMergedLoops checks that a loop whose waits prevent its streams from overlapping is reported also in a
// proof by symmetry.
func TestCheckOfMergedLoops(t *testing.T) {
	src, err := os.ReadFile("examples/row_parallel_chunked.hkt")
	if err != nil {
		t.Fatal(err)
	}
	many := strings.Replace(string(src), "mesh tp[2]", "mesh tp[1000]", 1)
	merged := strings.Replace(many, "    }\n  }\n  for %j in 0..2 { wait %s[%j] }",
		"    }\n    wait %s[%i mod 2]\n    on %s[(%i + 1) mod 2] { wait main }\n  }", 1)
	b := hocket.Binding{Dims: map[string]int64{"K": 4000, "C": 24}}
	for text, want := range map[string]bool{many: false, merged: true} {
		v := verdictOf(t, text, b)
		if v.Kind != hocket.Proved || v.Proof != hocket.BySymmetry || want != strings.Contains(v.Diagnostics.String(),
			"lost overlap: the iterations of the loop at line 18 run on different streams") {
			t.Errorf("%v by %s, to be reported: %v\n%s", v.Kind, v.Proof, want, v.Diagnostics)
		}
	}
}

// TestCheckOfEarlyWaits checks that, if a machine is set, Check warns of a wait that precedes work which does not need
// it, with the predicted cost. Check does not warn without a machine, or if the wait follows that work.
func TestCheckOfEarlyWaits(t *testing.T) {
	const early = `
mesh tp[4]
func f(%x: bf16[8192, 8192], %w: bf16[8192, 8192], %g: bf16[8192, 8192]) -> (bf16[8192, 8192], bf16[8192, 8192]) {
  %s = stream
  %here = counter
  %y = alloc bf16[8192, 8192]
  %z = alloc bf16[8192, 8192] symmetric
  barrier over=tp
  on %s {
    wait main
    put %g into %z at tp[(rank(tp) + 1) mod 4]
    signal %here at tp[(rank(tp) + 1) mod 4]
  }
  wait %here >= 1
  linear %x, %w into %y
  wait %s
  return %y, %z
}
`
	late := strings.Replace(strings.Replace(early, "  wait %here >= 1\n", "", 1), "into %y\n",
		"into %y\n  wait %here >= 1\n", 1)
	h200 := hocket.CheckOptions{Machine: "h200x4"}
	lost := func(v hocket.Verdict) string {
		for _, d := range v.Diagnostics {
			if d.Kind == "overlap" {
				return d.Message
			}
		}
		return ""
	}
	if got := lost(verdictOf(t, early, hocket.Binding{}, h200)); !strings.Contains(got,
		"wait %here >= 1 delays linear") || !strings.Contains(got, "predicted for a run on h200x4") {
		t.Errorf("an early wait: %q", got)
	}
	if got := lost(verdictOf(t, early, hocket.Binding{})); got != "" {
		t.Errorf("without a machine: %q", got)
	}
	if got := lost(verdictOf(t, late, hocket.Binding{}, h200)); got != "" {
		t.Errorf("a late wait: %q", got)
	}
}

// TestForAllOfOneText checks that a proof for all trip counts is not claimed if other values of the dim lower to
// another program, as exchange does if the rows are not divisible by the ranks.
func TestForAllOfOneText(t *testing.T) {
	const text = `dim T = 4
dim R = 4
mesh tp[2]
func f(%x: f32[ROWS, 4/tp], %w: f32[4, 4/tp], %z: f32[4]) -> (f32[ROWS, 4], f32[4]) {
  %y: f32[ROWS, 4] = linear %x, %w
  %b = alloc f32[4]
  %l = local %z
  for %i in 0..T {
    add %l, %l into %b
  }
  %c: f32[4] = claim %b
  return %y, %c
}
`
	for rows, want := range map[string][]string{"R": {"T"}, "T": nil} {
		p, err := hocket.Parse("f.hkt", strings.ReplaceAll(text, "ROWS", rows))
		if err != nil {
			t.Fatal(err)
		}
		v, err := hocket.Check(p, hocket.Binding{}, hocket.CheckOptions{Strategy: "exchange"})
		if err != nil || v.Kind != hocket.Proved || !slices.Equal(v.ForAll, want) {
			t.Errorf("%s rows: %v for all of %v, want %v: %v", rows, v.Kind, v.ForAll, want, err)
		}
	}
}

// TestLongLoopOfRaggedRows checks that a long loop whose exchanges have blocks of different sizes is proved from a
// shorter loop.
func TestLongLoopOfRaggedRows(t *testing.T) {
	p, err := hocket.Parse("f.hkt", `dim T = 5
dim L = 20000
mesh tp[2]
func f(%x: f32[T, 8/tp], %w: f32[8, 8/tp], %u: f32[8/tp, 8]) -> f32[T, 8] {
  %z: f32[T, 8] = linear %x, %w
  %y = for %l in 0..L carry %h = %z {
    %a = linear %h, %u
    %b: f32[T, 8] = linear %a, %w
    yield %b
  }
  return %y
}
`)
	if err != nil {
		t.Fatal(err)
	}
	v, err := hocket.Check(p, hocket.Binding{}, hocket.CheckOptions{Strategy: "exchange"})
	if err != nil || v.Kind != hocket.Proved {
		t.Errorf("%v: %v, %v", v.Kind, v.Reason, err)
	}
}
