package compile

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"hocket.example/hocket/internal/golden"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// TestGoldenErrors builds and plans each program of testdata/errors with the options in its first lines, and compares
// the errors with the recorded ones.
func TestGoldenErrors(t *testing.T) {
	golden.Each(t, "testdata/errors/*.txt", "---- ", func(t *testing.T, _, source string) string {
		err := buildAndPlan(source)
		if err == nil {
			t.Fatal("nothing is wrong with it")
		}
		return "---- errors\n" + worded(t, err)
	})
}

// worded returns the text of an error. It checks that each diagnostic has a position and a help text.
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

// buildAndPlan performs the steps of a run that precede execution.
func buildAndPlan(source string) error {
	opts, binding := headOptions(source)
	p, ds := ir.Parse("test.hkt", source)
	if ds.HasErrors() {
		return ds
	}
	info, ds := checker.Check(p)
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

// headOptions parses lines of the forms "// --strategy S" and "// --dim NAME=N".
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
