package verify_test

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// programCase is a small program with the expected result: words of the first finding, or an empty string for a proof.
type programCase struct {
	name, src string
	dims      map[string]int64
	words     []string
	warning   bool
}

var programCases = []programCase{
	{name: "one stream needs nothing", src: `
func f(%x: f32[4]) -> f32[4] {
  %a = relu %x
  %b = add %a, %x
  return %b
}`},
	{name: "zero extents", dims: map[string]int64{"T": 0}, src: `
dim T = 4
mesh tp[2]
func f(%x: f32[T]) -> f32[T] {
  %s = stream
  %y = alloc f32[T]
  on %s { add %x, %x into %y }
  return %y
}`},
	{name: "not joined", words: []string{"the caller's use of the result %y",
		"join it: wait %s on main before the return"}, src: `
func f(%x: f32[4]) -> f32[4] {
  %s = stream
  %y = alloc f32[4]
  on %s {
    wait main
    add %x, %x into %y
  }
  return %y
}`},
	{name: "the input is overwritten while a worker reads it",
		words: []string{"the caller's upload of %x", "next run", "join it: wait %s"}, src: `
func f(%x: f32[4]) -> f32[4] {
  %s = stream
  %y = alloc f32[4]
  %z = alloc f32[4]
  on %s {
    wait main
    relu %x into %z
  }
  add %x, %x into %y
  return %y
}`},
	{name: "halves of one buffer", src: `
func f(%x: f32[8]) -> f32[8] {
  %s = stream[2]
  %y = alloc f32[8]
  for %i in 0..2 { on %s[%i] { wait main } }
  for %i in 0..2 {
    on %s[%i] {
      %a = chunk %x, axis=0, %i of 2
      %b = chunk %y, axis=0, %i of 2
      relu %a into %b
    }
  }
  for %i in 0..2 { wait %s[%i] }
  return %y
}`},
	{name: "columns and columns", src: `
func f(%x: f32[8, 6]) -> f32[8, 6] {
  %s = stream[3]
  %y = alloc f32[8, 6]
  for %i in 0..3 { on %s[%i] { wait main } }
  for %i in 0..3 {
    on %s[%i] {
      %a = chunk %x, axis=1, %i of 3
      %b = chunk %y, axis=1, %i of 3
      relu %a into %b
    }
  }
  for %i in 0..3 { wait %s[%i] }
  return %y
}`},
	{name: "a column and a row", words: []string{"may run at the same time", "one writes %y, the other writes %y"},
		src: `
func f(%x: f32[6]) -> f32[6, 6] {
  %s = stream
  %y = alloc f32[6, 6]
  fill into %y, value=0
  on %s { wait main }
  on %s {
    %c = select %y, axis=1, index=2
    relu %x into %c
  }
  %r = select %y, axis=0, index=4
  relu %x into %r
  wait %s
  return %y
}`},
	{name: "never written", words: []string{"reads bytes of %y that were never written"}, src: `
func f(%x: f32[4]) -> f32[8] {
  %y = alloc f32[8]
  %h = chunk %y, axis=0, 0 of 2
  relu %x into %h
  return %y
}`},
	{name: "zeros", src: `
func f(%x: f32[4]) -> f32[8] {
  %y = alloc f32[8] zero
  %h = chunk %y, axis=0, 0 of 2
  relu %x into %h
  return %y
}`},
	{name: "a shifted copy onto itself", words: []string{"reads bytes of %y that it writes itself"}, src: `
func f(%x: f32[6]) -> f32[6] {
  %y = alloc f32[6]
  relu %x into %y
  %a = slice %y, axis=0, 0..5
  %b = slice %y, axis=0, 1..6
  relu %a into %b
  return %y
}`},
	{name: "in place", src: `
func f(%x: f32[6]) -> f32[6] {
  %y = alloc f32[6]
  relu %x into %y
  relu %y into %y
  return %y
}`},
	{name: "a broadcast is no barrier", words: []string{"may run at the same time", "next run"}, src: `
mesh tp[2]
func f(%x: f32[4]) -> f32[4] {
  %s = stream
  %y = alloc f32[4] symmetric
  %z = alloc f32[4]
  broadcast %x into %z, over=tp, root=0
  if rank(tp) == 0 {
    put %x into %y at tp[1]
  }
  barrier over=tp
  relu %y into %z
  return %z
}`},
	{name: "credits in place of a barrier", src: `
mesh tp[2]
func f(%x: f32[4]) -> f32[4] {
  %full = counter
  %free = counter
  %y = alloc f32[4] symmetric
  %z = alloc f32[4]
  let %peer = 1 - rank(tp)
  signal %free at tp[%peer]
  wait %free >= 1
  put %x into %y at tp[%peer]
  signal %full at tp[%peer]
  wait %full >= 1
  relu %y into %z
  return %z
}`},
	{name: "a credit too early", words: []string{"may run at the same time"}, src: `
mesh tp[2]
func f(%x: f32[4]) -> f32[4] {
  %full = counter
  %y = alloc f32[4] symmetric
  %z = alloc f32[4]
  let %peer = 1 - rank(tp)
  put %x into %y at tp[%peer]
  signal %full at tp[%peer]
  wait %full >= 1
  relu %y into %z
  return %z
}`},
	{name: "to itself, in a group", src: `
mesh tp[2]
func f(%x: f32[4]) -> f32[4] {
  %y = alloc f32[4]
  group {
    send %x to tp[rank(tp)]
    recv %y from tp[rank(tp)]
  }
  return %y
}`},
	{name: "a group whose recv writes what it sends", words: []string{"reads bytes of %y that it writes itself"}, src: `
mesh tp[2]
func f(%x: f32[4]) -> f32[4] {
  %y = alloc f32[4]
  copy %x into %y
  group {
    send %y to tp[1 - rank(tp)]
    recv %y from tp[1 - rank(tp)]
  }
  return %y
}`},
	{name: "only side by side", warning: true, words: []string{"depends on streams that run concurrently"},
		src: `
mesh tp[2]
func f(%x: f32[4]) -> f32[4] {
  %s = stream
  %c = counter
  wait %c >= 1
  on %s { signal %c at tp[1 - rank(tp)] }
  return %x
}`},
	{name: "more streams than iterations", src: `
dim C = 1
func f(%x: f32[4]) -> f32[4] {
  %y = alloc f32[4]
  for %i in 0..C stream(5) {
    relu %x into %y
  }
  return %y
}`},
	{name: "two iterations of one buffer",
		words: []string{"%i[0], iteration 0", "%i[1], iteration 1", "may run at the same time"}, src: `
func f(%x: f32[4]) -> f32[4] {
  %y = alloc f32[4]
  for %i in 0..2 stream(2) {
    relu %x into %y
  }
  return %y
}`},
	{name: "a view with many strides", src: `
func f(%x: f32[3, 3, 3, 3, 3]) -> f32[3, 3, 3, 3, 3] {
  %s = stream
  %y = alloc f32[3, 3, 3, 3, 3]
  %a = slice %y, axis=0, 0..2
  %b = slice %a, axis=1, 0..2
  %c = slice %b, axis=2, 0..2
  %d = slice %c, axis=3, 0..2
  %e = slice %d, axis=4, 0..2
  fill into %y, value=0
  relu %e into %e
  add %x, %y into %y
  return %y
}`},
}

