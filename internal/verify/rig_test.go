package verify_test

import (
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// build parses, lowers and plans; err is the first complaint of any of them.
func build(prog *ir.Program, b ir.Binding) (*ir.Program, *plan.Plan, error) {
	info, ds := ir.Check(prog)
	if ds.HasErrors() {
		return nil, nil, ds
	}
	unit, err := compile.Build(info, compile.Options{})
	if err != nil {
		return nil, nil, err
	}
	p, err := unit.Plan(b)
	return unit.Lowered.Info.Prog, p, err
}

func parse(t testing.TB, name, src string) *ir.Program {
	t.Helper()
	prog, ds := ir.Parse(name, src)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	return prog
}

// examples returns the shipped programs by file name.
func examples(t testing.TB) map[string]*ir.Program {
	t.Helper()
	files, err := filepath.Glob("../../examples/*.hkt")
	if err != nil || len(files) < 11 {
		t.Fatalf("found %v, %v", files, err)
	}
	out := map[string]*ir.Program{}
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(f)] = parse(t, filepath.Base(f), string(src))
	}
	return out
}

func TestExamplesAreProved(t *testing.T) {
	for name, prog := range examples(t) {
		for _, f := range prog.Funcs {
			lowered, p, err := build(prog, ir.Binding{Func: f.Name})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			r := verify.Plan(p, verify.Options{})
			if r.Verdict != verify.Proved || !r.SerialSafe {
				t.Errorf("%s: %s is %v (%s), serial-safe %v\n%s", name, f.Name, r.Verdict, r.Reason, r.SerialSafe, r.Diagnostics(lowered))
			}
			if r.Stats.Steps != int64(2*len(p.Cmds)) {
				t.Errorf("%s: %d steps for %d commands", name, r.Stats.Steps, len(p.Cmds))
			}
		}
	}
}
