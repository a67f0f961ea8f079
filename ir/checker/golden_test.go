package checker

import (
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/irtest"
)

// diagnostics runs a test for each file of a directory. A file consists of a program and its expected diagnostics.
func diagnostics(t *testing.T, dir string, judge func(t *testing.T, name, src string) ir.Diagnostics) {
	golden.Each(t, dir+"/*.txt", irtest.GoldenMark, func(t *testing.T, name, src string) string {
		ds := judge(t, name, src)
		for _, d := range ds {
			if d.Kind == "" || d.Message == "" || d.Help == "" && d.Kind != "parse" || d.Pos.Valid() && d.Line == "" {
				t.Errorf("incomplete: %+v", d)
			}
		}
		return irtest.GoldenMark + ds.String()
	})
}

// TestCheckDiagnostics checks that every error has a position and a help text.
func TestCheckDiagnostics(t *testing.T) {
	diagnostics(t, "testdata/check", func(t *testing.T, name, src string) ir.Diagnostics {
		_, ds := Check(irtest.MustParse(t, name+".hkt", src))
		for _, d := range ds {
			if !d.Pos.Valid() {
				t.Errorf("no place: %v", d)
			}
		}
		return ds
	})
}

// TestBindDiagnostics binds programs that Check accepts. The first line of each gives the binding: "// f n=4 T=8".
func TestBindDiagnostics(t *testing.T) {
	diagnostics(t, "testdata/bind", func(t *testing.T, name, src string) ir.Diagnostics {
		in, ds := Check(irtest.MustParse(t, name+".hkt", src))
		if len(ds) > 0 {
			t.Fatal(ds)
		}
		_, ds = ir.Bind(in, bindingOf(t, src))
		return ds
	})
}

func bindingOf(t *testing.T, src string) ir.Binding {
	line, _, _ := strings.Cut(src, "\n")
	b := ir.Binding{Dims: map[string]int64{}}
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
