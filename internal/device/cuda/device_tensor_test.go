package cuda

import (
	"fmt"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
)

// TestDeviceTensorsOnFake uses device tensors at random, call by call and by graph, on two
// GPUs, on two that do not reach each other and on one that ranks share. All memory is back
// in the end.
func TestDeviceTensorsOnFake(t *testing.T) {
	count := 150
	if testing.Short() {
		count = 40
	}
	for i, c := range []struct {
		gpus  int
		apart func(a, b int32) bool
	}{{2, some()}, {2, all}, {1, some()}} {
		for _, graph := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d GPUs, case %d, graph %v", c.gpus, i, graph), func(t *testing.T) {
				f := newFake(t, c.gpus)
				f.reach.apart = c.apart
				t.Cleanup(func() {
					if h := f.holds(); h.Bytes() != 0 {
						t.Errorf("a closed machine holds %+v", h)
					}
				})
				m := modeltest.Open(t, newMachine(f.system(), Options{Kernels: f, RanksPerGPU: 2}))
				modeltest.DeviceTensors(t, m, hocket.LoadOptions{Graph: graph}, uint64(i), count)
			})
		}
	}
}

// TestDeviceTensorsOnGPU is the same on real ones, of which ranks may share one.
func TestDeviceTensorsOnGPU(t *testing.T) {
	for _, graph := range []bool{false, true} {
		t.Run(fmt.Sprint("graph ", graph), func(t *testing.T) {
			m := modeltest.Open(t, real(t, Options{RanksPerGPU: 2}))
			modeltest.DeviceTensors(t, m, hocket.LoadOptions{Graph: graph}, 9, 400)
		})
	}
}
