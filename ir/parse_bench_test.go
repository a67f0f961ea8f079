package ir_test

import (
	"fmt"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"io"
	"strings"
	"testing"
)

// benchText returns a program of n statements that are similar to those of a lowered layer.
func benchText(n int) string {
	var b strings.Builder
	b.WriteString("dim T = 64\nmesh tp[4]\nfunc f(%x: bf16[T/tp, 32], %w: bf16[64/tp, 32]) {\n")
	for i := 0; i < n; i += 5 {
		fmt.Fprintf(&b, `  on %%s[%d mod 2] {
    %%xi.%[1]d = chunk %%x, axis=0, %[1]d of %d  // ceildiv rows
    %%p.%[1]d: bf16[T, 64/tp] = linear %%xi.%[1]d, %%w
    all_reduce %%p.%[1]d into %%y[%[1]d], over=tp, op=sum
    put %%p.%[1]d into %%q at tp[(rank(tp) + %[1]d) mod size(tp)], engine=ce
  }
`, i, n)
	}
	b.WriteString("}\n")
	return b.String()
}

func benchSizes(b *testing.B, run func(b *testing.B, src string)) {
	for _, n := range []int{1000, 10_000, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			src := benchText(n)
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			run(b, src)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/statement")
		})
	}
}

func BenchmarkParse(b *testing.B) {
	benchSizes(b, func(b *testing.B, src string) {
		for b.Loop() {
			if _, ds := ir.Parse("bench", src); len(ds) > 0 {
				b.Fatal(ds)
			}
		}
	})
}

func BenchmarkPrint(b *testing.B) {
	benchSizes(b, func(b *testing.B, src string) {
		p := irtest.MustParse(b, "bench", src)
		b.ResetTimer()
		for b.Loop() {
			if err := ir.Print(io.Discard, p); err != nil {
				b.Fatal(err)
			}
		}
	})
}
