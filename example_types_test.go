package hocket_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// doubleText is a program of two ranks for the examples.
const doubleText = `dim T = 4
mesh tp[2]
func double(%x: f32[T/tp]) -> f32[T] {
  %y = add %x, %x
  return %y
}
`

// open parses a program and loads it on a CPU machine.
func open(text string, opts hocket.LoadOptions) (*hocket.Program, *hocket.Machine, *hocket.Model) {
	p, err := hocket.Parse("example.hkt", text)
	if err != nil {
		log.Fatal(err)
	}
	m, err := hocket.Open(context.Background(), hocket.MachineOptions{})
	if err != nil {
		log.Fatal(err)
	}
	model, err := m.Load(p, hocket.Binding{}, opts)
	if err != nil {
		log.Fatal(err)
	}
	return p, m, model
}

// A program is parsed and checked once; a binding gives its dims values.
func ExampleProgram() {
	p, err := hocket.Parse("double.hkt", doubleText)
	if err != nil {
		log.Fatal(err)
	}
	sig, err := p.Bind(hocket.Binding{Dims: map[string]int64{"T": 8}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sig.Func, sig.Ranks, sig.Dims, sig.In[0].Name, sig.In[0].Shape)
	lowered, err := p.Lower(hocket.LowerOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(lowered.Program)
	// Output:
	// double 2 map[T:8] x [8]
	// dim T = 4
	// mesh tp[2]
	//
	// func double(%x: f32[T/tp]) -> f32[T] {
	//   %y: f32[T/tp] = add %x, %x
	//   %y.g: f32[T] = all_gather %y, over=tp, axis=0
	//   return %y.g
	// }
}

// Errors in a program have a position, a message and a remedy.
func ExampleDiagnostics() {
	_, err := hocket.Parse("wrong.hkt", "func f(%x: f32[4]) -> f32[4] {\n  %y = relu %z\n  return %y\n}\n")
	var ds hocket.Diagnostics
	if errors.As(err, &ds) {
		fmt.Println(ds[0].Pos.Line, ds[0].Message)
	}
	// Output:
	// 2 %z is not defined here
}

// One process drives all ranks of a machine, and any number of models on it.
func ExampleMachine() {
	_, m, model := open(doubleText, hocket.LoadOptions{})
	defer m.Close()
	if err := model.Prepare(context.Background(), nil); err != nil {
		log.Fatal(err)
	}
	fmt.Println("plans loaded:", m.Stats().Plans.Plans)
	// Output:
	// plans loaded: 1
}

// A model is a program on a machine. Its context bounds a run.
func ExampleModel() {
	_, m, model := open(doubleText, hocket.LoadOptions{})
	defer m.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	x, err := hocket.FromFloats(ir.F32, []float64{1, 2, 3, 4}, 4)
	if err != nil {
		log.Fatal(err)
	}
	report, err := model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"x": x}})
	if err != nil {
		log.Fatal(err) // errors.Is distinguishes ErrInput, ErrOutOfMemory, ErrDeadlock, ErrDeviceLost, …
	}
	fmt.Println(report.Out["y"].Floats())
	// Output:
	// [2 4 6 8]
}

// A report contains the results of a run and the number of bytes moved; if the run is traced, also times.
func ExampleReport() {
	_, m, model := open(doubleText, hocket.LoadOptions{Trace: true})
	defer m.Close()
	in, err := model.RandomInputs("ints:0")
	if err != nil {
		log.Fatal(err)
	}
	report, err := model.Run(context.Background(), hocket.Args{In: in})
	if err != nil {
		log.Fatal(err)
	}
	begin, end := report.Span()
	o := report.Overlap[0]
	fmt.Println(report.Proof, report.Ops, "ops,", report.Bytes, "bytes moved, timed:", end > begin)
	fmt.Println("line", o.Line, o.Op, "exposed at most as long as it took:", o.ExposedNS <= o.BusyNS)
	// Output:
	// proved 4 ops, 16 bytes moved, timed: true
	// line 5 all_gather exposed at most as long as it took: true
}

