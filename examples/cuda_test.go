package examples_test

import (
	"testing"

	"hocket.example/hocket/internal/device/cuda"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/exec"
)

// TestExamplesOnCUDA runs every example many times on GPUs, a rank each where
// there are enough, else several on one.
func TestExamplesOnCUDA(t *testing.T) {
	one, err := cuda.New(cuda.Options{})
	gpus := 0
	if err == nil {
		gpus = one.Caps().MaxRanks
	}
	devicetest.NeedGPUs(t, gpus, 1, err)
	shared, err := cuda.New(cuda.Options{RanksPerGPU: 8})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files(t) {
		t.Run(file, func(t *testing.T) {
			e := load(t, file)
			p, err := e.unit(t, e.prog).Plan(e.binding)
			if err != nil {
				t.Fatal(err)
			}
			m := one
			if p.Ranks > gpus {
				m = shared
			}
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
