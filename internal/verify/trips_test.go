package verify_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/internal/verify/trips"
	"hocket.example/hocket/ir"
)

var symbolic = flag.Int("symbolic", 60, "how many random loops are proved for all lengths and unrolled")

func planning(prog *ir.Program, b ir.Binding) (*ir.Program, *plan.Plan, error) { return build(prog, b) }

// direct checks a program with one number of iterations, without package trips.
func direct(t testing.TB, prog *ir.Program, b ir.Binding) verify.Verdict {
	_, p, err := build(prog, b)
	if err != nil {
		ds, ok := err.(ir.Diagnostics)
		if !ok || ds[0].Kind == "limit" || ds[0].Kind == "internal" || ds[0].Kind == "bind" {
			t.Fatalf("%v\n%s", err, prog)
		}
		return verify.Refuted
	}
	return verify.Plan(p, verify.Options{FaultsOnly: true}).Verdict
}

// randomLoop returns a program that has a loop of C iterations over streams. The body of the loop computes, waits and
// records events at random distances.
func randomLoop(r *rand.Rand) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	S, K, E := 1+r.IntN(3), 1+r.IntN(4), 1+r.IntN(3)
	line("dim C = 4\ndim R = 2\nmesh tp[2]\nfunc f(%%x: f32[R]) -> f32[R] {")
	line("  %%s = stream[%d]\n  %%e = event[%d]\n  %%c = counter", S, E)
	line("  %%b = alloc[%d] f32[4]\n  %%y = alloc f32[R]\n  %%all = alloc f32[4] symmetric", K)
	line("  %%z = alloc f32[C + 2, 4]\n  %%own = alloc[C + 2] f32[4]\n  %%done = event[C + 2]\n  fill into %%z, value=0")
	line("  for %%k in 0..C + 2 { fill into %%own[%%k], value=0 }\n  for %%k in 0..C + 2 { record %%done[%%k] }")
	line("  for %%k in 0..%d { fill into %%b[%%k], value=0 }\n  fill into %%y, value=0\n  fill into %%all, value=0", K)
	line("  for %%k in 0..%d { record %%e[%%k] }", E)
	if r.IntN(3) == 0 {
		line("  barrier over=tp")
	}
	if r.IntN(8) > 0 {
		line("  for %%k in 0..%d { on %%s[%%k] { wait main } }", S)
	}
	line("  for %%i in 0..C {")
	for n := range 1 + r.IntN(3) {
		line("    on %%s[(%%i + %d) mod %d] {", r.IntN(S), S)
		if r.IntN(3) == 0 {
			line("      wait %%e[(%%i + %d) mod %d]", r.IntN(E), E)
		}
		for range 1 + r.IntN(2) {
			switch r.IntN(12) {
			case 8:
				line("      %%z%d%d = select %%z, axis=0, index=%%i + %d\n      relu %%z%[1]d%[2]d into %%z%[1]d%[2]d",
					n, b.Len(), r.IntN(3))
			case 9:
				line("      relu %%own[%%i + %d] into %%own[%%i + %d]", r.IntN(3), r.IntN(3))
			case 10:
				line("      wait %%done[%%i + %d]", r.IntN(3))
			case 11:
				line("      record %%done[%%i + %d]", r.IntN(3))
			case 0, 1:
				line("      fill into %%b[(%%i + %d) mod %d], value=%%i", r.IntN(K), K)
			case 2:
				line("      relu %%b[(%%i + %d) mod %d] into %%b[(%%i + %d) mod %d]", 0, K, 0, K)
			case 3, 4:
				line("      %%y%d%d = chunk %%y, axis=0, %%i of C\n      relu %%y%[1]d%[2]d into %%y%[1]d%[2]d", n,
					b.Len())
			case 5:
				line("      all_reduce %%b[%%i mod %d] into %%b[%%i mod %d], over=tp, op=sum", K, K)
			case 6:
				line("      if %%i >= %d {\n        signal %%c at tp[(rank(tp) + 1) mod 2]\n      }", r.IntN(2))
				if r.IntN(2) == 0 {
					line("      if %%i >= %d {\n        wait %%c >= %%i - %d\n      }", 2, r.IntN(3))
				}
			case 7:
				line("      if %%i > 0 {\n        put %%b[%%i mod %d] into %%all at tp[(rank(tp) + 1) mod 2]\n      }",
					K)
			}
		}
		if r.IntN(3) == 0 {
			line("      record %%e[(%%i + %d) mod %d]", r.IntN(E), E)
		}
		if r.IntN(3) == 0 {
			line("      wait %%s[(%%i + %d) mod %d]", r.IntN(S), S)
		}
		line("    }")
	}
	if r.IntN(6) == 0 {
		line("    wait %%s[%%i mod %d]", S)
	}
	line("  }")
	if r.IntN(8) > 0 {
		line("  for %%k in 0..%d { wait %%s[%%k] }", S)
	}
	if r.IntN(4) == 0 {
		line("  for %%i in 0..C {\n    on %%s[%%i mod %d] {\n      wait %%done[%%i + %d]\n      relu %%own[%%i + 1] into %%own[%%i + 1]\n    }\n  }", S, r.IntN(3))
		line("  for %%k in 0..%d { wait %%s[%%k] }", S)
	}
	line("  return %%y\n}")
	return b.String()
}

