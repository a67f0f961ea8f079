package compile

import (
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// backward is a simplified backward pass: it has only the products whose results are reduced over dp and needed at the
// end.
const backward = `dim T = 64
dim H = 64
mesh dp[4]
func f(%x: bf16[T/dp, H], %dy: bf16[T/dp, H], %w: bf16[H, H]) -> (bf16[H, H], bf16[H, H], bf16[H, H], bf16[T/dp, H]) {
  %d1: bf16[H, H] = matmul %dy, %x, ta=true
  %a = matmul %dy, %w
  %d2: bf16[H, H] = matmul %a, %x, ta=true
  %b = matmul %a, %w
  %d3: bf16[H, H] = matmul %b, %x, ta=true
  %c = matmul %b, %w
  return %d1, %d2, %d3, %c
}
`

// TestDelayed checks that the sizes of a binding decide which reductions share a collective.
func TestDelayed(t *testing.T) {
	u, err := Build(check(t, backward), Options{Strategy: "delayed"})
	if err != nil {
		t.Fatal(err)
	}
	for h, want := range map[int64]int{64: 1, 2048: 2, 4096: 3} { // of 8 KiB, 8 MiB or 32 MiB; buckets of 16 MiB
		res, err := u.LoweredFor(ir.Binding{Dims: map[string]int64{"H": h}})
		if err != nil {
			t.Fatal(err)
		}
		if text := res.Program.String(); strings.Count(text, "all_reduce") != want {
			t.Errorf("H=%d: want %d reductions\n%s", h, want, text)
		}
		if u.SameForAll(res, "H") {
			t.Errorf("H=%d: the lowered form is reported to be the same for all H", h)
		}
	}
	if _, err := Build(check(t, `mesh tp[2]
func f(%x: f32[4, 8/tp], %w: f32[4, 8/tp]) -> f32[4, 4] {
  %y: f32[4, 4] = linear %x, %w
  %z = linear %y, %y
  return %z
}
`), Options{Strategy: "delayed"}); err == nil || !strings.Contains(err.Error(), "strategy delayed applies to no collective") {
		t.Errorf("a program without a reduction that can be delayed: %v", err)
	}
}

// TestAutoDelays checks that auto delays reductions exactly if that is predicted to be faster than every other form.
func TestAutoDelays(t *testing.T) {
	delays := 0
	for _, h := range []int64{64, 512, 2048, 8192} {
		b := ir.Binding{Dims: map[string]int64{"H": h, "T": 4096}}
		times := map[string]float64{}
		for _, strategy := range []string{"sequential", "delayed", Auto} {
			u, err := Build(check(t, backward), Options{Strategy: strategy, Machine: "h200x4"})
			if err != nil {
				t.Fatal(err)
			}
			p, err := u.Plan(b)
			if err != nil {
				t.Fatal(err)
			}
			if times[strategy], err = u.Time(p); err != nil || times[strategy] == 0 {
				t.Fatalf("%s, H=%d: %v µs, %v", strategy, h, times[strategy], err)
			}
			if strategy != Auto {
				continue
			}
			res, err := u.LoweredFor(b)
			if err != nil {
				t.Fatal(err)
			}
			if res.Groups > 0 {
				delays++
			}
		}
		if times[Auto] > min(times["sequential"], times["delayed"]) {
			t.Errorf("H=%d: auto takes %.1f µs, sequential %.1f, delayed %.1f", h, times[Auto], times["sequential"], times["delayed"])
		}
		t.Logf("H=%d: %v", h, times)
	}
	if delays == 0 {
		t.Error("auto never delays a reduction")
	}
}
