package planner

import (
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

func TestUnevenCollectives(t *testing.T) {
	p, _ := mustPlan(t, `
mesh tp[2]
dim P = 2
func f(%x: f32[6/tp, 2], %n: i32[4/tp]) -> f32[10/tp, 2] {
  %b = alloc f32[5, 2]
  all_gatherv %x into %b, over=tp, counts=(P, P + 1)
  all_to_allv %x into %b, over=tp, counts=(rank(tp), 2)
  reduce_scatterv %x, %n into %b, over=tp, op=max
  %y = all_to_allv %b, %n, over=tp
  return %b
}
`, ir.Binding{})
	wantLines(t, p, 1,
		"main all_gatherv channel 0.0 axis=0 counts=[2 3] %x f32[3 2] -> %b f32[5 2]",
		"main all_to_allv channel 0.1 axis=0 counts=[1 2] %x f32[3 2] -> %b f32[5 2]",
		"main reduce_scatterv channel 0.2 max axis=0 %x f32[3 2], %n i32[2] -> %b f32[5 2]",
		"main all_to_allv channel 0.3 axis=0 %b f32[5 2], %n i32[2] -> %y f32[10 2]",
		"main output b %b f32[5 2]")
	// A row has 8 bytes. Rank 0 and rank 1 have 2 and 3 rows in the all_gatherv: rank 1 receives the 2 rows of rank 0.
	// In the first all_to_allv, rank 0 sends 0 and 2 rows, and rank 1 sends 1 and 2 rows: rank 1 receives 2 rows of
	// rank 0. With counts in memory, all rows of the capacity may be received.
	for i, want := range []int64{2 * 8, 2 * 8, 5 * 8, 10 * 8 / 2} {
		if got := p.Colls[i].Moved(1); got != want {
			t.Errorf("%s brings rank 1 %d bytes, want %d", p.Colls[i].Op, got, want)
		}
	}
	if got := p.Colls[1].Moved(0); got != 8 {
		t.Errorf("all_to_allv brings rank 0 %d bytes, want 8", got)
	}
}

// TestCountsRefused checks that planning refuses counts in the text that do not fit the tensors.
func TestCountsRefused(t *testing.T) {
	for _, c := range []struct{ stmts, kind, words string }{
		{"all_gatherv %x into %y, over=tp, counts=(2, 9)", "match", "all_gatherv of f32[8 4]: counts=[2 9] add up to 9 rows, but the operand has 8 (rank 1"},
		{"all_gatherv %x into %y, over=tp, counts=(2, 7)", "match", "9 rows are received, but the result has room for only 8"},
		{"all_to_allv %x into %y, over=tp, counts=(0 - rank(tp), 7)", "bind", "counts[0] is -1 (rank 1)"},
		{"all_to_allv %x into %y, over=tp, counts=(8 * rank(tp), 1)", "match", "counts=[8 1] add up to 9 rows"},
		{"all_to_allv %x into %y, over=tp, counts=(5, 0)", "match", "10 rows are received"},
		{"reduce_scatterv %x into %y, over=tp, op=sum, counts=(5, 4)", "match", "counts=[5 4] add up to 9 rows"},
		{"if rank(tp) == 0 { all_gatherv %x into %y, over=tp, counts=(1, 2) } else { all_gatherv %x into %y, over=tp, counts=(1, 1) }",
			"match", "is matched with all_gatherv of f32[8 4]: counts=[1 1] and counts=[1 2]"},
		{"%n = alloc i32[2]\nfill into %n, value=1\nif rank(tp) == 0 { all_gatherv %x into %y, over=tp, counts=(1, 2) } else { all_gatherv %x, %n into %y, over=tp }",
			"match", "in the text, the other in memory"},
		{"%n = alloc i32[2, 2]\nfill into %n, value=1\n%m = select %n, axis=1, index=0\nall_to_allv %x, %m into %y, over=tp", "alias", "dense"},
	} {
		_, _, ds := try(body(2, c.stmts), ir.Binding{})
		if len(ds) == 0 || ds[0].Kind != c.kind || !strings.Contains(ds[0].Message, c.words) || !ds[0].Pos.Valid() {
			t.Errorf("%s: %v, want %s: %s", c.stmts, ds, c.kind, c.words)
		}
	}
}
