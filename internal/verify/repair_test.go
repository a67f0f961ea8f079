package verify_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/internal/verify/repair"
	"hocket.example/hocket/ir"
)

// TestRepairs removes each synchronization of each example and repairs the result. Each repaired program must be
// proved, and must be equal to the program that is parsed from its printed text.
func TestRepairs(t *testing.T) {
	refuted, repaired := 0, 0
	for name, prog := range examples(t) {
		fn := prog.Funcs[len(prog.Funcs)-1]
		for _, m := range textMutants(prog, fn.Name) {
			if m.kind != "delete" {
				continue
			}
			_, p, err := build(m.prog, ir.Binding{})
			if err != nil || len(p.Cmds) > 300 ||
				verify.Plan(p, verify.Options{FaultsOnly: true}).Verdict != verify.Refuted {
				continue
			}
			refuted++
			mutant := parse(t, name, m.prog.String())
			r := repair.Repair(mutant, fn.Name,
				func(p *ir.Program) (*ir.Program, *plan.Plan, error) { return build(p, ir.Binding{}) })
			if r == nil {
				t.Logf("%s: %s: not repaired", name, m.what)
				continue
			}
			repaired++
			if len(r.Edits) == 0 || r.Result.Verdict != verify.Proved {
				t.Errorf("%s: %s: %v, by %q", name, m.what, r.Result.Verdict, r.Edits)
			}
			_, again, err := build(parse(t, name, r.Program.String()), ir.Binding{})
			if err != nil || verify.Plan(again, verify.Options{}).Verdict != verify.Proved {
				t.Errorf("%s: %s: the repaired text is not proved: %v", name, m.what, err)
			}
		}
	}
	t.Logf("%d of %d repaired", repaired, refuted)
	if refuted < 15 || repaired < refuted*9/10 {
		t.Errorf("%d of %d repaired", repaired, refuted)
	}
}

// TestRepairsMany checks that all findings are repaired if there are more of them than a result lists.
func TestRepairsMany(t *testing.T) {
	var text strings.Builder
	text.WriteString("func f(%x: f32[8]) -> f32[8] {\n")
	const streams = 30
	for i := range streams {
		fmt.Fprintf(&text, "  %%s%[1]d = stream\n  %%y%[1]d = alloc f32[8]\n  on %%s%[1]d { add %%x, %%x into %%y%[1]d }\n", i)
	}
	text.WriteString("  return %y0\n}\n")
	r := repair.Repair(parse(t, "many.hkt", text.String()), "f",
		func(p *ir.Program) (*ir.Program, *plan.Plan, error) { return build(p, ir.Binding{}) })
	if r == nil || r.Result.Verdict != verify.Proved || len(r.Edits) != 2*streams {
		t.Fatalf("got %+v", r)
	}
}

// disturbed changes the order of statements or the groups of a correct program until the program deadlocks. It returns
// nil if this does not happen after a few changes.
func disturbed(t testing.TB, r *rand.Rand, p *randomProgram) *randomProgram {
	for range 12 {
		q := *p
		q.steps = slices.Clone(p.steps)
		i := r.IntN(len(q.steps) - 1)
		s, next := q.steps[i], q.steps[i+1]
		switch {
		case s.kind == doTransfer:
			recv := s
			q.steps[i].kind, recv.kind = doSend, doRecv
			q.steps = slices.Insert(q.steps, i+1, recv)
		case r.IntN(3) == 0: // on one rank alone
			q.steps[i].only, q.steps[i+1].only = 0, 0
			q.steps[i].not, q.steps[i+1].not = true, true
			s.only, s.not, next.only, next.not = 0, false, 0, false
			q.steps = slices.Insert(q.steps, i+2, next, s)
		case s.loop == 0 && next.loop == 0:
			j := i + 1 + r.IntN(min(3, len(q.steps)-1-i))
			if q.steps[j].loop != 0 {
				continue
			}
			moved := q.steps[i]
			q.steps = slices.Insert(slices.Delete(q.steps, i, i+1), j, moved)
		}
		_, plan, err := build(parse(t, "random.hkt", q.text()), ir.Binding{})
		var ds ir.Diagnostics
		switch {
		case errors.As(err, &ds):
			if ds[0].Kind == "deadlock" {
				return &q
			}
		case err == nil:
			if f := verify.Plan(plan, verify.Options{FaultsOnly: true}).Findings; len(f) > 0 && f[0].Kind == verify.KindDeadlock {
				return &q
			}
		}
	}
	return nil
}

// TestRepairsOfDeadlocks checks that programs that are correct except for their order are repaired to an order that is
// proved.
func TestRepairsOfDeadlocks(t *testing.T) {
	n, seed := longtest.Of(15, 400), longtest.Seed(t)
	plans := func(p *ir.Program) (*ir.Program, *plan.Plan, error) { return build(p, ir.Binding{}) }
	deadlocks, repaired, how := 0, 0, map[string]int{}
	for i := uint64(0); deadlocks < n; i++ {
		r := rand.New(rand.NewPCG(seed, i))
		p := newRandomProgram(r, 2+r.IntN(2), 1+r.IntN(3), 0)
		_, pl, err := build(parse(t, "random.hkt", p.text()), ir.Binding{})
		if err != nil || verify.Plan(pl, verify.Options{FaultsOnly: true}).Verdict != verify.Proved {
			continue
		}
		q := disturbed(t, r, p)
		if q == nil {
			continue
		}
		deadlocks++
		fixed := repair.Repair(parse(t, "random.hkt", q.text()), "f", plans)
		if fixed == nil {
			t.Logf("program %d of seed %d is not repaired:\n%s", i, seed, q.text())
			continue
		}
		_, again, err := build(parse(t, "random.hkt", fixed.Program.String()), ir.Binding{})
		if err != nil || verify.Plan(again, verify.Options{}).Verdict != verify.Proved {
			t.Errorf("program %d of seed %d: the repaired text is not proved: %v\n%s", i, seed, err, fixed.Program)
		}
		repaired++
		how[fmt.Sprint(len(fixed.Edits), " edits")]++
	}
	t.Logf("%d of %d deadlocks repaired: %v", repaired, deadlocks, how)
	if repaired < deadlocks/2 {
		t.Errorf("%d of %d deadlocks repaired", repaired, deadlocks)
	}
}
