package cuda

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// small holds smaller dims for examples that are large by default.
var small = map[string]map[string]int64{
	"row_parallel.hkt": {"T": 26, "K": 32, "N": 8},
	"mlp.hkt":          {"T": 32, "H": 16, "F": 32},
}

// TestProgramsOnFake runs whole programs on the fake driver, which tests the host logic of plans, collectives and
// transfers. A program with wrong results here cannot be correct on a GPU.
func TestProgramsOnFake(t *testing.T) {
	t.Parallel()
	list, err := filepath.Glob("../../../examples/*.hkt")
	if err != nil || len(list) < 11 {
		t.Fatalf("examples %v, %v", list, err)
	}
	for _, path := range list {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			for _, c := range []struct {
				gpus   int
				graphs string
				apart  func(a, b int32) bool
				calls  bool // without a graph
			}{
				{gpus: 4, graphs: formEach}, {gpus: 4}, {gpus: 1},
				{gpus: 2, apart: all}, {gpus: 4, apart: some([2]int32{0, 1}, [2]int32{2, 3}), calls: true},
			} {
				if (c.gpus == 1 || c.calls) && testing.Short() {
					continue
				}
				f := fakedriver.New(t, c.gpus)
				if c.apart != nil {
					f.Reach.Apart = c.apart
				}
				m := newMachine(system(f), Options{Kernels: f, RanksPerGPU: 8, Graphs: c.graphs})
				if c.graphs != formEach {
					runProgram(t, m, path, "", false)
				}
				if c.calls {
					continue
				}
				runProgram(t, m, path, "", true)
				if len(f.Graphs) == 0 {
					t.Error("no graph was created")
				}
			}
		})
	}
}

// TestStrategiesOnFake is TestProgramsOnFake for layers with strategies that insert overlap.
func TestStrategiesOnFake(t *testing.T) {
	for _, name := range []string{"mlp.hkt", "llama_layer.hkt", "symbolic_rows.hkt"} { // the last has blocks of different sizes
		for _, strategy := range []string{"chunked(2)", "exchange", "exchange(2)", "exchange(1,2)", "ahead"} {
			t.Run(name+" "+strategy, func(t *testing.T) {
				for i, apart := range []func(a, b int32) bool{some(), all} {
					if i > 0 && testing.Short() {
						break
					}
					f := fakedriver.New(t, 4)
					f.Reach.Apart = apart
					m := newMachine(system(f), Options{Kernels: f})
					for _, graph := range []bool{false, true} {
						runProgram(t, m, "../../../examples/"+name, strategy, graph)
					}
				}
			})
		}
	}
}

// unitOf compiles a program.
func unitOf(t *testing.T, name, text, strategy string) *compile.Unit {
	t.Helper()
	prog, ds := ir.Parse(name, text)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		t.Fatal(ds)
	}
	unit, err := compile.Build(info, compile.Options{Strategy: strategy})
	if err != nil {
		t.Fatal(err)
	}
	return unit
}

func runProgram(t *testing.T, m *machine, path, strategy string, graph bool) {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	unit := unitOf(t, path, string(src), strategy)
	binding := ir.Binding{Dims: small[filepath.Base(path)]}
	bound, err := unit.Reference(binding)
	if err != nil {
		t.Fatal(err)
	}
	p, err := unit.Plan(binding)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	loaded, err := exec.Load(ctx, m, p, exec.Options{Trace: true, Graph: graph})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := loaded.Close(); err != nil {
			t.Error(err)
		}
	}()
	var ins []map[string]*tensor.Tensor
	for seed := range uint64(2) {
		in, err := eval.Inputs(bound, tensor.Spec{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		ins = append(ins, in)
	}
	fake := m.opts.Kernels.(*fakedriver.GPU)
	fake.Mu.Lock()
	clear(fake.Called)
	fake.Mu.Unlock()
	events := 0 // number of the events in the first run, which uses no graph
	for batch := range 2 {
		got, err := loaded.RunBatch(ctx, exec.Inputs(ins), nil)
		if err != nil {
			t.Fatal(err)
		}
		// A replayed graph reports the trace of the last run only.
		n := len(got[1].Trace.Events)
		if batch > 0 && n != events {
			t.Errorf("the trace of a run has %d commands, before %d", n, events)
		}
		events = n
		if n := fake.Called["cuModuleLoadData"]; n > 0 && !graph &&
			got[0].Detours == nil { // graphs have separate kernels; names of kernels that copy through the host contain addresses
			t.Errorf("a run loaded %d modules", n)
		}
		if n := fake.Called["cuMemCreate"]; n > 0 && batch == 0 {
			t.Errorf("the first runs allocated device memory %d times", n)
		}
		for i, in := range ins {
			want, err := eval.Run(ctx, bound, in, eval.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for k, o := range want.Outputs {
				if v := eval.Compare(got[i].Outputs[p.Outputs[k].Name], o); v.Kind == eval.Differs {
					t.Fatalf("run %d: %%%s: %s", i, o.Name, v)
				}
			}
			outputs := 0
			for _, e := range got[i].Trace.Events {
				if e.Name == "output" {
					outputs++
				}
			}
			if want := countOutputs(p); outputs != want {
				t.Errorf("run %d: %d outputs in its trace, want %d", i, outputs, want)
			}
		}
	}
}

func countOutputs(p *plan.Plan) int {
	n := 0
	for i := range p.Cmds {
		if p.Cmds[i].Kind == plan.Output {
			n++
		}
	}
	return n
}
