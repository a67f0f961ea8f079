package compile

import (
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/planner"
	"hocket.example/hocket/ir"
)

// allReduces returns a program from a forum thread with sharded weights: linears, with an all-reduce after each.
func allReduces(layers int) string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"mesh tp[2]\nfunc f(%%x: bf16[4096, 8192], %%w: bf16[%d, 8192, 8192/tp]) -> bf16[4096, 8192] {\n  %%h0 = copy %%x\n", layers)
	for i := range layers {
		fmt.Fprintf(&b,
			"  %%w%d = select %%w, axis=0, index=%d\n  %%h%d: bf16[4096, 8192] = linear %%h%d, %%w%d\n", i, i, i+1, i, i)
	}
	fmt.Fprintf(&b, "  return %%h%d\n}\n", layers)
	return b.String()
}

// TestAllReducesTakeTheirBound checks, for every strategy, that the program from the forum thread needs exactly the
// memory that can be live at once, which the test counts in whole activations. Overlap must need at most a quarter more
// memory than sequential.
func TestAllReducesTakeTheirBound(t *testing.T) {
	const activation = 4096 * 8192 * 2
	for _, layers := range []int{8, 32} {
		for strategy, want := range map[string]int64{
			"sequential": 2 * activation,     // a product and its sum
			"chunked(4)": 3 * activation / 2, // half of the input; the products are reduced in place
			"exchange":   5 * activation / 2, // half of the input, the products, and a slot for each rank's half
		} {
			u, err := Build(check(t, allReduces(layers)), Options{Strategy: strategy})
			if err != nil {
				t.Fatal(err)
			}
			p, err := u.Plan(ir.Binding{})
			if err != nil {
				t.Fatal(err)
			}
			if got := p.ArenaBytes - p.Memory.Inputs; got != want {
				t.Errorf("%d layers, %s: %.2f activations, want %.2f", layers, strategy,
					float64(got)/activation, float64(want)/activation)
			}
			f, err := planner.Measure(p)
			if err != nil {
				t.Fatal(err)
			}
			if float64(p.ArenaBytes) > 1.02*float64(f.Bound) {
				t.Errorf("%d layers, %s: peak %d, bound %d", layers, strategy, p.ArenaBytes, f.Bound)
			}
			if err := proved(p, u.Lowered); err != nil {
				t.Errorf("%d layers, %s: %v", layers, strategy, err)
			}
		}
	}
}
