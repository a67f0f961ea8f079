package cuda

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// costlyStep returns a program on two ranks with the given number of weights, a state, an input and a result.
func costlyStep(weights int) string {
	var b strings.Builder
	b.WriteString("dim T = 2\nmesh tp[2]\nfunc step(%x: f32[T, 8], %kept: inout f32[T, 8]")
	for i := range weights {
		fmt.Fprintf(&b, ", %%w%d: f32[T, 8]", i)
	}
	b.WriteString(") -> f32[T, 8] {\n  %h0 = add %x, %kept\n")
	for i := range weights {
		fmt.Fprintf(&b, "  %%h%d = add %%h%d, %%w%d\n", i+1, i, i)
	}
	fmt.Fprintf(&b, "  copy %%h%d into %%kept\n  return %%h%[1]d\n}\n", weights)
	return b.String()
}

// costlyModel loads the program costlyStep, binds all weights, and puts all other tensors on the devices. It returns a
// function that runs the loaded model.
func costlyModel(t testing.TB, m *hocket.Machine, weights int, opts hocket.LoadOptions) func() {
	model, out := modeltest.Load(t, m, costlyStep(weights), opts), fmt.Sprintf("h%d", weights)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w, err := hocket.FromFloats(ir.F32, make([]float64, 16), 2, 8)
	must(err)
	for i := range weights {
		must(model.Bind(fmt.Sprintf("w%d", i), w))
	}
	on := map[string]*hocket.DeviceTensor{}
	for _, name := range []string{"x", "kept", out} {
		on[name], err = model.NewDeviceTensor(t.Context(), name, nil)
		must(err)
		if name != out {
			must(on[name].Write(t.Context(), w))
			must(model.BindDevice(name, on[name]))
		}
	}
	args := hocket.Args{DeviceOut: map[string]*hocket.DeviceTensor{out: on[out]}}
	return func() {
		_, err := model.Run(t.Context(), args)
		must(err)
	}
}

// idleKernels is a kernel library of a fake driver. Its kernels do nothing, so that only the host cost of a run
// remains.
type idleKernels struct{ *fakedriver.GPU }

func (i idleKernels) Steps(t kernels.Target, p kernels.Problem) ([]kernels.Step, error) {
	steps, err := i.GPU.Steps(t, p)
	for _, s := range steps {
		i.Named[s.Symbol] = func(uintptr) {}
	}
	return steps, err
}

// TestRunCost counts the driver calls of a run on device tensors with a graph: one launch, one copy on each GPU of the
// result that is not in place, and queries whether the streams have ended. All other cost on the host does not grow
// with the number of bound weights, and no call allocates device memory or reads its contents.
func TestRunCost(t *testing.T) {
	allocs := map[int]float64{}
	for _, weights := range []int{3, 300} {
		f := fakedriver.New(t, 2)
		run := costlyModel(t, modeltest.Open(t,
			newMachine(system(f), Options{Kernels: idleKernels{f}, Graphs: "one"})), weights,
			hocket.LoadOptions{Graph: true})
		for range 3 { // the second run records the graph
			run()
		}
		calls := func() map[string]int {
			f.Mu.Lock()
			defer f.Mu.Unlock()
			return maps.Clone(f.Called)
		}
		before := calls()
		run()
		made := map[string]int{}
		for name, n := range calls() {
			if n != before[name] {
				made[name] = n - before[name]
			}
		}
		// There is one launch for both GPUs. A copy of the result runs on the caller's stream, which waits for the
		// graph's stream. Each stream that had work is queried once.
		want := map[string]int{"cuGraphLaunch": 1, "cuMemcpyAsync": 2, "cuEventRecord": 1, "cuStreamWaitEvent": 2,
			"cuStreamQuery": 3, "cuCtxSetCurrent": 10}
		if !maps.Equal(made, want) {
			t.Errorf("%d weights: calls %v, want %v", weights, made, want)
		}
		allocs[weights] = testing.AllocsPerRun(20, run)
	}
	if allocs[300] > allocs[3]+5 || allocs[300] > mostRunAllocs {
		t.Errorf("allocations per run, by number of weights: %v; want at most %d", allocs, mostRunAllocs)
	}
}

// mostRunAllocs is the largest permitted number of Go allocations in a run.
const mostRunAllocs = 120

// BenchmarkRunCost times the host cost of a run as in TestRunCost.
func BenchmarkRunCost(b *testing.B) {
	f := fakedriver.New(b, 2)
	m := modeltest.Open(b, newMachine(system(f), Options{Kernels: idleKernels{f}, Graphs: "one"}))
	run := costlyModel(b, m, 300, hocket.LoadOptions{Graph: true})
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
}

// BenchmarkRun times the same run on real GPUs with one rank each, for each form of graph, from the call until it
// returns.
func BenchmarkRun(b *testing.B) {
	for _, form := range []string{"one", "each"} {
		m, err := New(Options{Graphs: form})
		if err != nil {
			b.Skip(err)
		}
		if m.Caps().MaxRanks < 2 {
			b.Skip("there is one GPU; the benchmark needs two")
		}
		for _, weights := range []int{10, 300} {
			run := costlyModel(b, modeltest.Open(b, m), weights, hocket.LoadOptions{Graph: true})
			for range 5 {
				run()
			}
			b.Run(fmt.Sprintf("%d weights, %s", weights, form), func(b *testing.B) {
				for b.Loop() {
					run()
				}
			})
		}
	}
}
