package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestAffected: what changed is the package of a file or of the nearest folder above it, and importers are those by
// tests, too, those with the fewest dependencies first.
func TestAffected(t *testing.T) {
	all := []pkg{
		{ImportPath: "m", Dir: ".", Imports: []string{"m/b"}, Deps: []string{"m/b", "m/a"}},
		{ImportPath: "m/a", Dir: "a"},
		{ImportPath: "m/b", Dir: "b", Imports: []string{"m/a"}, Deps: []string{"m/a"}},
		{ImportPath: "m/c", Dir: "c"},
		{ImportPath: "m/d", Dir: "d", XTestImports: []string{"m/a", "m/b"}},
	}
	for _, c := range []struct{ files, changed, importers string }{
		{"a/x.go", "m/a", "m/b m/d"},
		{"a/testdata/deep/x.json b/x_test.go", "m/a m/b", "m m/d"},
		{"docs/x.md Makefile", "", ""},
		{"x.go", "m", ""},
		{"c/x.go c/y.go", "m/c", ""},
	} {
		changed, importers := affected(slices.Clone(all), strings.Fields(c.files))
		if strings.Join(changed, " ") != c.changed || strings.Join(importers, " ") != c.importers {
			t.Errorf("%s: %v and %v, want %s and %s", c.files, changed, importers, c.changed, c.importers)
		}
	}
}

// TestRun: a command that does not end is ended with its context, and says of what there was no result.
func TestRun(t *testing.T) {
	ctx, end := context.WithTimeout(t.Context(), time.Nanosecond)
	defer end()
	left, err := run(ctx, []string{"version"}, []string{"m"})
	if err == nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	r := &results{to: os.Stderr, seen: map[string]bool{}}
	for _, s := range []string{"ok  \tm/a\t0.1s\n?   \tm/", "b\t[no test files]\nFAIL\tm/c\t1s\n", "FAIL\n"} {
		if n, err := r.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if !r.seen["m/a"] || !r.seen["m/b"] || !r.seen["m/c"] || !r.failed {
		t.Errorf("%+v", r)
	}
}
