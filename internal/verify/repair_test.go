package verify_test

import (
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// TestRepairs takes out each synchronisation of each example and has it put
// back: whatever comes out must be proved, print, and parse to the same.
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
			r := verify.Repair(mutant, fn.Name,
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

// TestRepairsMany: more findings than are listed are repaired, too, one after the other.
func TestRepairsMany(t *testing.T) {
	var text strings.Builder
	text.WriteString("func f(%x: f32[8]) -> f32[8] {\n")
	const streams = 30
	for i := range streams {
		fmt.Fprintf(&text, "  %%s%[1]d = stream\n  %%y%[1]d = alloc f32[8]\n  on %%s%[1]d { add %%x, %%x into %%y%[1]d }\n", i)
	}
	text.WriteString("  return %y0\n}\n")
	r := verify.Repair(parse(t, "many.hkt", text.String()), "f",
		func(p *ir.Program) (*ir.Program, *plan.Plan, error) { return build(p, ir.Binding{}) })
	if r == nil || r.Result.Verdict != verify.Proved || len(r.Edits) != 2*streams {
		t.Fatalf("got %+v", r)
	}
}
