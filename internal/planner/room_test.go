package planner

import (
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// fills returns a program with n fill commands and a few others.
func fills(n int) string {
	return body(1, fmt.Sprintf("  for %%i in 0..%d { fill into %%y, value=1 }", n))
}

// TestRoom checks that a long plan is refused if the host has too little memory for it, that Room is called once for a
// long plan, and that a short plan is accepted without a call.
func TestRoom(t *testing.T) {
	for _, c := range []struct {
		name  string
		turns int
		free  int64
		asked int
		limit int64 // 0 for accepted
	}{
		{"short", 1000, 1, 0, 0},
		{"enough", longPlan + 30_000, 40_000 * commandBytes, 1, 0},
		{"unknown", longPlan + 30_000, 0, 1, 0},
		{"too little", longPlan + 30_000, 20_000 * commandBytes, 1, longPlan + 20_000},
		{"none", longPlan + 30_000, 1, 1, longPlan},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := mustBind(t, fills(c.turns), ir.Binding{})
			asked := 0
			_, ds := Plan(b, Options{Room: func() int64 { asked++; return c.free }})
			if asked != c.asked {
				t.Errorf("asked %d times, want %d", asked, c.asked)
			}
			switch want := fmt.Sprintf("more than %d commands", c.limit); {
			case c.limit == 0 && ds.HasErrors():
				t.Error(ds)
			case c.limit > 0 && (!strings.Contains(ds.Error(), want) || ds[0].Kind != "limit"):
				t.Errorf("got %v, want %q", ds, want)
			}
		})
	}
}