func TestPrograms(t *testing.T) {
	for _, c := range programCases {
		t.Run(c.name, func(t *testing.T) {
			prog, p, err := build(parse(t, "case.hkt", c.src), ir.Binding{Dims: c.dims})
			if err != nil {
				t.Fatal(err)
			}
			r := verify.Plan(p, verify.Options{Prog: prog})
			said := r.Diagnostics(prog).String()
			want := verify.Proved
			if len(c.words) > 0 && !c.warning {
				want = verify.Refuted
			}
			if r.Verdict != want || c.warning == r.SerialSafe || len(c.words) == 0 && said != "" {
				t.Fatalf("%v (%s), serial-safe %v, want %v\n%s", r.Verdict, r.Reason, r.SerialSafe, want, said)
			}
			for _, w := range c.words {
				if !strings.Contains(said, w) {
					t.Errorf("it does not say %q:\n%s", w, said)
				}
			}
		})
	}
}

// TestRaggedViewsAreUndecided checks that two tensors that may or may not overlap never cause a refutation or a proof:
// the verdict is unknown.
func TestRaggedViewsAreUndecided(t *testing.T) {
	_, p, err := build(parse(t, "ragged.hkt", `
func f(%x: f32[4, 4, 4, 4, 4]) -> f32[4, 4, 4, 4, 4] {
  %s = stream[2]
  %y = alloc f32[4, 4, 4, 4, 4]
  for %i in 0..2 { on %s[%i] { wait main } }
  for %i in 0..2 {
    on %s[%i] {
      %a = slice %y, axis=0, 0..3
      %b = slice %a, axis=1, 0..3
      %c = slice %b, axis=2, 0..3
      %d = slice %c, axis=3, 0..3
      %e = slice %d, axis=4, 2 * %i..2 * %i + 1
      fill into %e, value=1
    }
  }
  for %i in 0..2 { wait %s[%i] }
  copy %x into %y
  return %y
}`), ir.Binding{})
	if err != nil {
		t.Fatal(err)
	}
	if r := verify.Plan(p, verify.Options{}); r.Verdict != verify.Unknown || r.Reason == "" {
		t.Errorf("%v (%s), want unknown", r.Verdict, r.Reason)
	}
}