// TestAllTripsAgreesWithUnrolling proves random loops for all numbers of iterations. The verdict is compared with those
// for many unrolled lengths, including lengths that are much larger than the ones that the proof checked.
func TestAllTripsAgreesWithUnrolling(t *testing.T) {
	counts := map[verify.Verdict]int{}
	reasons := map[string]int{}
	loops := *symbolic
	if testing.Short() {
		loops = min(loops, 20)
	}
	for seed := range uint64(loops) {
		src := randomLoop(rand.New(rand.NewPCG(seed, 3)))
		prog := parse(t, "loop.hkt", src)
		got := trips.All(prog, ir.Binding{}, []string{"C"}, 0, planning)
		counts[got.Verdict]++
		if got.Verdict == verify.Unknown {
			reasons[got.Reason]++
			continue
		}
		refuted := ""
		for n := int64(0); n < 3*got.Period+30; n++ {
			if v := direct(t, prog, ir.Binding{Dims: map[string]int64{"C": n,
				"R": 2 * max(n, 1)}}); v != verify.Proved {
				refuted = fmt.Sprintf("C=%d", n)
				break
			}
		}
		if (refuted != "") != (got.Verdict == verify.Refuted) || got.Verdict == verify.Refuted && got.At != refuted {
			t.Fatalf("loop %d: %v at %q, unrolling says %q (period %d)\n%s", seed, got.Verdict, got.At, refuted,
				got.Period, src)
		}
	}
	t.Logf("%v; undecided: %v", counts, reasons)
	if counts[verify.Proved] < loops/10 || counts[verify.Refuted] < loops/10 || counts[verify.Unknown] > loops/4 {
		t.Errorf("the random loops are too much alike: %v", counts)
	}
}

