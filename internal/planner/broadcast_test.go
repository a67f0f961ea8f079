package planner

import (
	"slices"
	"strings"
	"testing"

	_ "hocket.example/hocket/internal/longtest" // collects garbage less often
	"hocket.example/hocket/ir"
)

// TestReadThrough checks which kernels read the operand of a broadcast in place of its result.
func TestReadThrough(t *testing.T) {
	for what, c := range map[string]struct {
		text string
		want []string // rank 1's commands
	}{
		"an inner dimension": {`func f(%x: f32[4, 6], %s: f32[4, 1]) -> f32[4, 6] {
  %b = broadcast %s, shape=(4, 6)
  %n = neg %b
  %y = mul %n, %b
  return %y
}
`, []string{"neg %s f32[4 6] strides [1 0] -> %n f32[4 6]",
			"mul %n f32[4 6], %s f32[4 6] strides [1 0] -> %y f32[4 6]"}},
		"a rank's shard": {`func f(%x: f32[3, 4/tp, 5], %s: f32[3, 1, 5]) -> f32[3, 4/tp, 5] {
  %b = broadcast %s, shape=(3, 4, 5)
  %v = chunk %b, axis=1, rank(tp) of size(tp)
  %k = copy %v
  %l: f32[3, 4/tp, 5] = claim %k
  %y = add %x, %l
  return %y
}
`, []string{"add %x f32[3 2 5], %s f32[3 2 5] strides [5 0 1] -> %y f32[3 2 5]"}},
		"a shard of a larger operand": {`func f(%x: f32[2, 4/tp], %s: f32[1, 4]) -> f32[2, 4/tp] {
  %b = broadcast %s, shape=(2, 4)
  %v = chunk %b, axis=1, rank(tp) of size(tp)
  %k = copy %v
  %l: f32[2, 4/tp] = claim %k
  %y = add %x, %l
  return %y
}
`, []string{"add %x f32[2 2], %s+8 f32[2 2] strides [0 1] -> %y f32[2 2]"}},
		"a broadcast of a broadcast": {`func f(%s: f32[1, 6]) -> f32[2, 4, 6] {
  %a = broadcast %s, shape=(4, 6)
  %b = broadcast %a, shape=(2, 4, 6)
  %y = neg %b
  return %y
}
`, []string{"broadcast %s f32[4 6] strides [0 1] -> %a f32[4 6]",
			"neg %a f32[2 4 6] strides [0 6 1] -> %y f32[2 4 6]"}},
		"a matmul reads it, too": {`func f(%x: f32[4, 6], %s: f32[4, 1]) -> (f32[4, 6], f32[4, 4]) {
  %b = broadcast %s, shape=(4, 6)
  %y = mul %x, %b
  %z = matmul %x, %b, tb=true
  return %y, %z
}
`, []string{"broadcast %s f32[4 6] strides [1 0] -> %b f32[4 6]", "mul %x f32[4 6], %b f32[4 6] -> %y f32[4 6]",
			"matmul tb %x f32[4 6], %b f32[4 6] -> %z f32[4 4]"}},
		"a result": {`func f(%x: f32[4, 6], %s: f32[4, 1]) -> (f32[4, 6], f32[4, 6]) {
  %b = broadcast %s, shape=(4, 6)
  %y = mul %x, %b
  return %y, %b
}
`, []string{"broadcast %s f32[4 6] strides [1 0] -> %b f32[4 6]", "mul %x f32[4 6], %b f32[4 6] -> %y f32[4 6]"}},
		"another shape": {`func f(%x: f32[24], %s: f32[4, 1]) -> f32[24] {
  %b = broadcast %s, shape=(4, 6)
  %r = reshape %b, shape=(24)
  %y = mul %x, %r
  return %y
}
`, []string{"broadcast %s f32[4 6] strides [1 0] -> %b f32[4 6]", "mul %x f32[24], %b f32[24] -> %y f32[24]"}},
		"the operand changes": {`func f(%x: f32[4, 6], %s: inout f32[4, 1]) -> f32[4, 6] {
  %b = broadcast %s, shape=(4, 6)
  neg %s into %s
  %y = mul %x, %b
  return %y
}
`, []string{"broadcast %s f32[4 6] strides [1 0] -> %b f32[4 6]", "neg %s f32[4 1] -> %s f32[4 1]",
			"mul %x f32[4 6], %b f32[4 6] -> %y f32[4 6]"}},
		"another stream": {`func f(%x: f32[4, 6], %s: f32[4, 1]) -> f32[4, 6] {
  %st = stream
  %y = alloc f32[4, 6]
  %b = broadcast %s, shape=(4, 6)
  on %st {
    wait main
    mul %x, %b into %y
  }
  wait %st
  return %y
}
`, []string{"broadcast %s f32[4 6] strides [1 0] -> %b f32[4 6]", "mul %x f32[4 6], %b f32[4 6] -> %y f32[4 6]"}},
	} {
		p, _ := mustPlan(t, "mesh tp[2]\n"+c.text, ir.Binding{})
		var got []string
		for _, l := range lines(p, 1) {
			stream, l, _ := strings.Cut(l, " ")
			if kind, _, _ := strings.Cut(l, " "); stream != "" && !slices.Contains([]string{"output", "record", "wait"}, kind) {
				got = append(got, l)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got  %q\n want %q", what, got, c.want)
		}
		for _, b := range p.Buffers { // a removed result takes no memory
			if uses := strings.Contains(strings.Join(got, "\n"), "%"+b.Name+" "); !uses && b.Name == "b" && b.Bytes > 0 {
				t.Errorf("%s: %%%s has %d bytes", what, b.Name, b.Bytes)
			}
		}
	}
}
