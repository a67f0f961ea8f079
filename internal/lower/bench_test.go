package lower

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// stack returns a program of n tensor-parallel MLP layers, written out: five
// statements each.
func stack(n int) string {
	var b strings.Builder
	b.WriteString("mesh tp[4]\nfunc f(%x0: bf16[T/tp, H], %u: bf16[F/tp, H], %d: bf16[H, F/tp]) -> bf16[T/tp, H] {\n")
	for i := range n {
		fmt.Fprintf(&b, "  %%h%d = linear %%x%d, %%u\n  %%g%d = gelu %%h%d\n  %%y%d: bf16[T/tp, H] = linear %%g%d, %%d\n  %%z%d = add %%y%d, %%x%d\n  %%x%d = relu %%z%d\n",
			i, i, i, i, i, i, i, i, i, i+1, i)
	}
	fmt.Fprintf(&b, "  return %%x%d\n}\n", n)
	return b.String()
}

// chain returns n elementwise operations after one all_gather. The search for GEMMs examines all of them and finds
// none.
func chain(n int) string {
	var b strings.Builder
	b.WriteString("mesh tp[4]\nfunc f(%x: bf16[T/tp, H]) -> bf16[T, H] {\n  %v0: bf16[T, H] = reshard %x\n")
	for i := range n {
		fmt.Fprintf(&b, "  %%v%d = relu %%v%d\n", i+1, i)
	}
	fmt.Fprintf(&b, "  return %%v%d\n}\n", n)
	return b.String()
}

func benchmarkLower(b *testing.B, source string, st Strategy) {
	p := parse(b, source)
	b.ResetTimer()
	for b.Loop() {
		res, err := Run(p, Options{Choose: func(*Pair) Strategy { return st }})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(res.Choices)), "pairs")
	}
}

func BenchmarkLower(b *testing.B) {
	for _, st := range []Strategy{{}, {Kind: Chunked, Chunks: 4}, {Kind: Exchange}} {
		b.Run(fmt.Sprintf("32 layers/%s", st), func(b *testing.B) { benchmarkLower(b, stack(32), st) })
		b.Run(fmt.Sprintf("100k ops/%s", st), func(b *testing.B) { benchmarkLower(b, stack(20000), st) })
	}
	b.Run("100k ops, one chain", func(b *testing.B) {
		benchmarkLower(b, chain(100000),
			Strategy{Kind: Chunked, Chunks: 4})
	})
}

// TestLoweringIsLinear checks that lowering a program of ten times the length takes about ten times as long.
func TestLoweringIsLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("measures time")
	}
	took := func(n int) time.Duration {
		p := parse(t, stack(n))
		best := time.Hour
		for range 2 {
			start := time.Now()
			if _, err := Run(p, Options{Choose: func(*Pair) Strategy { return Strategy{Kind: Exchange} }}); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(start))
		}
		return best
	}
	small, large := took(100), took(1000)
	if large > 60*small {
		t.Errorf("100 layers take %v, 1000 %v", small, large)
	}
}
