package verify_test

import (
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

const unevenProgram = `
mesh tp[2]
func f(%x: f32[6/tp, 2], %n: i32[4/tp]) -> f32[10/tp, 2] {
  %s = stream
  %b = alloc f32[5, 2]
  %m = alloc i32[2]
  copy %n into %m
  on %s {
    wait main
    all_to_allv %x into %b, over=tp, counts=(rank(tp), 2)
    all_to_allv %b, %m into %b, over=tp
    all_gatherv %x into %b, over=tp, counts=(1, 3)
    reduce_scatterv %x into %b, over=tp, op=sum, counts=(1, 2)
  }
  wait %s
  return %b
}`

func unevenPlan(t *testing.T) (*ir.Program, *plan.Plan) {
	t.Helper()
	prog, p, err := build(parse(t, "uneven.hkt", unevenProgram), ir.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	return prog, p
}

func TestUnevenIsProved(t *testing.T) {
	prog, p := unevenPlan(t)
	if r := verify.Plan(p, verify.Options{Prog: prog}); r.Verdict != verify.Proved {
		t.Errorf("%v\n%s", r.Verdict, r.Diagnostics(prog))
	}
}

// TestUnevenRefuted changes counts to wrong values, and writes counts without an order between the write and the
// collective that reads them.
func TestUnevenRefuted(t *testing.T) {
	kinds := []string{}
	for name, change := range map[string]func(parts [][]plan.CollPart){
		"negative":             func(c [][]plan.CollPart) { c[0][1].Rows[0] = -1 },
		"too many":             func(c [][]plan.CollPart) { c[0][1].Rows[0] = 1 << 62 },
		"more than there is":   func(c [][]plan.CollPart) { c[0][0].Rows = []int64{2, 2} },
		"more than fits":       func(c [][]plan.CollPart) { c[0][0].Rows, c[0][1].Rows = []int64{3, 0}, []int64{3, 0} },
		"one too few":          func(c [][]plan.CollPart) { c[0][1].Rows = c[0][1].Rows[:1] },
		"in two places":        func(c [][]plan.CollPart) { c[1][0].Rows = []int64{0, 0} },
		"in memory on one":     func(c [][]plan.CollPart) { c[0][0].Counts = c[1][0].Counts },
		"of another rank":      func(c [][]plan.CollPart) { c[1][0].Counts = c[1][1].Counts },
		"of another type":      func(c [][]plan.CollPart) { c[1][0].Counts[0].DType = ir.F32 },
		"of another shape":     func(c [][]plan.CollPart) { c[1][0].Counts[0].Shape = []int64{1} },
		"nowhere":              func(c [][]plan.CollPart) { c[1][0].Counts, c[1][1].Counts = nil, nil },
		"differ":               func(c [][]plan.CollPart) { c[2][1].Rows = []int64{1, 2} },
		"differ in a sum":      func(c [][]plan.CollPart) { c[3][1].Rows = []int64{0, 2} },
		"more than a gather's": func(c [][]plan.CollPart) { c[2][0].Rows[1], c[2][1].Rows[1] = 4, 4 },
		"more than a sum's":    func(c [][]plan.CollPart) { c[3][0].Rows[1], c[3][1].Rows[1] = 3, 3 },
	} {
		prog, p := unevenPlan(t)
		var parts [][]plan.CollPart
		for i := range p.Colls {
			parts = append(parts, p.Colls[i].Parts)
		}
		change(parts)
		if r := verify.Plan(p, verify.Options{Prog: prog}); r.Verdict != verify.Refuted {
			t.Errorf("counts %s: %v", name, r.Verdict)
		} else {
			kinds = append(kinds, r.Findings[0].Kind)
		}
	}
	slices.Sort(kinds)
	if kinds = slices.Compact(kinds); !slices.Equal(kinds, []string{verify.KindBounds, verify.KindMatch}) {
		t.Errorf("kinds %v", kinds)
	}
	prog, p := unevenPlan(t)
	at := slices.IndexFunc(p.Cmds, func(c plan.Cmd) bool { return c.Kind == plan.Copy })
	c := p.Cmds[at]
	p.Cmds = append(slices.Delete(p.Cmds, at, at+1), c) // moves the copy of the counts to the end
	if r := verify.Plan(p, verify.Options{Prog: prog}); r.Verdict != verify.Refuted {
		t.Errorf("counts written too late: %v", r.Verdict)
	}
	// Without the fork, the copy of the counts and the read of the counts are not ordered.
	prog, p = unevenPlan(t)
	p.Cmds = slices.DeleteFunc(p.Cmds, func(c plan.Cmd) bool {
		return c.Kind == plan.WaitEvent &&
			c.Stream != p.Main[c.Rank]
	})
	r := verify.Plan(p, verify.Options{Prog: prog})
	if r.Verdict != verify.Refuted || !slices.ContainsFunc(r.Findings,
		func(f verify.Finding) bool { return strings.Contains(f.Message, "%m") }) {
		t.Errorf("counts read without order: %v\n%s", r.Verdict, r.Diagnostics(prog))
	}
}
