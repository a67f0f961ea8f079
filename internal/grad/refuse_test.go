package grad_test

import (
	"errors"
	"strings"
	"testing"

	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// TestRefusals checks that each program is refused with a position, a message and a help text.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, src, message string
		line               int32
	}{
		{"inout", "func f(%s: inout f64[4], %x: f64[4]) -> f64[4] {\n  %y = exp %x\n  return %y\n}", "%s is inout", 1},
		{"taken by a value", "func f(%x: f64[4]) -> f64[4] {\n  %dx = exp %x\n  return %dx\n}", "already uses this name", 1},
		{"taken by a parameter", "func f(%x: f64[4], %dy: f64[4]) -> f64[4] {\n  %y = exp %x\n  return %y\n}",
			"already uses this name", 1},
		{"a parameter and a result", "func f(%x: f64[4], %w: f64[4]) -> (f64[4], f64[4]) {\n  %y = mul %x, %w\n  return %x, %y\n}",
			"%x is a parameter and a result, and both gradients would be %dx", 1},
		{"written in parts", "func f(%x: f64[4]) -> f64[8] {\n  %b = alloc f64[8] zero\n  %p = slice %b, axis=0, 0..4\n  exp %x into %p\n" +
			"  %y: f64[8] = claim %b\n  return %y\n}", "written in parts", 4},
		{"on a stream", "func f(%x: f64[4]) -> f64[4] {\n  %b = alloc f64[4]\n  %s = stream\n  on %s {\n    wait main\n" +
			"    exp %x into %b\n  }\n  wait %s\n  return %b\n}", "on another stream", 6},
		{"overwritten", "func f(%x: f64[4]) -> f64[4] {\n  %b = alloc f64[4]\n  neg %x into %b\n  sin %b into %b\n" +
			"  return %b\n}", "overwritten", 4},
		{"overwritten later", "func f(%x: f64[4]) -> (f64[4], f64[4]) {\n  %b = alloc f64[4]\n  exp %x into %b\n" +
			"  %c = mul %b, %b\n  neg %b into %b\n  return %c, %b\n}", "overwritten", 3},
		{"a part of what is overwritten", "func f(%x: f64[4]) -> f64[2] {\n  %b = alloc f64[4]\n  exp %x into %b\n" +
			"  %p = slice %b, axis=0, 0..2\n  neg %b into %b\n  %y = neg %p\n  return %y\n}", "written after the part is taken", 4},
		{"launch", "func f(%x: f32[4]) -> f32[4] {\n  %b = alloc f32[4]\n" +
			"  launch \"k.ptx\":k(%x, into %b), grid=1, block=4\n  return %b\n}", "no backward kernel", 3},
		{"claimed in a loop", "func f(%x: f64[4]) -> f64[4] {\n  %y = for %i in 0..2 carry %h = %x {\n    %b = alloc f64[4]\n" +
			"    exp %h into %b\n    %z: f64[4] = claim %b\n    yield %z\n  }\n  return %y\n}", "claimed in a loop", 5},
		{"a maximum over ranks", "mesh tp[2]\nfunc f(%x: f64[4]) -> f64[4] {\n  %b = alloc f64[4]\n" +
			"  all_reduce %x into %b, over=tp, op=max\n  return %b\n}", "for sums", 4},
		{"by a peer", "mesh tp[2]\nfunc f(%x: f64[4]) -> f64[4] {\n  %b = alloc f64[4] symmetric\n  barrier over=tp\n" +
			"  put %x into %b at tp[1 - rank(tp)]\n  barrier over=tp\n  %y: f64[4] = claim %b\n  return %y\n}",
			"by a peer", 5},
		{"lengths", "func f(%q: f64[2, 1, 4], %n: i32[2]) -> f64[2, 1, 4] {\n  %y = attention %q, %q, %q, %n\n  return %y\n}", "with lengths", 2},
		{"window", "func f(%q: f64[2, 1, 4]) -> f64[2, 1, 4] {\n  %y = attention %q, %q, %q, causal=true, window=1\n  return %y\n}", "with window=", 2},
		{"soft cap", "func f(%q: f64[2, 1, 4]) -> f64[2, 1, 4] {\n  %y = attention %q, %q, %q, softcap=2\n  return %y\n}", "with softcap=", 2},
		{"8 bits", "func f(%x: f32[4, 4], %w: f8e4m3[4, 4]) -> f32[4, 4] {\n  %v: f32[4, 4] = cast %w\n  %c: f8e5m2[4, 4] = cast %x\n" +
			"  %d: f32[4, 4] = cast %c\n  %y = linear %d, %v\n  return %y\n}", "too imprecise for gradients", 3},
		{"ragged", "func f(%x: f64[5], %z: f64[1]) -> f64[1] {\n  %y = for %i in 0..2 carry %h = %z {\n    %c = chunk %x, axis=0, %i of 2\n" +
			"    %e = exp (mul %c, %c)\n    %s = sum (mul %e, %e), axis=0\n    %r = reshape %s, shape=(1)\n    %k = add %h, %r\n    yield %k\n  }\n  return %y\n}", "differs between iterations", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, ds := checker.Read("test.hkt", c.src)
			if ds.HasErrors() {
				t.Fatal(ds)
			}
			_, err := grad.Of(in, grad.Options{})
			if !errors.As(err, &ds) || len(ds) == 0 {
				t.Fatalf("it is not refused: %v", err)
			}
			if d := ds[0]; d.Pos.Line != c.line || !strings.Contains(d.Message, c.message) || d.Help == "" {
				t.Errorf("%s%s", d, c.src)
			}
		})
	}
}

// TestWhatNeedsNoGradientIsLeft checks that statements without gradients are accepted if no differentiated result
// depends on them.
func TestWhatNeedsNoGradientIsLeft(t *testing.T) {
	text := gradient(t, `func f(%x: f64[4], %s: f64[4], %i: i32[4]) -> (f64[4], f64[4], i32[4]) {
  %b = alloc f64[4]
  exp %s into %b
  %c: f64[4] = claim %b
  %y = mul %x, %c
  %z = floor %x
  %j = neg %i
  return %y, %z, %j
}`, grad.Options{Wrt: []string{"x"}})
	for _, want := range []string{"%dx = mul %dy, %c", "%dz: f64[4]", "return %y, %z, %j, %dx"} {
		if !strings.Contains(strings.ReplaceAll(text, ": f64[4] = mul", " = mul"), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// TestEveryRuleIsRead checks the formulas in the Op table: an elementwise operation has one formula for each operand,
// and formulas use only operations that exist.
func TestEveryRuleIsRead(t *testing.T) {
	for _, op := range ir.Ops() {
		info := op.Info()
		if info.Gradients != nil && len(info.Gradients) != info.MaxArgs {
			t.Errorf("%s has %d rules for %d operands", op, len(info.Gradients), info.MaxArgs)
		}
		if has := info.Gradients != nil; has != (info.Elementwise && op != ir.OpCast && op != ir.OpFill) {
			t.Errorf("%s: its row has rules: %v", op, has)
		}
	}
}
