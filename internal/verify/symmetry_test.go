package verify_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/planner"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

var symmetrical = flag.Int("symmetrical", 500, "how many random programs are proved by one rank and as plans")

// symmetric checks a program by one rank. A rank that cannot be unrolled counts as a refutation.
func symmetric(prog *ir.Program, b ir.Binding, strategy string) (*verify.SymmetryProof, error) {
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		return nil, ds
	}
	unit, err := compile.Build(info, compile.Options{Strategy: strategy})
	if err != nil {
		return nil, err
	}
	grid, unroller, err := unit.Ranks(b)
	if err != nil {
		return nil, err
	}
	return verify.Symmetric(verify.Symmetry{Grid: grid, Unroller: unroller})
}

// compared returns a description of the difference between the verdicts of two proofs of a program, or "" if they
// agree. It also reports whether the proof by symmetry reached a decision.
func compared(prog *ir.Program, b ir.Binding, strategy string) (differ string, decided bool) {
	low, p, err := buildBy(prog, b, strategy)
	var ds ir.Diagnostics
	if err != nil && !errors.As(err, &ds) {
		return err.Error(), false
	}
	s, serr := symmetric(prog, b, strategy)
	if serr != nil {
		if err == nil {
			return "a rank is refused, and no plan: " + serr.Error(), true
		}
		return "", true
	}
	if s.Verdict == verify.Unknown {
		return "", false
	}
	if err != nil {
		if s.Verdict != verify.Refuted {
			return "proved by symmetry, and planning says " + err.Error(), true
		}
		return "", true
	}
	r := verify.Plan(p, verify.Options{})
	switch {
	case r.Verdict != s.Verdict:
		return fmt.Sprintf("%v by symmetry, %v as a plan\n%s%s", s.Verdict, r.Verdict, s.Diagnostics(prog),
			r.Diagnostics(prog)), true
	case r.Verdict == verify.Proved && r.SerialSafe != s.SerialSafe:
		return fmt.Sprintf("serial-safe: %v by symmetry, %v as a plan", s.SerialSafe, r.SerialSafe), true
	case r.Verdict == verify.Proved && s.Commands != len(p.Cmds) && s.Commands != len(p.Cmds)+removed(low, b):
		return fmt.Sprintf("%d commands by symmetry, %d in the plan", s.Commands, len(p.Cmds)), true
	}
	return "", true
}

// removed returns the number of commands that the planner removes from the plan of a lowered program. A proof by
// symmetry counts the removed commands, too.
func removed(low *ir.Program, b ir.Binding) int {
	info, _ := checker.Check(low)
	bound, ds := ir.Bind(info, b)
	if ds.HasErrors() {
		return 0
	}
	var stats planner.Stats
	planner.Plan(bound, planner.Options{Stats: &stats})
	return int(stats.Removed)
}

// TestSymmetryAgreesWithPlans checks that random programs on one axis receive the same verdict by symmetry as by their
// plans, if symmetry decides.
func TestSymmetryAgreesWithPlans(t *testing.T) {
	n, seed := longtest.Of(*symmetrical, 300_000), longtest.Seed(t)
	if testing.Short() {
		n = 200
	}
	counts := map[string]int{}
	for i := range n {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		p := newRandomProgram(r, 2+r.IntN(5), 1+r.IntN(4), r.IntN(4))
		text := p.text()
		prog := parse(t, "random.hkt", text)
		differ, decided := compared(prog, ir.Binding{}, "")
		if differ != "" {
			t.Fatalf("program %d of seed %d: %s\n%s", i, seed, differ, text)
		}
		counts[fmt.Sprint("decided ", decided)]++
		if s, err := symmetric(prog, ir.Binding{}, ""); err == nil {
			counts[s.Verdict.String()]++
		}
	}
	t.Log(counts)
	if counts["proved"] < n/5 || counts["refuted"] < n/20 || counts["decided true"] < n/3 {
		t.Errorf("too few programs are decided: %v", counts)
	}
}

