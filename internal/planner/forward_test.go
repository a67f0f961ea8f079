package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestForward checks kernels whose result is only copied: they write it directly to the destination of the copy, unless
// a command between kernel and copy would see a difference.
func TestForward(t *testing.T) {
	for what, c := range map[string]struct {
		text string
		want []string // rank 0's commands
	}{
		"a slot of a cache": {`  %k = relu %x
  %slot = slice %kept, axis=0, 4..6
  copy %k into %slot
`, []string{"main compute relu"}},
		"by another shape": {`  %k = relu %x
  %r = reshape %k, shape=(1, 8)
  %slot = slice %kept, axis=0, 2..4
  %s = reshape %slot, shape=(1, 8)
  copy %r into %s
`, []string{"main compute relu"}},
		"of two": {`  %k = relu %x
  %v = neg %x
  %a = slice %kept, axis=0, 0..2
  %b = slice %kept, axis=0, 6..8
  copy %k into %a
  copy %v into %b
`, []string{"main compute relu", "main compute neg"}},
		"read by another, too": {`  %k = relu %x
  %slot = slice %kept, axis=0, 4..6
  copy %k into %slot
  %z = add %k, %x
  copy %z into %y
`, []string{"main compute relu", "main copy %k", "main compute add"}},
		"in part": {`  %k = relu %x
  %half = slice %k, axis=0, 0..1
  %slot = slice %kept, axis=0, 4..5
  copy %half into %slot
`, []string{"main compute relu", "main copy %k"}},
		"with gaps": {`  %k = relu %x
  %slot = slice %wide, axis=1, 0..4
  copy %k into %slot
`, []string{"main compute relu", "main copy %k"}},
		"read between": {`  %k = relu %x
  %slot = slice %kept, axis=0, 4..6
  %z = neg %slot
  copy %z into %y
  copy %k into %slot
`, []string{"main compute relu", "main compute neg", "main copy %k"}},
		"written between": {`  %k = relu %x
  %slot = slice %kept, axis=0, 4..6
  copy %x into %slot
  copy %k into %slot
`, []string{"main compute relu", "main copy %x", "main copy %k"}},
		"read by the kernel itself": {`  %slot = slice %kept, axis=0, 4..6
  %k = add %x, %slot
  copy %k into %slot
`, []string{"main compute add", "main copy %k"}},
		"behind a wait": {`  %s = stream
  %slot = slice %kept, axis=0, 4..6
  on %s { copy %slot into %y }
  %k = relu %x
  wait %s
  copy %k into %slot
`, []string{"s copy %kept", "main compute relu", "main copy %k"}},
		"by another stream": {`  %s = stream
  %slot = slice %kept, axis=0, 4..6
  %k = relu %x
  on %s {
    wait main
    copy %k into %slot
  }
  wait %s
`, []string{"main compute relu", "s copy %k"}},
		"an alloc of the program's": {`  %k = alloc f32[2, 4]
  relu %x into %k
  %slot = slice %kept, axis=0, 4..6
  copy %k into %slot
`, []string{"main compute relu", "main copy %k"}},
		"at 8 bytes": {`  %k = relu %x
  %slot = slice %flat, axis=0, 2..10
  %r = reshape %k, shape=(8)
  copy %r into %slot
`, []string{"main compute relu", "main copy %k"}},
	} {
		text := fmt.Sprintf(`mesh tp[1]
func f(%%x: f32[2, 4], %%kept: inout f32[8, 4], %%wide: inout f32[2, 8], %%flat: inout f32[16]) -> f32[2, 4] {
  %%y = alloc f32[2, 4]
%s  return %%y
}
`, c.text)
		p, _ := mustPlan(t, text, ir.Binding{})
		var got []string
		for _, l := range lines(p, 0) {
			words := strings.Fields(strings.NewReplacer("+", " ", "%s ", "s ").Replace(l))
			if slices.Contains([]string{"output", "record", "wait"}, words[1]) {
				continue
			}
			if words[1] != "copy" {
				words = append([]string{words[0], "compute"}, words[1:]...)
			}
			got = append(got, strings.Join(words[:3], " "))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n got  %q\n want %q\n%s", what, got, c.want, p)
		}
	}
}
