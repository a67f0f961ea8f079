package verify_test

import (
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// claimsOf returns the findings of Claims for a lowered program.
func claimsOf(t testing.TB, src string, b ir.Binding) ir.Diagnostics {
	t.Helper()
	info, ds := checker.Check(parse(t, "claims.hkt", src))
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, src)
	}
	unit, err := compile.Build(info, compile.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, src)
	}
	bound, ds := ir.Bind(unit.Lowered.Info, b)
	if ds.HasErrors() {
		t.Fatalf("%s\n%s", ds, src)
	}
	return verify.Claims(bound, info.Prog)
}

// TestClaims checks that Claims reports nothing for correct claims, including some that appear wrong. For a wrong
// claim, Claims must report an error at the word "claim" (or at the word that the test case names) and a note at a
// "local".
func TestClaims(t *testing.T) {
	const head = `mesh dp[2] tp[4]

func f(%x: f32[8, 16/tp], %w: f32[6, 16/tp], %r: f32[8, 6], %s: f32[8/tp, 6]) -> f32[8, 6] {
`
	const sums = `  %xl = local %x
  %wl = local %w
  %y = alloc f32[8, 6]
  linear %xl, %wl into %y
`
	const end = `  %z: f32[8, 6] = claim %y
  return %z
}
`
	const again = `  %q = alloc f32[8, 6]
  copy %y into %q
  all_reduce %y into %y, over=tp, op=sum
  %z: f32[8, 6] = claim %y
  %zl = local %z
  %p = alloc f32[8, 6]
`
	const last = `  %v: f32[8, 6] = claim %p
  return %v
}
`
	for _, c := range []struct {
		name, src string
		at        string // the word of the text at which the error must be; empty for correct programs
	}{
		{"a sum of the own part", head + sums + end, "claim %y"},
		{"reduced", head + sums + `  all_reduce %y into %y, over=tp, op=sum
` + end, ""},
		{"reduced along the other axis only", head + sums + `  all_reduce %y into %y, over=dp, op=sum
` + end, "claim %y"},
		{"reduced along both", head + sums + `  all_reduce %y into %y, over=(dp, tp), op=sum
` + end, ""},
		{"reduced before the bias", head + sums + `  all_reduce %y into %y, over=tp, op=sum
  %rl = local %r
  add %y, %rl into %y
` + end, ""},
		{"the bias alone", head + sums + `  %rl = local %r
  add %y, %rl into %y
` + end, "claim %y"},
		{"claimed partial", head + sums + `  %z: f32[8, 6] partial(tp, sum) = claim %y
  return %z
}
`, ""},
		{"claimed split", head + sums + `  %z: f32[8, 24/tp] = claim %y
  return %r
}
`, ""},
		{"returned", head + sums + `  return %y
}
`, "%y\n}"},
		{"overwritten", head + sums + `  fill into %y, value=1
` + end, ""},
		{"partly overwritten", head + sums + `  %p = slice %y, axis=0, 0..2
  fill into %p, value=1
` + end, ""},
		{"times nothing", head + sums + `  scale %y into %y, by=0
` + end, ""},
		{"halved", head + sums + `  scale %y into %y, by=0.5
` + end, "claim %y"},
		{"less itself", head + sums + `  sub %y, %y into %y
` + end, ""},
		{"less a copy of itself", head + sums + `  %c = alloc f32[8, 6]
  neg %y into %c
  add %c, %y into %y
` + end, ""},
		{"positive, negated, relu", head + sums + `  exp %y into %y
  neg %y into %y
  relu %y into %y
` + end, ""},
		{"a square, negated, relu", head + sums + `  mul %y, %y into %y
  neg %y into %y
  relu %y into %y
` + end, ""},
		{"a square", head + sums + `  mul %y, %y into %y
  relu %y into %y
` + end, "claim %y"},
		{"relu", head + sums + `  relu %y into %y
` + end, "claim %y"},
		{"ranks exchange what they have", head + sums + `  %o = alloc f32[8, 6]
  for %i in 1..4 {
    group {
      send %y to tp[(rank(tp) + %i) mod 4]
      recv %o from tp[(rank(tp) + 4 - %i) mod 4]
    }
    add %y, %o into %y
  }
` + end, ""},
		{"peers write it", head + `  %xl = local %x
  %wl = local %w
  %y = alloc f32[8, 6] symmetric
  %p = alloc f32[8, 6]
  linear %xl, %wl into %p
  barrier over=tp
  copy %p into %y
  barrier over=tp
  if rank(tp) == 0 {
    for %i in 1..4 {
      put %y into %y at tp[%i]
    }
  }
  barrier over=tp
` + end, ""},
		{"one rank sends, others receive", head + `  %y = alloc f32[8, 6]
  %xl = local %x
  %wl = local %w
  if rank(tp) == 0 {
    linear %xl, %wl into %y
    for %i in 1..4 {
      send %y to tp[%i]
    }
  } else {
    %t = alloc f32[8, 6]
    recv %t from tp[0]
    copy %t into %y
  }
` + end, ""},
		{"gathered and summed", head + sums + `  %g = alloc f32[32, 6]
  all_gather %y into %g, over=tp
  %g4 = reshape %g, shape=(4, 8, 6)
  sum %g4 into %y, axis=0
` + end, ""},
		{"a wrong sum after a right one", head + sums + again + `  add %zl, %q into %p
` + last, "claim %p"},
		{"a sum less the own part, and the own part",
			head + sums + again + `  sub %zl, %q into %p
  add %p, %q into %p
` + last, ""},
		{"in chunks", head + `  %y = alloc f32[8, 6]
  %xl = local %x
  %wl = local %w
  for %i in 0..2 {
    %xi = chunk %xl, axis=0, %i of 2
    %yi = chunk %y, axis=0, %i of 2
    linear %xi, %wl into %yi
  }
` + end, "claim %y"},
		{"in chunks of the sum", head + `  %y = alloc f32[8, 6]
  %p = alloc f32[8, 6]
  %xl = local %x
  %wl = local %w
  fill into %y, value=0
  for %i in 0..2 {
    %xi = chunk %xl, axis=1, %i of 2
    %wi = chunk %wl, axis=1, %i of 2
    linear %xi, %wi into %p
    add %y, %p into %y
  }
` + end, "claim %y"},
		{"in no chunks", head + `  %y = alloc f32[8, 6]
  %xl = local %x
  %wl = local %w
  fill into %y, value=0
  for %i in 0..0 {
    linear %xl, %wl into %y
  }
` + end, ""},
		{"of nothing", head + `  %y = alloc f32[8, 6]
  %xl = local %x
  %wl = local %w
  %xi = slice %xl, axis=1, 2..2
  %wi = slice %wl, axis=1, 2..2
  linear %xi, %wi into %y
` + end, ""},
		{"a block of a value", head + `  %xl = local %x
  %v = relu %w
  %vl = local %v
  %y = alloc f32[8, 6]
  linear %xl, %vl into %y
` + end, "claim %y"},
		{"equal blocks of a value", `mesh tp[4]
func f(%x: f32[6]) -> f32[2, 6] {
  %v: f32[8/tp, 6] = broadcast %x, shape=(8, 6)
  %vl = local %v
  %y = alloc f32[2, 6]
  copy %vl into %y
  %z: f32[2, 6] = claim %y
  return %z
}
`, ""},
		{"one rank", `mesh tp[1]
func f(%x: f32[6/tp]) -> f32[6] {
  %xl = local %x
  %y = alloc f32[6]
  copy %xl into %y
  %z: f32[6] = claim %y
  return %z
}
`, ""},
		{"a softmax of one", `mesh tp[4]
func f(%x: f32[6, 4/tp]) -> f32[6, 1] {
  %xl = local %x
  %y = alloc f32[6, 1]
  softmax %xl into %y
  %z: f32[6, 1] = claim %y
  return %z
}
`, ""},
		{"carried by a loop", `mesh tp[4]
func f(%x: f32[8, 8], %w: f32[3, 8, 8], %u: f32[3, 8, 8/tp]) -> f32[8, 8] {
  %y = for %l in 0..3 carry %h = %x {
    %hc: f32[8, 8/tp] = reshard %h
    %ul = select %u, axis=0, index=%l
    %a = local %hc
    %b = local %ul
    %p = alloc f32[8, 8]
    linear %a, %b into %p
    %z: f32[8, 8] = claim %p
    yield %z
  }
  return %y
}
`, "claim %p"},
		{"in a function", `mesh tp[4]
func g(%x: f32[8, 8/tp], %w: f32[6, 8/tp], %y: inout f32[8, 6]) {
  %a = local %x
  %b = local %w
  linear %a, %b into %y
}

func f(%x: f32[8, 8/tp], %w: f32[6, 8/tp]) -> f32[8, 6] {
  %y = alloc f32[8, 6]
  call g %x, %w, %y
  all_reduce %y into %y, over=tp, op=sum
  return %y
}
`,
			"%y: inout"},
		{"of a smaller mesh", `mesh tp[4]
mesh d[2] = {1 3}
func f(%x: f32[8, 8/d] @d) -> f32[8, 4] @d {
  %a = local %x
  %y = alloc f32[8, 4]
  copy %a into %y
  %z: f32[8, 4] @d = claim %y
  return %z
}
`, "claim %y"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds := claimsOf(t, c.src, ir.Binding{})
			if c.at == "" {
				if len(ds) > 0 {
					t.Errorf("%s\n%s", ds, c.src)
				}
				return
			}
			if len(ds) != 1 || ds[0].Kind != verify.KindClaim || !ds.HasErrors() {
				t.Fatalf("want one error, got %v\n%s", ds, c.src)
			}
			before, _, _ := strings.Cut(c.src, c.at)
			line, column := 1+strings.Count(before, "\n"), len(before)-strings.LastIndex(before, "\n")
			if d := ds[0]; fmt.Sprint(d.Pos.Line, d.Pos.Col) != fmt.Sprint(line, column) {
				t.Errorf("the error is at %d:%d, want %d:%d\n%s", d.Pos.Line, d.Pos.Col, line, column, ds)
			}
			if d := ds[0]; len(d.Notes) != 1 ||
				!strings.Contains(strings.Split(c.src, "\n")[d.Notes[0].Pos.Line-1], "= local ") {
				t.Errorf("want a note at a local: %s", ds)
			}
		})
	}
}
