package trace

import (
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestLettersKeepTheirMeaning checks that every communicating operation has a fixed letter, that no two operations have
// the same letter, and that an operation without a fixed letter gets a letter that no other operation has. There are
// more operations that compute than letters.
func TestLettersKeepTheirMeaning(t *testing.T) {
	of := map[rune]string{'·': "wait", '.': "wait", '─': "waiting for peers", '-': "waiting for peers", '?': "too many"}
	for class, names := range letters {
		for name, r := range names {
			if other, taken := of[r]; taken {
				t.Errorf("letter %c stands for %s and for %v %s", r, other, class, name)
			}
			of[r] = name
			if strings.ContainsRune(others, r) {
				t.Errorf("letter %c stands for %s, but is also in others", r, name)
			}
		}
	}
	for op := ir.OpLinear; op <= ir.OpBarrier; op++ {
		switch op.Info().Class {
		case ir.ClassCollective, ir.ClassTransfer:
		default:
			continue
		}
		if op != ir.OpReshard && letters[Comm][op.String()] == 0 { // reshard never runs
			t.Errorf("%v has no letter", op)
		}
	}
	draw := func(names ...string) string {
		x := &Trace{Ranks: 1}
		for i, n := range names {
			x.Events = append(x.Events, Event{Stream: "main", Name: n, Class: Comm, Start: int64(i), End: int64(i + 1),
				Group: NoGroup})
		}
		var b strings.Builder
		if err := x.Timeline(&b, 60); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for _, text := range []string{draw("all_gather"), draw("all_reduce", "all_gather")} {
		if !strings.Contains(text, "g all_gather") {
			t.Errorf("all_gather is not g:\n%s", text)
		}
	}
}
