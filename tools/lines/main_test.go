package main

import (
	"strings"
	"testing"
)

// TestWrap: lines are broken in few brackets; comments where words end; strings stay.
func TestWrap(t *testing.T) {
	long := strings.Repeat("a", 40)
	src := "package p\n\n// " + strings.Repeat("word ",
		30) + "end\nfunc f() {\n\tg(" + long + ", h(" + long + ", " + long + "), 1)\n\tg(`" + long + ", " + long +
		long + "`)\n}\n"
	got, err := wrap([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	want := "package p\n\n// " + strings.TrimSpace(strings.Repeat("word ", 23)) + "\n// " + strings.Repeat("word ",
		7) + "end\nfunc f() {\n\tg(" + long + ",\n\t\th(" + long + ", " + long + "), 1)\n\tg(`" + long + ", " + long +
		long + "`)\n}\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
