package eval

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// TestRefusals evaluates programs whose errors only an execution can detect.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, body, kind string
		words            []string
	}{
		{"unwritten", `
  %b = alloc f32[4]
  %half = slice %b, axis=0, 0..2
  fill value=1 into %half
  copy %b into %y`, "lifetime", []string{"rank 0", "%b[2]", "no statement has written"}},
		{"unwritten result", ``, "lifetime", []string{"%y[0]"}},
		{"deadlock on a counter", `
  %c = counter[2]
  if rank(tp) == 0 { wait %c[1] >= 1 }
  copy %x into %y`, "deadlock", []string{"rank 0, main: wait waits for %c[1] to reach 1; it is 0"}},
		{"deadlock of two ranks", `
  %a = alloc f32[4]
  send %x to tp[(rank(tp) + 1) mod 2]
  recv %a from tp[(rank(tp) + 1) mod 2]
  copy %a into %y`, "deadlock", []string{"rank 0, main: send waits for rank 1 to post the matching recv",
			"rank 1, main: send waits for rank 0"}},
		{"a rank stays away", `
  %a = alloc f32[4]
  all_reduce %x into %a, over=tp, op=sum
  %b = alloc f32[4]
  broadcast %a into %b, over=tp, root=0
  %c = counter
  if rank(tp) == 1 { wait %c >= 1 }
  barrier over=tp
  copy %a into %y`, "deadlock", []string{"rank 0, main: barrier waits for rank 1 to reach this barrier",
			"rank 1, main: wait waits for %c[0]"}},
		{"crossed collectives", `
  %a = alloc f32[4]
  %s = stream[2]
  if rank(tp) == 0 {
    on %s[0] { all_reduce %x into %a, over=tp, op=sum }
  } else {
    on %s[0] { all_reduce %x into %a, over=tp, op=max }
  }
  wait %s[0]
  copy %a into %y`, "match", []string{"all_reduce"}},
		{"never recorded", `
  %e = event[2]
  record %e[0]
  wait %e[1]
  copy %x into %y`, "match", []string{"no earlier statement records"}},
		{"chunk out of range", `
  for %i in 0..3 {
    %a = chunk %x, axis=0, %i of 2
    %b = chunk %y, axis=0, %i of 2
    copy %a into %b
  }`, "bind", []string{"no chunk 2 of 2"}},
		{"element out of range", `
  %b = alloc[2] f32[4]
  let %i = 1 + size(tp)
  copy %x into %b[%i - 1]
  copy %b[2] into %y`, "bind", []string{"outside %b", "2 elements"}},
		{"no such peer", `
  %b = alloc f32[4] symmetric
  put %x into %b at tp[rank(tp) + 1]
  copy %x into %y`, "bind", []string{"rank 1 has no peer tp[2]"}},
		{"ranks disagree", `
  scale %x, by=rank(tp) + 1 into %y`, "layout", []string{"ranks 0 and 1"}},
		{"permute disagrees", `
  permute %x into %y, over=tp, to=rank(tp), from=(rank(tp) + 1) mod 2`, "match", []string{"whose to= names"}},
		{"used after free", `
  %b = alloc[2] f32[4]
  copy %x into %b[0]
  free %b[0]
  copy %b[0] into %y`, "lifetime", []string{"freed"}},
		{"too much memory", `
  %b = alloc f32[1073741824, 1024, 1024]
  fill value=0 into %b
  copy %x into %y`, "limit", []string{"limit"}},
		{"too many iterations", `
  for %i in 0..4611686018427387904 { }
  copy %x into %y`, "limit", []string{"more than 1000 statements"}},
		{"too many elements", `
  %e = event[4611686018427387904]
  copy %x into %y`, "limit", []string{"more than 1000 statements"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := "mesh tp[2]\nfunc f(%x: f32[4]) -> f32[4] {\n  %y = alloc f32[4]" + c.body + "\n  return %y\n}\n"
			d := refusal(t, src, ir.Binding{}, Options{MaxStatements: 1000})
			if d.Kind != c.kind {
				t.Errorf("kind %q, want %q", d.Kind, c.kind)
			}
			for _, w := range c.words {
				if !strings.Contains(d.String(), w) {
					t.Errorf("%q is not in\n%v", w, d)
				}
			}
		})
	}
}

func TestAbsent(t *testing.T) {
	const src = `
mesh all[2]
mesh a[1] = {0}
func f(%x: f32[4] @a) -> f32[4] {
  %y = alloc f32[4]
  copy %x into %y
  return %y
}`
	d := refusal(t, src, ir.Binding{}, Options{})
	if !strings.Contains(d.Message, "rank 1") || !strings.Contains(d.Message, "%x") {
		t.Errorf("the error does not name rank and value: %v", d)
	}
}

func TestInputs(t *testing.T) {
	b := bind(t, "func f(%x: f32[4]) -> f32[4] {\n  return %x\n}\n", ir.Binding{})
	good, short := tensorOf(t, ir.F32, []int64{4}, 1, 2, 3, 4), tensorOf(t, ir.F32, []int64{3}, 1, 2, 3)
	for name, in := range map[string]map[string]*tensor.Tensor{
		"missing": {}, "wrong shape": {"x": short}, "one too many": {"x": good, "z": good}, "nil": {"x": nil},
	} {
		if _, err := Run(context.Background(), b, in, Options{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	loop := bind(t, "func f(%x: f32[4]) -> f32[4] {\n  for %i in 0..100000 { let %j = %i }\n  return %x\n}\n",
		ir.Binding{})
	if _, err := Run(ctx, loop, map[string]*tensor.Tensor{"x": good}, Options{}); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}

func TestOutputNames(t *testing.T) {
	for src, want := range map[string]string{
		"func f(%x: f32[4]) -> f32[4] {\n  return %x\n}\n":                                 "[x]",
		"func f(%x: f32[4]) -> (f32[4], f32[4]) {\n  return %x, %x\n}\n":                   "[out.0 out.1]",
		"func f(%x: inout f32[4]) -> f32[4] {\n  return %x\n}\n":                           "[out x]",
		"func f(%x: f32[4], %z: inout f32[4]) -> (f32[4], f32[4]) {\n  return %x, %z\n}\n": "[x out.1 z]",
		"func f(%z: inout f32[4]) {\n  relu %z into %z\n}\n":                               "[z]",
	} {
		p, ds := ir.Parse("test.hkt", src)
		if ds.HasErrors() {
			t.Fatal(ds.String())
		}
		if got := fmt.Sprint(ir.OutputNames(p.Funcs[0])); got != want {
			t.Errorf("%s: %s, want %s", src, got, want)
		}
	}
}
