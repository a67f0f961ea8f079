// Package examples_test runs every example. The result of an example must be correct under many schedules, and
// certified exact unless its ops round. If any one synchronisation is removed, the result must be wrong under some
// schedule.
package examples_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

var schedules = flag.Int("schedules", 20, "how many schedules each example is run under")

// backToBack is the number of runs that follow each other without a barrier (acceptance case S13).
const backToBack = 3

// mutantSchedules bounds the search for a schedule that shows a missing
// synchronisation.
const mutantSchedules = 1000

// small overrides the dims of examples that are too large to be run a thousand
// times.
var small = map[string]map[string]int64{
	"row_parallel.hkt": {"T": 26, "K": 32, "N": 8},
	"mlp.hkt":          {"T": 32, "H": 16, "F": 32},
	"model_32.hkt":     {"T": 8, "H": 4, "F": 8},
}

// adjusted changes the inputs of examples whose results would not be certified
// for random integers, so that the results are integers that bf16 can represent.
var adjusted = map[string]func(x *tensor.Tensor, name string){
	"mlp.hkt":      saturate,
	"model_32.hkt": sparse,
}

// rounded lists the examples whose results are not exact for any integers, because norms, softmax and attention divide.
// The results of these examples must be within the error bound.
var rounded = map[string]bool{"llama_layer.hkt": true, "decode.hkt": true, "adamw.hkt": true, "fp8_mlp.hkt": true,
	"experts.hkt": true}

// example is an example with given dims, lowered to an explicit program, with the inputs and expected results of
// several runs.
type example struct {
	name    string
	prog    *ir.Program
	binding ir.Binding
	inputs  []map[string]*tensor.Tensor
	want    []*eval.Result
}

func files(t *testing.T) []string {
	t.Helper()
	fs, err := filepath.Glob("*.hkt")
	if err != nil || len(fs) < 17 {
		t.Fatalf("found examples %v, %v", fs, err)
	}
	return fs
}

func load(t *testing.T, file string) *example {
	t.Helper()
	return loadWith(t, file, small[file])
}

