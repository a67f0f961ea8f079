package verify_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// build lowers and plans a program. It returns the first error of any step.
func build(prog *ir.Program, b ir.Binding) (*ir.Program, *plan.Plan, error) {
	return buildBy(prog, b, "")
}

// buildBy lowers a program by the named strategy, and plans it.
func buildBy(prog *ir.Program, b ir.Binding, strategy string) (*ir.Program, *plan.Plan, error) {
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		return nil, nil, ds
	}
	unit, err := compile.Build(info, compile.Options{Strategy: strategy})
	if err != nil {
		return nil, nil, err
	}
	lowered, err := unit.LoweredFor(b)
	if err != nil {
		return nil, nil, err
	}
	p, err := unit.Plan(b)
	return lowered.Info.Prog, p, err
}

func parse(t testing.TB, name, src string) *ir.Program {
	t.Helper()
	prog, ds := ir.Parse(name, src)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	return prog
}

// examples returns the programs in the examples directory, keyed by file name.
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

// lowering is an explicit function, together with the file, function and strategy from which it was made.
type lowering struct {
	name     string // "mlp.hkt mlp chunked(3)"
	prog     *ir.Program
	fn       string
	binding  ir.Binding
	original *plan.Plan
}

// lowerings returns every function of every example, lowered by every strategy that changes the function.
func lowerings(t testing.TB, dims map[string]map[string]int64) []lowering {
	t.Helper()
	var out []lowering
	for name, prog := range examples(t) {
		for _, f := range prog.Funcs {
			seen := map[string]bool{}
			for _, strategy := range []string{"sequential", "chunked(3)", "exchange"} {
				b := ir.Binding{Func: f.Name, Dims: dims[name]}
				lowered, p, err := buildBy(prog, b, strategy)
				if err != nil {
					if strategy == "sequential" {
						t.Fatalf("%s: %s: %v", name, f.Name, err)
					}
					continue // the function has nothing that the strategy could overlap
				}
				text := lowered.Func(f.Name).Body.Stmts
				key := ""
				for _, s := range text {
					key += s.String() + "\n"
				}
				if seen[key] {
					continue
				}
				seen[key] = true
				out = append(out, lowering{name + " " + f.Name + " " + strategy, lowered, f.Name, b, p})
			}
		}
	}
	return out
}

func TestExamplesAreProved(t *testing.T) {
	all := lowerings(t, nil)
	if len(all) < 25 {
		t.Errorf("only %d lowered programs", len(all))
	}
	for _, l := range all {
		r := verify.Plan(l.original, verify.Options{Prog: l.prog, Redundant: true})
		if r.Verdict != verify.Proved || !r.SerialSafe {
			t.Errorf("%s is %v (%s), serial-safe %v\n%s", l.name, r.Verdict, r.Reason, r.SerialSafe,
				r.Diagnostics(l.prog))
		}
		info, ds := checker.Check(l.prog)
		bound, bad := ir.Bind(info, l.binding)
		if ds = append(ds, bad...); !ds.HasErrors() {
			ds = verify.Claims(bound, l.prog)
		}
		if ds.HasErrors() {
			t.Errorf("%s: %s", l.name, ds)
		}
		for _, f := range r.Findings {
			if strings.HasPrefix(f.Message, "not needed: ") {
				t.Logf("%s: %s", l.name, f.Message)
				continue
			}
			t.Errorf("%s: %s: %s", l.name, f.Kind, f.Message)
		}
		if r.Stats.Steps != int64(2*len(l.original.Cmds)) {
			t.Errorf("%s: %d steps for %d commands", l.name, r.Stats.Steps, len(l.original.Cmds))
		}
	}
}
