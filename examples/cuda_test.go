package examples_test

import (
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/exec"
	_ "hocket.example/hocket/internal/longtest" // collects garbage less often
)

// TestExamplesOnCUDA runs every example many times on GPUs, with one rank on each GPU if there are enough GPUs, and
// otherwise with several ranks on a GPU.
func TestExamplesOnCUDA(t *testing.T) {
	machine := gpus(t)
	for _, file := range files(t) {
		t.Run(file, func(t *testing.T) {
			e := load(t, file)
			p, err := e.unit(t, e.prog).Plan(e.binding)
			if err != nil {
				t.Fatal(err)
			}
			m := machine(p.Ranks)
			for range 3 {
				for _, opts := range []exec.Options{{}, {Graph: true}, {Trace: true}} {
					if err := e.tryOn(m, p, opts, 20); err != nil {
						t.Fatalf("graph %v, trace %v: %v", opts.Graph, opts.Trace, err)
					}
				}
			}
		})
	}
}

// TestStrategiesOnCUDA runs the sharded examples on GPUs under their strategies.
func TestStrategiesOnCUDA(t *testing.T) {
	machine := gpus(t)
	for file, strategies := range sharded {
		for _, s := range strategies {
			t.Run(file+" "+s, func(t *testing.T) {
				e := load(t, file)
				p, err := e.overlapped(t, s).Plan(e.binding)
				if err != nil {
					t.Fatal(err)
				}
				for _, opts := range []exec.Options{{}, {Graph: true}} {
					if err := e.tryOn(machine(p.Ranks), p, opts, 10); err != nil {
						t.Fatalf("graph %v: %v", opts.Graph, err)
					}
				}
			})
		}
	}
}

// gpus returns a machine for the given number of ranks, with a separate GPU for each rank if there are enough GPUs. The
// test is skipped if there is no GPU.
func gpus(t *testing.T) func(ranks int) device.Machine {
	t.Helper()
	one, err := cuda.New(cuda.Options{})
	count := 0
	if err == nil {
		count = one.Caps().MaxRanks
	}
	devicetest.NeedGPUs(t, count, 1, err)
	shared, err := cuda.New(cuda.Options{RanksPerGPU: 8})
	if err != nil {
		t.Fatal(err)
	}
	return func(ranks int) device.Machine {
		if ranks > count {
			return shared
		}
		return one
	}
}
