package verify_test

import (
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// transformer returns a program that overlaps communication with computation in the given number of layers. Each layer
// has a gather that is issued ahead of two GEMMs, chunks on two streams with a reduction each, and puts with signals.
func transformer(layers int) string {
	var b strings.Builder
	b.WriteString(`dim T = 256
dim H = 64
mesh tp[8]
func layers(%x: bf16[T, H], %w: bf16[H, H/tp], %v: bf16[H, H]) -> bf16[T, H] {
  %s = stream[2]
  %push = stream
  %h = alloc[2] bf16[T, H]
  %all = alloc bf16[T, H] symmetric
  copy %x into %h[0]
`)
	for l := range layers {
		fmt.Fprintf(&b, `  %%here%[1]d = counter[8]
  %%g%[1]d = alloc bf16[T, H]
  barrier over=tp
  on %%push {
    wait main
    for %%i in 1..8 {
      %%mine = chunk %%h[%[2]d], axis=0, rank(tp) of 8
      %%to = chunk %%all, axis=0, rank(tp) of 8
      put %%mine into %%to at tp[(rank(tp) + %%i) mod 8]
      signal %%here%[1]d[rank(tp)] at tp[(rank(tp) + %%i) mod 8]
    }
  }
  for %%i in 0..8 {
    let %%j = (rank(tp) + %%i) mod 8
    %%gj = chunk %%g%[1]d, axis=0, %%j of 8
    if %%i == 0 {
      %%hj = chunk %%h[%[2]d], axis=0, %%j of 8
      linear %%hj, %%v into %%gj
    } else {
      wait %%here%[1]d[%%j] >= 1
      %%aj = chunk %%all, axis=0, %%j of 8
      linear %%aj, %%v into %%gj
    }
  }
  wait %%push
  gelu %%g%[1]d into %%g%[1]d
  for %%j in 0..2 { on %%s[%%j] { wait main } }
  for %%i in 0..8 {
    on %%s[%%i mod 2] {
      %%gi = chunk %%g%[1]d, axis=0, %%i of 8
      %%gk = chunk %%gi, axis=1, rank(tp) of 8
      %%yi = chunk %%h[%[3]d], axis=0, %%i of 8
      %%p = alloc bf16[extent(%%gi, 0), H]
      linear %%gk, %%w into %%p
      all_reduce %%p into %%yi, over=tp, op=sum
    }
  }
  for %%j in 0..2 { wait %%s[%%j] }
`, l, l%2, (l+1)%2)
	}
	fmt.Fprintf(&b, "  return %%h[%d]\n}\n", layers%2)
	return b.String()
}

func BenchmarkCheckTransformer(b *testing.B) {
	prog, p, err := build(parse(b, "transformer.hkt", transformer(32)), ir.Binding{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if r := verify.Plan(p, verify.Options{Prog: prog}); r.Verdict != verify.Proved {
			b.Fatal(r.Diagnostics(prog))
		}
	}
	perCommand(b, p)
}

func perCommand(b *testing.B, p *plan.Plan) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(p.Cmds)), "ns/cmd")
	b.ReportMetric(float64(len(p.Cmds)), "cmds")
}

// chunked is a program with a loop over two streams and two commands in each iteration.
const chunked = `
dim C = 1
dim T = 4
mesh tp[4]
func f(%x: f32[R, 8], %w: f32[8, 8]) -> f32[R, 8] {
  %s = stream[2]
  %y = alloc f32[R, 8]
  for %j in 0..2 { on %s[%j] { wait main } }
  for %i in 0..C {
    on %s[%i mod 2] {
      %xi = chunk %x, axis=0, %i of C
      %yi = chunk %y, axis=0, %i of C
      %p = alloc f32[extent(%xi, 0), 8]
      linear %xi, %w into %p
      all_reduce %p into %yi, over=tp, op=sum
    }
  }
  for %j in 0..2 { wait %s[%j] }
  return %y
}
`

// BenchmarkCheckLoop checks plans of about 1k to 1M commands. The time per command should not grow with the number of
// commands.
func BenchmarkCheckLoop(b *testing.B) {
	for _, cmds := range []int64{1_000, 10_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(cmds), func(b *testing.B) {
			if cmds > 100_000 && testing.Short() {
				b.Skip("a million commands: not in -short")
			}
			n := cmds / 8
			src := chunked
			prog, p, err := build(parse(b, "loop.hkt", src), ir.Binding{Dims: map[string]int64{"C": n, "R": 2 * n}})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if r := verify.Plan(p, verify.Options{Prog: prog}); r.Verdict != verify.Proved {
					b.Fatal(r.Diagnostics(prog))
				}
			}
			perCommand(b, p)
		})
	}
}

// ring is a program that passes blocks around a ring of ranks, some of them by several steps at once.
const ring = `
dim P = 4
dim S = 8
mesh tp[P]
func f(%x: f32[4]) -> f32[S, 4] {
  %comm = stream
  %got = event[S]
  %y = alloc f32[S, 4]
  %y0 = select %y, axis=0, index=0
  copy %x into %y0
  on %comm {
    wait main
    for %i in 1..S {
      %have = select %y, axis=0, index=%i - 1
      %next = select %y, axis=0, index=%i
      group {
        send %have to tp[(rank(tp) + 1) mod P]
        recv %next from tp[(rank(tp) + P - 1) mod P]
      }
      record %got[%i]
    }
  }
  for %i in 1..S {
    wait %got[%i]
    %yi = select %y, axis=0, index=%i
    relu %yi into %yi
  }
  return %y
}
`

func BenchmarkCheckRing(b *testing.B) {
	for _, ranks := range []int{16, 128, 1024} {
		b.Run(fmt.Sprint(ranks), func(b *testing.B) {
			src := strings.Replace(ring, "    relu %yi into %yi\n", "    %z = relu %yi\n", 1)
			prog, p, err := build(parse(b, "ring.hkt", src), ir.Binding{Ranks: ranks, Dims: map[string]int64{"S": 32}})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if r := verify.Plan(p, verify.Options{Prog: prog}); r.Verdict != verify.Proved {
					b.Fatal(r.Diagnostics(prog).String())
				}
			}
			perCommand(b, p)
		})
	}
}
