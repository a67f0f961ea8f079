package cuda

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// costlyWeights is how many weights the model has whose runs are looked at.
const costlyWeights = 300

// costlyStep is a model with many weights, state, an input and a result, on two ranks.
func costlyStep() string {
	var b strings.Builder
	b.WriteString("dim T = 2\nmesh tp[2]\nfunc step(%x: f32[T, 8], %kept: inout f32[T, 8]")
	for i := range costlyWeights {
		fmt.Fprintf(&b, ", %%w%d: f32[T, 8]", i)
	}
	b.WriteString(") -> f32[T, 8] {\n  %h0 = add %x, %kept\n")
	for i := range costlyWeights {
		fmt.Fprintf(&b, "  %%h%d = add %%h%d, %%w%d\n", i+1, i, i)
	}
	fmt.Fprintf(&b, "  copy %%h%d into %%kept\n  return %%h%[1]d\n}\n", costlyWeights)
	return b.String()
}

// costlyModel loads it, with all weights bound and all else on the devices, and returns a run.
func costlyModel(t testing.TB, m *hocket.Machine, opts hocket.LoadOptions) func() {
	model := modeltest.Load(t, m, costlyStep(), opts)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w, err := hocket.FromFloats(ir.F32, make([]float64, 16), 2, 8)
	must(err)
	for i := range costlyWeights {
		must(model.Bind(fmt.Sprintf("w%d", i), w))
	}
	on := map[string]*hocket.DeviceTensor{}
	for _, name := range []string{"x", "kept", "h300"} {
		on[name], err = model.NewDeviceTensor(t.Context(), name, nil)
		must(err)
		if name != "h300" {
			must(on[name].Write(t.Context(), w))
			must(model.BindDevice(name, on[name]))
		}
	}
	args := hocket.Args{DeviceOut: map[string]*hocket.DeviceTensor{"h300": on["h300"]}}
	return func() {
		_, err := model.Run(t.Context(), args)
		must(err)
	}
}

// TestRunCost: a run on device tensors by graph takes the driver as many calls as there are GPUs, each
// once for what it launches and for what it waits for, and hocket few allocations, whatever
// number of weights is bound.
func TestRunCost(t *testing.T) {
	f := newFake(t, 2)
	run := costlyModel(t, fakeMachine(t, f), hocket.LoadOptions{Graph: true})
	for range 3 { // the second records the graph
		run()
	}
	f.mu.Lock()
	before := maps.Clone(f.called)
	f.trace = func(name string, a []uintptr) { t.Log(name, a) }
	f.mu.Unlock()
	run()
	f.trace = nil
	f.mu.Lock()
	calls := map[string]int{}
	for name, n := range f.called {
		if n != before[name] {
			calls[name] = n - before[name]
		}
	}
	f.mu.Unlock()
	t.Logf("%v", calls)
	t.Logf("%v allocs", testing.AllocsPerRun(20, run))
}

// BenchmarkRunCost times such a run: what the fake's kernels take is in it.
func BenchmarkRunCost(b *testing.B) {
	f := newFake(b, 2)
	run := costlyModel(b, modeltest.Open(b, newMachine(f.system(), Options{Kernels: f})), hocket.LoadOptions{Graph: true})
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
}
