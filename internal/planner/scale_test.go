package planner

import (
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestWorkGrowsLinearly checks that planning is linear in the number of commands. The test counts operations and does
// not measure time.
func TestWorkGrowsLinearly(t *testing.T) {
	for name, src := range scaled {
		count := func(n int64) (cmds int64, s *Stats) {
			p, s, ds := try(src, ir.Binding{Dims: map[string]int64{"C": n, "T": 4 * n}})
			if ds.HasErrors() {
				t.Fatal(ds)
			}
			return int64(len(p.Cmds)), s
		}
		n1, s1 := count(2000)
		n2, s2 := count(8000)
		for _, c := range []struct {
			what   string
			a, b   int64
			perCmd float64
		}{
			{"statements", s1.Statements, s2.Statements, 8},
			{"expressions", s1.Exprs, s2.Exprs, 16},
			{"joins", s1.Joins, s2.Joins, 2},
			{"compares", s1.Compares, s2.Compares, 16},
			{"probes", s1.Probes, s2.Probes, 8},
		} {
			x, y := float64(c.a)/float64(n1), float64(c.b)/float64(n2)
			if y > x*1.1+0.05 || y > c.perCmd {
				t.Errorf("%s: %.2f %s a command at %d commands, %.2f at %d", name, x, c.what, n1, y, n2)
			}
		}
	}
}

// scaled holds programs whose number of commands grows with C.
var scaled = map[string]string{
	"row_parallel": rowParallel,
	"workers": `
dim T = 4
dim C = 1
mesh tp[4]
func f(%x: f32[T]) -> f32[T] {
  %s = stream[16]
  for %j in 0..16 { on %s[%j] { wait main } }
  for %i in 0..C {
    on %s[%i mod 16] {
      %a = alloc f32[64 + 64 * (%i mod 5)]
      fill into %a, value=1
      %b = alloc f32[64 + 64 * (%i mod 3)]
      fill into %b, value=%i
      all_reduce %b into %b, over=tp, op=sum
    }
  }
  for %j in 0..16 { wait %s[%j] }
  return %x
}
`,
	"values": `
dim T = 4
dim C = 1
mesh tp[2]
func f(%x: f32[T]) -> f32[T] {
  for %i in 0..C {
    %a = relu %x
    %b = gelu %a
    %c = add %a, %b
  }
  return %x
}
`,
}

// BenchmarkPlan plans about 1k, 10k and 100k commands and reports the time for each command, which should be the same
// for all three.
func BenchmarkPlan(b *testing.B) {
	for _, name := range []string{"row_parallel", "workers", "values"} {
		for _, target := range []int64{1_000, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", name, target), func(b *testing.B) {
				perIter := map[string]int64{"row_parallel": 4, "workers": 12, "values": 6}[name]
				bound := mustBind(b, scaled[name], ir.Binding{Dims: map[string]int64{"C": target / perIter, "T": 4 * target / perIter}})
				cmds := 0
				b.ReportAllocs()
				for b.Loop() {
					p, ds := Plan(bound, Options{})
					if ds.HasErrors() {
						b.Fatal(ds)
					}
					cmds = len(p.Cmds)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(cmds), "ns/cmd")
				b.ReportMetric(float64(cmds), "cmds")
			})
		}
	}
}

// TestLongTextAndManyStreams plans a long program without loops and a program with very many streams.
func TestLongTextAndManyStreams(t *testing.T) {
	var long strings.Builder
	long.WriteString("func f(%x: f32[64]) -> f32[64] {\n")
	prev := "x"
	for i := range 5000 {
		fmt.Fprintf(&long, "  %%v%d = relu %%%s\n", i, prev)
		prev = fmt.Sprintf("v%d", i)
	}
	fmt.Fprintf(&long, "  return %%%s\n}\n", prev)
	p, _, ds := try(long.String(), ir.Binding{})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	if want := p.Memory.Inputs + 2*256; p.ArenaBytes != want {
		t.Errorf("a chain of 5000 values takes %d bytes, want %d", p.ArenaBytes, want)
	}
	_, _, ds = try(`
mesh tp[8]
func f(%x: f32[64]) -> f32[64] {
  %s = stream[500]
  for %j in 0..500 { on %s[%j] { wait main
    barrier over=tp } }
  for %j in 0..500 { wait %s[%j] }
  return %x
}
`, ir.Binding{})
	if ds.HasErrors() {
		t.Fatal(ds)
	}
}