// twoAxes holds programs on grids of two axes; the examples contain few such programs.
var twoAxes = map[string]string{
	"chunks of a grid": `
mesh a[2] b[3]
func f(%x: f32[12]) -> f32[12] {
  %s = stream
  %here = counter[6]
  %all = alloc f32[12] symmetric
  %y = alloc f32[12]
  let %r = rank(a) * 3 + rank(b)
  barrier over=(a, b)
  %mine = chunk %all, axis=0, %r of 6
  %xr = chunk %x, axis=0, %r of 6
  copy %xr into %mine
  barrier over=(a, b)
  on %s {
    wait main
    for %i in 1..3 {
      put %xr into %mine at b[(rank(b) + %i) mod 3]
      signal %here[%r] at b[(rank(b) + %i) mod 3]
    }
    put %xr into %mine at a[(rank(a) + 1) mod 2]
    signal %here[%r] at a[(rank(a) + 1) mod 2]
  }
  for %i in 1..3 {
    let %j = rank(a) * 3 + (rank(b) + %i) mod 3
    wait %here[%j] >= 1
    %aj = chunk %all, axis=0, %j of 6
    %yj = chunk %y, axis=0, %j of 6
    relu %aj into %yj
  }
  wait %here[((rank(a) + 1) mod 2) * 3 + rank(b)] >= 1
  wait %s
  return %x
}
`,
	"teams of a grid": `
mesh a[2] b[2]
func f(%x: f32[8]) -> f32[8] {
  %s = stream
  %y = alloc f32[8]
  %z = alloc f32[8]
  on %s {
    wait main
    all_reduce %x into %y, over=a, op=sum
  }
  all_reduce %x into %z, over=b, op=sum
  wait %s
  permute %y into %z, over=(a, b), to=(rank(a) * 2 + rank(b) + 2) mod 4, from=(rank(a) * 2 + rank(b) + 2) mod 4
  return %z
}
`,
	"columns": `
mesh a[2] b[2]
func f(%x: f32[4, 8]) -> f32[4, 8] {
  %y = alloc f32[4, 8] symmetric
  barrier over=(a, b)
  copy %x into %y
  barrier over=(a, b)
  %row = chunk %x, axis=0, rank(a) of 2
  %cell = chunk %row, axis=1, rank(b) of 2
  %c = copy %cell
  %to = chunk %y, axis=0, rank(a) of 2
  %column = chunk %to, axis=1, rank(b) of 2
  relu %c into %column
  return %y
}
`,
}

