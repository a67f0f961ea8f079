package ir

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// golden runs each file of a folder: a program, then what it is expected to say.
func golden(t *testing.T, dir string, judge func(t *testing.T, name, src string) Diagnostics) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no test programs: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			src, want, _ := strings.Cut(string(text), goldenMark)
			ds := judge(t, name, src)
			got := ds.String()
			if *update {
				if err := os.WriteFile(file, []byte(src+goldenMark+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			for _, d := range ds {
				if d.Kind == "" || d.Message == "" || d.Help == "" || d.Pos.Valid() && d.Line == "" {
					t.Errorf("incomplete: %+v", d)
				}
			}
		})
	}
}

// TestCheckDiagnostics: every error has a place, and says what to do.
func TestCheckDiagnostics(t *testing.T) {
	golden(t, "testdata/check", func(t *testing.T, name, src string) Diagnostics {
		_, ds := Check(mustParse(t, name+".hkt", src))
		for _, d := range ds {
			if !d.Pos.Valid() {
				t.Errorf("no place: %v", d)
			}
		}
		return ds
	})
}

// TestBindDiagnostics binds programs that Check accepts. Their first line says
// how: "// f n=4 T=8".
func TestBindDiagnostics(t *testing.T) {
	golden(t, "testdata/bind", func(t *testing.T, name, src string) Diagnostics {
		in, ds := Check(mustParse(t, name+".hkt", src))
		if len(ds) > 0 {
			t.Fatal(ds)
		}
		_, ds = Bind(in, bindingOf(t, src))
		return ds
	})
}

func bindingOf(t *testing.T, src string) Binding {
	line, _, _ := strings.Cut(src, "\n")
	b := Binding{Dims: map[string]int64{}}
	for _, word := range strings.Fields(strings.TrimPrefix(line, "//")) {
		name, value, isDim := strings.Cut(word, "=")
		if !isDim {
			b.Func = word
			continue
		}
		v, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if name == "n" {
			b.Ranks = int(v)
		} else {
			b.Dims[name] = v
		}
	}
	return b
}
