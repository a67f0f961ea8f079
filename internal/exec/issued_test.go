package exec

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device/tape"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// issued returns the operations that two consecutive runs of a plan issue to a machine's streams with the given
// algorithm: collectives as schedules, sends and receives as copies and signals.
func issued(t *testing.T, p *plan.Plan, algorithm string) *plan.Plan {
	t.Helper()
	m := &tape.Machine{}
	prog, err := Load(t.Context(), m, p, Options{Options: image.Options{Algorithm: algorithm}})
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]*tensor.Tensor{}
	for i := range p.Inputs {
		if in[p.Inputs[i].Name], err = tensor.New(p.Inputs[i].DType, p.Inputs[i].Shape); err != nil {
			t.Fatal(err)
		}
	}
	m.Opened.Rewind()
	if _, err := prog.RunBatch(t.Context(), Inputs([]map[string]*tensor.Tensor{in, in}), nil); err != nil {
		t.Fatal(err)
	}
	out := m.Opened.Plan()
	if err := prog.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestIssuedIsProved proves the operations that are issued for every example program with every schedule. The
// properties that the checker has proved for the plan must hold for the issued operations too.
func TestIssuedIsProved(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.hkt")
	if err != nil || len(files) < 11 {
		t.Fatalf("found %v, %v", files, err)
	}
	proved := 0
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		prog, ds := ir.Parse(file, string(src))
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		info, ds := checker.Check(prog)
		if ds.HasErrors() {
			t.Fatal(ds)
		}
		for _, f := range prog.Funcs {
			for _, strategy := range []string{"sequential", "chunked(2)", "exchange"} {
				unit, err := compile.Build(info, compile.Options{Strategy: strategy})
				if err != nil {
					continue // has no overlap
				}
				p, err := unit.Plan(ir.Binding{Func: f.Name})
				if err != nil {
					continue
				}
				for _, algorithm := range append(comm.Schedules(), "") {
					what := fmt.Sprintf("%s %s, %s, by %q", filepath.Base(file), f.Name, strategy, algorithm)
					r := verify.Plan(issued(t, p, algorithm), verify.Options{})
					if proved++; r.Verdict != verify.Proved || !r.SerialSafe {
						t.Errorf("%s: %v (%s), serial-safe %v: %+v", what, r.Verdict, r.Reason, r.SerialSafe, r.Findings[0])
					}
				}
			}
		}
	}
	if proved < 400 {
		t.Errorf("only %d plans were checked", proved)
	}
	t.Logf("%d were looked at", proved)
}

// TestIssuedIsRefuted removes waits from plans, and checks that the operations issued for them are refuted.
func TestIssuedIsRefuted(t *testing.T) {
	for _, leave := range []string{"", "fork", "join"} {
		r := verify.Plan(issued(t, chunked(2, leave), ""), verify.Options{FaultsOnly: true})
		if want := leave == ""; (r.Verdict == verify.Proved) != want {
			t.Errorf("chunked without %q: %v", leave, r.Verdict)
		}
	}
	for _, leave := range []string{"", "fork", "barrier"} {
		r := verify.Plan(issued(t, exchange(3, leave), ""), verify.Options{FaultsOnly: true})
		if want := leave == ""; (r.Verdict == verify.Proved) != want {
			t.Errorf("exchange without %q: %v", leave, r.Verdict)
		}
	}
}
