package examples_test

import (
	"testing"

	"hocket.example/hocket/internal/device/cuda"
	"hocket.example/hocket/internal/device/devicetest"
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
			for range 20 {
				if err := e.tryOn(m, p); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