// TestSymmetryOfMutants compares the verdict by symmetry with the verdict on the plan. It uses the examples, the
// programs to which they are lowered, and small mistakes in them, on all ranks and on one rank.
func TestSymmetryOfMutants(t *testing.T) {
	type subject struct {
		name, fn string
		prog     *ir.Program
		b        ir.Binding
	}
	var all []subject
	for _, l := range lowerings(t, small) {
		all = append(all, subject{l.name, l.fn, l.prog, l.binding})
	}
	for name, src := range twoAxes {
		all = append(all, subject{name, "f", parse(t, "grid.hkt", src), ir.Binding{}})
	}
	if !longtest.On() { // half of them
		rand.New(rand.NewPCG(longtest.Drawn(t), 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:len(all)/2]
	}
	decided, proved, mutants, oneRank := 0, 0, 0, 0
	for _, s := range all {
		differ, ok := compared(s.prog, s.b, "")
		if differ != "" {
			t.Errorf("%s: %s", s.name, differ)
		}
		if !ok {
			sym, _ := symmetric(s.prog, s.b, "")
			t.Logf("%s: not decided: %s", s.name, sym.Reason)
			continue
		}
		proved++
		ms := textMutants(s.prog, s.fn)
		if !longtest.On() {
			ms = some(ms)
		}
		for _, m := range ms {
			mutants++
			differ, ok := compared(m.prog, s.b, "")
			if differ != "" {
				t.Errorf("%s: %s: %s", s.name, m.what, differ)
			}
			if ok {
				decided++
			}
		}
		for _, m := range some(oneRankMutants(s.prog, s.fn, 1)) {
			oneRank++
			if differ, _ := compared(m.prog, s.b, ""); differ != "" {
				t.Errorf("%s: %s: %s", s.name, m.what, differ)
			}
		}
	}
	t.Logf("%d of %d programs, %d of %d mutants, %d mutants on one rank", proved, len(all), decided, mutants, oneRank)
	if proved < len(all)/2 || decided < mutants/2 || oneRank == 0 {
		t.Errorf("too little is decided: %d of %d programs, %d of %d mutants, %d on one rank", proved, len(all),
			decided, mutants, oneRank)
	}
}

// oneRankMutants returns copies of a program in which only one rank omits one statement.
func oneRankMutants(prog *ir.Program, fn string, rank int64) []textMutant {
	var out []textMutant
	if len(prog.Meshes) == 0 {
		return nil
	}
	axis := prog.Meshes[0].Axes[0].Name
	n := 0
	prog.Func(fn).Body.Walk(func(*ir.Stmt) { n++ })
	for i := range n {
		c, k := prog.Clone(), 0
		var at *ir.Stmt
		c.Func(fn).Body.Walk(func(s *ir.Stmt) {
			if k == i {
				at = s
			}
			k++
		})
		switch at.Op {
		case ir.OpWait, ir.OpRecord, ir.OpSignal, ir.OpBarrier:
			inner := *at
			what := fmt.Sprintf("line %d: %s not on rank %d", at.Pos.Line, at, rank)
			*at = ir.Stmt{Op: ir.OpIf, Pos: at.Pos, Cmp: ir.NE, Exprs: []*ir.Expr{ir.Rank(axis), ir.Int(rank)},
				Body: &ir.Block{Stmts: []*ir.Stmt{&inner}}}
			out = append(out, textMutant{"on one rank", what, c})
		}
	}
	return out
}

// scaledExample returns an example, rewritten for more ranks.
func scaledExample(t testing.TB, file string, ranks int) *ir.Program {
	t.Helper()
	prog := examples(t)[file]
	src := prog.String()
	src = strings.Replace(src, "mesh tp[4]", fmt.Sprintf("mesh tp[%d]", ranks), 1)
	for _, d := range []string{"T", "K", "N"} {
		for _, v := range []string{"64", "32"} {
			src = strings.Replace(src, fmt.Sprintf("dim %s = %s\n", d, v), fmt.Sprintf("dim %s = %d\n", d, 4*ranks), 1)
		}
	}
	return parse(t, file, src)
}

// TestSymmetryOnManyRanks checks that the examples with a ring, pushes and an exchange are proved on many ranks, and
// are refuted if any one of their synchronizations is removed, like their plans on six ranks. A program that lacks a
// synchronization on one rank only must never be proved if it is wrong.
func TestSymmetryOnManyRanks(t *testing.T) {
	ranks := longtest.Of(64, 1024)
	for _, file := range []string{"ag_linear_ring.hkt", "linear_rs_push.hkt", "ag_linear_exchange.hkt"} {
		prog, few := scaledExample(t, file, ranks), scaledExample(t, file, 6)
		fn := strings.TrimSuffix(file, ".hkt")
		b := ir.Binding{Func: fn}
		s, err := symmetric(prog, b, "")
		if err != nil || s.Verdict != verify.Proved {
			t.Errorf("%s on %d ranks: %v, %v", file, ranks, s, err)
			continue
		}
		mutants := func(p *ir.Program) []textMutant {
			return slices.Concat(textMutants(p, fn), oneRankMutants(p, fn, 1), oneRankMutants(p, fn, 0),
				oneRankMutants(p, fn, 4))
		}
		many := mutants(prog)
		for i, m := range mutants(few) {
			if m.kind != "delete" && m.kind != "on one rank" {
				continue
			}
			want := verify.Refuted
			if _, p, err := build(m.prog, b); err == nil {
				want = verify.Plan(p, verify.Options{FaultsOnly: true}).Verdict
			}
			got := verify.Refuted
			if s, err := symmetric(many[i].prog, b, ""); err == nil {
				got = s.Verdict
			}
			undecided := got == verify.Unknown && m.kind == "on one rank"
			if got != want && !undecided && (want == verify.Refuted || got == verify.Refuted) {
				t.Errorf("%s on %d ranks: %s: %v, and %v on six", file, ranks, m.what, got, want)
			}
		}
	}
}
