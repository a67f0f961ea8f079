package compile

import (
	"testing"

	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
)

// TestTouchedRows checks operations that use some rows of a table, a cache or slots. The predicted time of an operation
// that uses some rows of a tensor must not depend on the length of the tensor, and must increase with the number of
// rows that are used. Predictions by statement and by plan must agree.
func TestTouchedRows(t *testing.T) {
	const embedding = "dim N\ndim V\nfunc f(%ids: i32[N], %table: bf16[V, 4096]) -> bf16[N, 4096] {\n" +
		"  %y = embedding %ids, %table\n  return %y\n}\n"
	const cache = "dim N\ndim V\nfunc f(%rows: bf16[N, 1, 8, 128], %at: i32[N, 1], %k: inout bf16[N, V, 8, 128]) {\n" +
		"  index_copy %rows, %at into %k, axis=1\n  return\n}\n"
	const slots = "dim N\ndim V\nfunc f(%x: bf16[V, N, 4096]) -> bf16[N, 4096] {\n" +
		"  %y = alloc bf16[N, 4096]\n  reduce_slots %x, axis=0, 1..3 into %y\n  return %y\n}\n"
	for name, text := range map[string]string{"embedding": embedding, "index_copy": cache, "reduce_slots": slots} {
		u, err := Build(check(t, text), Options{Machine: "h200x2"})
		if err != nil {
			t.Fatal(err)
		}
		us := func(n, v int64) float64 {
			b := ir.Binding{Dims: map[string]int64{"N": n, "V": v}}
			e, err := u.Explain(b)
			if err != nil {
				t.Fatal(err)
			}
			p, err := u.Plan(b)
			if err != nil {
				t.Fatal(err)
			}
			m, _, err := u.machine(1)
			if err != nil {
				t.Fatal(err)
			}
			line, err := sim.Plan(p, m)
			if err != nil {
				t.Fatal(err)
			}
			if diff := line.Time - e.Time; diff > 0.01 || diff < -0.01 {
				t.Errorf("%s, %d rows of %d: %.2f µs by statement, %.2f by plan", name, n, v, e.Time, line.Time)
			}
			return e.Time
		}
		short, long, many := us(8, 16), us(8, 4096), us(4096, 4096)
		if long > short+0.01 || short > 5 || many < short+4 {
			t.Errorf("%s: 8 rows of 16 take %.2f µs, of 4096 %.2f, and 4096 rows %.2f", name, short, long, many)
		}
	}
}