func TestEndlessLoopsAreNotUnrolled(t *testing.T) {
	for _, c := range []struct {
		name, src string
		dims      map[string]int64
		want      verify.Verdict
	}{
		{"two streams", chunked, map[string]int64{"C": 1 << 62, "R": 24}, verify.Proved},
		{"nothing to do", chunked, map[string]int64{"C": 4, "R": 24}, verify.Unknown},
		{"no join", strings.Replace(chunked, "wait %s[%j] }\n  return", "}\n  return", 1),
			map[string]int64{"C": 1 << 62, "R": 24}, verify.Refuted},
		{"no fork", strings.Replace(chunked, "wait main", "", 1), map[string]int64{"C": 1 << 61, "R": 24},
			verify.Refuted},
		{"literal", strings.Replace(nested, "in 0..A", "in 0..4611686018427387904", 1), map[string]int64{"B": 3},
			verify.Proved},
		{"literal, one buffer for two streams",
			strings.NewReplacer("in 0..A", "in 0..4611686018427387904", "%b[(%i + %j) mod 2]", "%b[0]").Replace(nested),
			map[string]int64{"B": 3}, verify.Refuted},
		{"more blocks than indices", strings.Replace(chunked, "in 0..C", "in 0..4611686018427387904", 1),
			map[string]int64{"C": 3, "R": 3}, verify.Unknown},
		{"a stream for each iteration", strings.NewReplacer("%s[%i mod 2]", "%s[%i]", "stream[2]",
			"stream[C]").Replace(chunked), map[string]int64{"C": 1 << 62, "R": 24}, verify.Unknown},
		{"nested", nested, map[string]int64{"A": 1 << 62, "B": 1 << 40}, verify.Proved},
		{"nested, one buffer for two streams", strings.Replace(nested, "%b[(%i + %j) mod 2]", "%b[0]", 1),
			map[string]int64{"A": 1 << 62, "B": 1 << 40}, verify.Refuted},
		{"triangular", strings.Replace(nested, "in 0..B", "in 0..%i", 1), map[string]int64{"A": 1 << 62, "B": 1},
			verify.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			got := trips.LongLoops(parse(t, "endless.hkt", c.src), ir.Binding{Dims: c.dims}, planning)
			if got.Verdict != c.want {
				t.Errorf("%v at %q (%s), want %v\n%s", got.Verdict, got.At, got.Reason, c.want, got.Diagnostics)
			}
			if got.Verdict == verify.Unknown && got.Reason == "" {
				t.Error("no reason is given")
			}
			t.Logf("%v %s %s: %d plans, period %d", got.Verdict, got.At, got.Reason, got.Checked, got.Period)
			if d := time.Since(start); d > 50*time.Second { // tenfold, for a busy machine
				t.Errorf("took %v", d)
			}
		})
	}
}

// nested is a program with a loop inside a loop, whose iterations alternate between two streams in a chessboard
// pattern.
const nested = `
dim A = 2
dim B = 2
mesh tp[2]
func f(%x: f32[4]) -> f32[4] {
  %s = stream[2]
  %b = alloc[2] f32[4]
  for %k in 0..2 { on %s[%k] { wait main } }
  for %i in 0..A {
    for %j in 0..B {
      on %s[(%i + %j) mod 2] {
        relu %x into %b[(%i + %j) mod 2]
      }
    }
  }
  for %k in 0..2 { wait %s[%k] }
  return %x
}
`

// TestExamplesForAllTrips checks that the examples with a loop whose length is a dim are proved for every value of that
// dim.
func TestExamplesForAllTrips(t *testing.T) {
	for _, c := range []struct {
		file, fn, dim string
	}{
		{"row_parallel_chunked.hkt", "row_parallel_chunked", "C"},
		{"row_parallel.hkt", "row_parallel_overlapped", "C"},
	} {
		got := trips.All(examples(t)[c.file], ir.Binding{Func: c.fn}, []string{c.dim}, 1, planning)
		if got.Verdict != verify.Proved {
			t.Errorf("%s: %v at %q: %s", c.file, got.Verdict, got.At, got.Reason)
		}
		t.Logf("%s: every %s: %d plans, period %d", c.file, c.dim, got.Checked, got.Period)
	}
}

// TestLongLoopsAgreeWithUnrolling compares the verdict on a loop that was derived from shorter loops with the verdict
// on the unrolled loop.
func TestLongLoopsAgreeWithUnrolling(t *testing.T) {
	loops, seed := longtest.Of(60, 2000), longtest.Seed(t)
	if testing.Short() {
		loops = 15
	}
	counts := map[verify.Verdict]int{}
	for i := range loops {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		src := randomLoop(r)
		if r.IntN(4) == 0 { // a mistake on one rank only
			src = strings.Replace(src, "      record", "      if rank(tp) == 1 {\n        fill into %y, value=3\n      }\n      record", 1)
		}
		n := int64(1000 + r.IntN(50))
		b := ir.Binding{Dims: map[string]int64{"C": n, "R": 2 * n}}
		prog := parse(t, "loop.hkt", src)
		got := trips.LongLoops(prog, b, planning)
		counts[got.Verdict]++
		if want := direct(t, prog, b); got.Verdict != verify.Unknown && got.Verdict != want {
			t.Fatalf("loop %d of seed %d: %v by shorter loops (%s), %v unrolled to %d\n%s", i, seed, got.Verdict, got.At, want, n, src)
		}
	}
	t.Log(counts)
	if counts[verify.Proved] == 0 || counts[verify.Refuted] == 0 {
		t.Errorf("the loops are too much alike: %v", counts)
	}
}