// A tensor is global: sharded dimensions at full extent.
func ExampleTensor() {
	t, err := hocket.FromFloats(ir.BF16, []float64{1, 1.00001, -2, 0.5}, 2, 2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(t, t.Floats())
	// Output:
	// bf16[2, 2] [1 1 -2 0.5]
}

// Results are compared with those of the evaluator, which computes bounds for rounding errors.
func ExampleReference() {
	_, m, model := open(doubleText, hocket.LoadOptions{})
	defer m.Close()
	in, err := model.RandomInputs("rand:1")
	if err != nil {
		log.Fatal(err)
	}
	args := hocket.Args{In: in}
	ref, err := model.Reference(context.Background(), args)
	if err != nil {
		log.Fatal(err)
	}
	report, err := model.Run(context.Background(), args)
	if err != nil {
		log.Fatal(err)
	}
	c := ref.Compare(report)
	fmt.Println(c.Verdict == hocket.Exact, c.Against, c.Err())
	// Output:
	// true double <nil>
}

// A program is proved without running it.
func ExampleCheck() {
	p, err := hocket.Parse("double.hkt", doubleText)
	if err != nil {
		log.Fatal(err)
	}
	v, err := hocket.Check(p, hocket.Binding{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v.Kind == hocket.Proved, v.Proof == hocket.ByPlan)
	// Output:
	// true true
}

// The finding for a refuted program includes the smallest addition that removes the race, for example one wait.
func ExampleVerdict() {
	const racy = `mesh tp[1]
func f(%x: f32[4]) -> f32[4] {
  %s = stream
  %y = alloc f32[4]
  on %s { add %x, %x into %y }
  wait %s
  return %y
}
`
	p, err := hocket.Parse("racy.hkt", racy)
	if err != nil {
		log.Fatal(err)
	}
	v, err := hocket.Check(p, hocket.Binding{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v.Kind, v.Diagnostics[0].Kind, "line", v.Diagnostics[0].Pos.Line)
	fmt.Println(v.Diagnostics[0].Help)
	// Output:
	// refuted race line 5
	// fork it: wait main on %s before line 5
}

// Explain predicts the time that overlap saves, also on machines that are not available.
func ExampleExplanation() {
	src, err := os.ReadFile("examples/mlp.hkt")
	if err != nil {
		log.Fatal(err)
	}
	p, err := hocket.Parse("mlp.hkt", string(src))
	if err != nil {
		log.Fatal(err)
	}
	e, err := p.Explain(hocket.LowerOptions{Strategy: "exchange", Machine: "h200x4",
		Binding: hocket.Binding{Dims: map[string]int64{"T": 8192, "H": 8192, "F": 28672}}})
	if err != nil {
		log.Fatal(err)
	}
	for _, pair := range e.Pairs {
		fmt.Println("line", pair.Line, pair.Pair, pair.Chosen)
	}
	fmt.Println("faster:", e.Time < e.Sequential, "less exposed:", e.Exposed < e.SequentialExposed)
	// Output:
	// line 8 all_gather + linear exchange
	// line 11 linear + reduce_scatter exchange
	// faster: true less exposed: true
}

// A plan's memory is known before anything runs.
func ExampleMemoryPlan() {
	p, err := hocket.Parse("double.hkt", doubleText)
	if err != nil {
		log.Fatal(err)
	}
	m, err := p.PlanMemory(hocket.LowerOptions{Binding: hocket.Binding{Dims: map[string]int64{"T": 1024}}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Report.Peak, m.Report.Bound, m.Report.AtPeak[0].Name)
	fmt.Println(m.Ops(0)[1])
	// Output:
	// 8192 8192 %x
	// %y: f32[T/tp] = add %x, %x
}

// Tensors of a checkpoint become weights of a model. The files are mapped, and read only when the weights are used.
func ExampleCheckpoint() {
	dir, err := os.MkdirTemp("", "checkpoint")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "model.safetensors")
	data := &tensor.Tensor{DType: ir.F32, Shape: []int64{4}, Data: make([]byte, 16)}
	if err := tensor.WriteSafetensorsFile(file, []tensor.Named{{Name: "layer.weight", Tensor: data}}, nil); err != nil {
		log.Fatal(err)
	}
	c, err := hocket.OpenCheckpoint(file)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	_, m, model := open(doubleText, hocket.LoadOptions{})
	defer m.Close()
	unused, err := model.BindFrom(c, hocket.Rules{Weights: []hocket.WeightRule{{Param: "x",
		From: []string{"layer.weight"}}}})
	if err != nil {
		log.Fatal(err)
	}
	report, err := model.Run(context.Background(), hocket.Args{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Names(), unused, report.Out["y"].Floats())
	// Output:
	// [layer.weight] [] [0 0 0 0]
}

// Several processes share the ranks. A single process is a world of one process.
func ExampleWorld() {
	ctx := context.Background()
	w, err := hocket.Join(ctx, hocket.JoinOptions{Rank: 0, Size: 1, ID: fmt.Sprint("example ", os.Getpid())})
	if err != nil {
		log.Fatal(err)
	}
	m, err := hocket.Open(ctx, hocket.MachineOptions{World: w})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("process", w.Rank(), "of", w.Size())
	if err := errors.Join(m.Close(), w.Leave()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// process 0 of 1
}

// errors.As finds errors that carry data.
func ExamplePeerError() {
	err := fmt.Errorf("run 3: %w", &hocket.PeerError{Rank: 2, PID: 77, Host: "node", Why: "its process ended"})
	var peer *hocket.PeerError
	if errors.As(err, &peer) {
		fmt.Println("blame rank", peer.Rank)
	}
	fmt.Println(err)
	// Output:
	// blame rank 2
	// run 3: rank 2 (pid 77 on node): its process ended
}