func loadWith(t *testing.T, file string, dims map[string]int64) *example {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	prog, ds := ir.Parse(file, string(src))
	if ds.HasErrors() {
		t.Fatal(ds.String())
	}
	e := &example{name: file, prog: prog, binding: ir.Binding{Dims: dims}}
	unit := e.unit(t, prog)
	bound, err := unit.Reference(e.binding)
	if err != nil {
		t.Fatal(err)
	}
	for i := range backToBack {
		in := e.fill(t, bound, uint64(i))
		res, err := eval.Run(context.Background(), bound, in, eval.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range res.Outputs {
			if o.Exact == rounded[file] {
				t.Fatalf("%s: %%%s is certified exact: %v; inputs make it so, except in examples that round", file,
					o.Name, o.Exact)
			}
		}
		e.inputs, e.want = append(e.inputs, in), append(e.want, res)
	}
	return e
}

func (e *example) unit(t *testing.T, prog *ir.Program) *compile.Unit {
	t.Helper()
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		t.Fatal(ds.String())
	}
	unit, err := compile.Build(info, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return unit
}

func (e *example) fill(t *testing.T, bound *ir.Bound, seed uint64) map[string]*tensor.Tensor {
	t.Helper()
	in, err := eval.Inputs(bound, tensor.Spec{Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	if adjust := adjusted[e.name]; adjust != nil {
		for name, x := range in {
			adjust(x, name)
		}
	}
	return in
}

// saturate changes the MLP's inputs so that its result is an integer that bf16
// can represent. The few entries of the first weight are ±16, so that the operand
// of gelu is 0 or so large that gelu is linear. The second weight has few entries.
func saturate(x *tensor.Tensor, name string) {
	for i := range x.Len() {
		row, col := i/x.Shape[1], i%x.Shape[1]
		switch {
		case name == "w1" && (row+col)%5 != 0, name == "w2" && (row+col)%11 != 0:
			x.SetFloat64(i, 0)
		case name == "w1":
			x.SetFloat64(i, 16*x.Float64(i))
		}
	}
}

// sparse sets weights so that 32 layers do not double their input 32 times: only every fourth layer has a nonzero
// weight, with one entry of ±1 in each row.
func sparse(x *tensor.Tensor, name string) {
	if name == "x" {
		return
	}
	rows, cols := x.Shape[1], x.Shape[2]
	for i := range x.Len() {
		layer, row, col := i/(rows*cols), i/cols%rows, i%cols
		v := 0.0
		if layer%8 == 3 && (row+layer)%cols == col {
			v = float64(1 - 2*(row%2))
		}
		x.SetFloat64(i, v)
	}
}

// try runs a plan once under one schedule, and returns an error if the result is wrong.
func (e *example) try(p *plan.Plan, seed int64) error {
	return e.tryOn(cpu.New(cpu.Options{Mode: cpu.Scheduled, Seed: seed}), p, exec.Options{}, 1)
}

// tryOn runs a plan on a machine the given number of times, with all inputs back to back.
func (e *example) tryOn(m device.Machine, p *plan.Plan, opts exec.Options, times int) error {
	ctx := context.Background()
	prog, err := exec.Load(ctx, m, p, opts)
	if err != nil {
		return err
	}
	defer prog.Close()
	for range times {
		results, err := prog.RunBatch(ctx, exec.Inputs(e.inputs), nil)
		if err != nil {
			return err
		}
		if err := e.compare(p, results); err != nil {
			return err
		}
	}
	return nil
}

func (e *example) compare(p *plan.Plan, results []*exec.Result) error {
	for run, r := range results {
		for i, o := range e.want[run].Outputs {
			if v := eval.Compare(r.Outputs[p.Outputs[i].Name], o); v.Kind == eval.Differs || v.Kind != eval.Exact &&
				!rounded[e.name] {
				return fmt.Errorf("run %d: %%%s: %s", run, o.Name, v)
			}
		}
	}
	return nil
}

func TestExamplesUnderSchedules(t *testing.T) {
	for _, file := range files(t) {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			e := load(t, file)
			p, err := e.unit(t, e.prog).Plan(e.binding)
			if err != nil {
				t.Fatal(err)
			}
			for seed := range int64(*schedules) {
				if err := e.try(p, seed); err != nil {
					t.Fatalf("schedule %d: %v", seed, err)
				}
			}
		})
	}
}

// synchronisations lists the statements of the program's last function that the test removes, one at a time.
func synchronisations(p *ir.Program) []*ir.Stmt {
	var out []*ir.Stmt
	p.Funcs[len(p.Funcs)-1].Body.Walk(func(s *ir.Stmt) {
		switch s.Op {
		case ir.OpWait, ir.OpSignal, ir.OpBarrier, ir.OpRecord:
			out = append(out, s)
		}
	})
	return out
}

// remove removes a statement from a block or from a nested block.
func remove(b *ir.Block, s *ir.Stmt) bool {
	if b == nil {
		return false
	}
	if i := slices.Index(b.Stmts, s); i >= 0 {
		b.Stmts = slices.Delete(b.Stmts, i, i+1)
		return true
	}
	return slices.ContainsFunc(b.Stmts, func(x *ir.Stmt) bool { return remove(x.Body, s) || remove(x.Else, s) })
}

// redundant reads the list of synchronisations that are not needed. Each line of the list has the form "file:line
// statement: reason".
func redundant(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "redundant.txt"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, reason, ok := strings.Cut(line, ": ")
		if !ok || len(reason) < 10 {
			t.Fatalf("redundant.txt: %q gives no reason", line)
		}
		out[key] = true
	}
	return out
}

// TestEverySynchronisationCounts removes each wait, signal, barrier and record of each example. The result must then be
// wrong under some schedule, unless the planner refuses the changed program or the removed line is listed as redundant.
func TestEverySynchronisationCounts(t *testing.T) {
	if testing.Short() {
		t.Skip("removes every synchronisation and searches schedules: not in -short")
	}
	listed := redundant(t)
	for _, file := range files(t) {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			e := load(t, file)
			for i, s := range synchronisations(e.prog) {
				key := fmt.Sprintf("%s:%d %s", file, s.Pos.Line, s)
				found := e.mutant(t, i)
				switch {
				case found == "" && !listed[key]:
					t.Errorf("%s: removed, and no schedule of %d shows it", key, mutantSchedules)
				case found != "" && listed[key]:
					t.Errorf("%s: listed as redundant, but: %s", key, found)
				default:
					t.Logf("%s: %s", key, found)
				}
			}
		})
	}
}

// mutant removes the i-th synchronisation and returns a description of the fault that this causes, or "" if none was
// found.
func (e *example) mutant(t *testing.T, i int) string {
	t.Helper()
	prog := e.prog.Clone()
	remove(prog.Funcs[len(prog.Funcs)-1].Body, synchronisations(prog)[i])
	p, err := e.unit(t, prog).Plan(e.binding)
	if err != nil {
		return fmt.Sprintf("refused: %v", err)
	}
	for seed := range int64(mutantSchedules) {
		if err := e.try(p, seed); err != nil {
			return fmt.Sprintf("schedule %d: %v", seed, err)
		}
	}
	return ""
}
