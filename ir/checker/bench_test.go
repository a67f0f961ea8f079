package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
	"strings"
	"testing"
	"time"
)

// longPrograms holds functions that return programs of about n statements. Each family of programs would make a checker
// slow or endless whose work for a statement grows with the preceding text.
var longPrograms = map[string]func(n int) string{
	"values": body(func(i int) string { return fmt.Sprintf("%%v%d = linear %%v%d, %%w", i+1, i) }),
	"sharded": body(func(i int) string {
		return fmt.Sprintf("%%v%d: f32[64/%s, 64] = relu %%v%d", i+1, [...]string{"tp", "dp"}[i%2], i)
	}),
	"views of views": body(func(i int) string {
		return fmt.Sprintf("%%v%d = chunk %%v%d, axis=0, 0 of C", i+1, i)
	}),
	"views of split values": body(func(i int) string {
		return fmt.Sprintf("%%v%d = chunk %%v%d, axis=1, 0 of C", i+1, i)
	}),
	"slices of slices": body(func(i int) string {
		return fmt.Sprintf("%%v%d = slice %%v%d, axis=0, 0..ceildiv(extent(%%v%d, 0), 2)", i+1, i, i)
	}),
	"gathers": body(func(i int) string {
		return fmt.Sprintf("%%v%d = all_gather %%v%d, over=tp\n%%u%d = relu %%v%d", i+1, i, i, i+1)
	}, "%b0 = alloc f32[64, 64]", "%v0 = slice %b0, axis=0, 0..T"),
	"lets that double": body(func(i int) string {
		return fmt.Sprintf("let %%n%d = %%n%d + %%n%d * %%n%d", i+1, i, i, i)
	}, "let %n0 = 1 + T"),
	"lets of remainders": body(func(i int) string {
		return fmt.Sprintf("let %%n%d = (%%n%d + %%n%d) mod (%%n%d + 1)\n%%c%d = chunk %%v0, axis=0, 0 of %%n%d + 1",
			i+1, i, i, i, i, i+1)
	}, "let %n0 = 1 + T"),
	"frees and ifs": body(func(i int) string {
		return fmt.Sprintf("%%b%d = alloc f32[64]\nif T == %d { free %%b%d } else { fill into %%b%d, value=1 }", i, i,
			i, i)
	}),
	"errors": body(func(i int) string { return fmt.Sprintf("%%v%d = relu %%u%d", i+1, i) }),
	"loops": body(func(i int) string {
		return fmt.Sprintf("for %%i in 0..C { %%c = chunk %%v0, axis=0, %%i of C }")
	}),
	"functions": func(n int) string {
		var b strings.Builder
		b.WriteString("func f0(%x: f32[T]) -> f32[T] { return %x }\n")
		for i := range n / 2 {
			fmt.Fprintf(&b, "func f%d(%%x: f32[T]) -> f32[T] refines f%d {\n%%y = call f0 %%x\nreturn %%y\n}\n", i+1, i)
		}
		return b.String()
	},
}

func body(line func(i int) string, first ...string) func(n int) string {
	return func(n int) string {
		var b strings.Builder
		b.WriteString("dim T = 64\ndim C = 2\nmesh dp[2] tp[2]\nfunc f(%v0: f32[64, 64/tp], %w: f32[64, 64]) {\n")
		for _, l := range first {
			b.WriteString(strings.ReplaceAll(l+"\n", "%v0 ", "%v00 "))
		}
		text := ""
		for i := range n {
			text = line(i)
			if len(first) == 2 {
				text = strings.ReplaceAll(text, "%v", "%v0")
			}
			b.WriteString(text + "\n")
		}
		b.WriteString("}\n")
		return b.String()
	}
}

// TestLongProgramsEnd checks that the time for each family grows in proportion to the length of the program.
func TestLongProgramsEnd(t *testing.T) {
	n := 4000
	for name, family := range longPrograms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := irtest.MustParse(t, name, family(n))
			start := time.Now()
			in, ds := Check(p)
			if name != "errors" && len(ds) > 0 {
				t.Fatal(ds[0])
			}
			if name != "errors" {
				ir.Bind(in, ir.Binding{Func: p.Funcs[0].Name})
			}
			if d := time.Since(start); d > 40*time.Second { // tenfold, for a busy machine
				t.Errorf("%d statements took %v", n, d)
			}
			for _, syms := range in.Results {
				for _, s := range syms {
					if s.Type == nil {
						continue
					}
					for _, d := range s.Type.Dims {
						if nodes(d.Extent, 1000) > 1000 {
							t.Fatalf("an extent of %%%s is huge", s.Name)
						}
					}
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, family := range []string{"values", "views of views", "lets of remainders", "frees and ifs", "loops",
		"functions", "errors", "gathers"} {
		for _, n := range []int{1000, 10000, 100000} {
			b.Run(fmt.Sprintf("%s/%d", family, n), func(b *testing.B) {
				p := irtest.MustParse(b, family, longPrograms[family](n))
				for b.Loop() {
					Check(p)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/stmt")
			})
		}
	}
}
