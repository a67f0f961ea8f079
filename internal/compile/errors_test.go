package compile

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"hocket.example/hocket/ir"
)

var update = flag.Bool("update", false, "rewrite testdata")

// TestGoldenErrors builds and plans each program of testdata/errors, with the
// options of its first lines, and compares what is wrong with it.
func TestGoldenErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			source, _, _ := strings.Cut(string(data), "---- ")
			err = buildAndPlan(source)
			if err == nil {
				t.Fatal("nothing is wrong with it")
			}
			got := source + "---- errors\n" + worded(t, err)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(data), got); diff != "" {
				t.Errorf("-file +got:\n%s", diff)
			}
		})
	}
}

// worded prints an error, and demands that each diagnostic have a position and
// say what to do.
func worded(t *testing.T, err error) string {
	t.Helper()
	var ds ir.Diagnostics
	if !errors.As(err, &ds) {
		return err.Error() + "\n"
	}
	for _, d := range ds {
		if d.Pos.Line == 0 || d.Help == "" {
			t.Errorf("without position or help: %s", d)
		}
	}
	return strings.TrimRight(ds.String(), "\n") + "\n"
}

// buildAndPlan does what a run does before it runs.
func buildAndPlan(source string) error {
	opts, binding := headOptions(source)
	p, ds := ir.Parse("test.hkt", source)
	if ds.HasErrors() {
		return ds
	}
	info, ds := ir.Check(p)
	if ds.HasErrors() {
		return ds
	}
	unit, err := Build(info, opts)
	if err != nil {
		return err
	}
	_, err = unit.Plan(binding)
	return err
}

// headOptions reads "// --strategy S" and "// --dim NAME=N" lines.
func headOptions(source string) (opts Options, b ir.Binding) {
	b.Dims = map[string]int64{}
	for line := range strings.Lines(source) {
		option, value, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "// ")), " ")
		switch option {
		case "--strategy":
			opts.Strategy = value
		case "--dim":
			name, n, _ := strings.Cut(value, "=")
			b.Dims[name], _ = strconv.ParseInt(n, 10, 64)
		}
	}
	return opts, b
}
