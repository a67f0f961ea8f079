package checker

import (
	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/ir"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReadDiagnostics reads programs that have syntax errors and other errors.
func TestReadDiagnostics(t *testing.T) {
	diagnostics(t, "testdata/read", func(t *testing.T, name, src string) ir.Diagnostics {
		_, ds := Read(name+".hkt", src)
		return ds
	})
}

// TestReadNoFunction checks that the absence of a function is reported once, together with the other errors.
func TestReadNoFunction(t *testing.T) {
	for src, want := range map[string][]string{
		"":                       {"expected a function, found end of file"},
		"mesh tp[2]\n":           {"expected a function, found end of file"},
		"mesh a[2]\nmesh b[2]\n": {"there are two main meshes", "expected a function, found end of file"},
	} {
		_, ds := Read("none.hkt", src)
		var got []string
		for _, d := range ds {
			got = append(got, d.Message)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
}

// breaks holds functions that make a line of a program incorrect.
var breaks = map[string]func(line string) string{
	"a character before":   func(s string) string { return "?" + s },
	"a character behind":   func(s string) string { return s + " ?" },
	"a word before":        func(s string) string { return "let " + s },
	"a brace behind":       func(s string) string { return s + " }" },
	"a brace before":       func(s string) string { return "{ " + s },
	"no =":                 func(s string) string { return strings.Replace(s, "=", "", 1) },
	"no %":                 func(s string) string { return strings.Replace(s, "%", "", 1) },
	"no later %":           func(s string) string { return cutLast(s, "%") },
	"no (":                 func(s string) string { return strings.Replace(s, "(", "", 1) },
	"no ]":                 func(s string) string { return cutLast(s, "]") },
	"no {":                 func(s string) string { return strings.Replace(s, "{", "", 1) },
	"no }":                 func(s string) string { return strings.Replace(s, "}", "", 1) },
	"no comma":             func(s string) string { return cutLast(s, ",") },
	"no colon":             func(s string) string { return strings.Replace(s, ":", "", 1) },
	"another operation":    func(s string) string { return strings.Replace(s, "= ", "= un", 1) },
	"no line":              func(string) string { return ") (" },
	"a letter less":        func(s string) string { return strings.TrimSpace(s)[1:] },
	"half of the line":     func(s string) string { return s[:len(s)/2] },
	"the rest of the line": func(s string) string { return s[len(s)/2:] },
}

func cutLast(s, what string) string {
	if i := strings.LastIndex(s, what); i >= 0 {
		return s[:i] + s[i+len(what):]
	}
	return s
}

// TestReadFollows makes each line of correct programs incorrect. If the result is a syntax error, no other error may be
// reported.
func TestReadFollows(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.hkt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no programs: %v", err)
	}
	broken, odd := 0, int(longtest.Drawn(t)%2)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		for i, line := range lines {
			if i%2 != odd && !longtest.On() {
				continue
			}
			if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "//") {
				continue
			}
			for how, change := range breaks {
				changed := append(append(append([]string{}, lines[:i]...), change(lines[i])), lines[i+1:]...)
				src := strings.Join(changed, "\n")
				if _, ds := ir.Parse(file, src); len(ds) == 0 {
					continue
				}
				broken++
				_, ds := Read(file, src)
				for _, d := range ds {
					if d.Kind != "parse" {
						t.Errorf("%s, line %d, %s:\n%s", filepath.Base(file), i+1, how, ds.String())
						break
					}
				}
			}
		}
	}
	if broken < 500 {
		t.Errorf("only %d programs were broken", broken)
	}
}
