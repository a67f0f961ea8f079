package kernels

import (
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestIndexKernels compares kernels along an axis with the CPU machine.
func TestIndexKernels(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, dt := range types() {
		for j, shape := range [][]int64{{1}, {700}, {3, 40}, {2, 3, 5}, {0, 4}} {
			for axis := range shape {
				l := layouts[(i+j+axis)%len(layouts)]
				r.compare(device.Kernel{Op: device.Iota{Axis: axis, Start: ir.Whole(-2), First: 5}}, l, 0, dt, shape)
			}
		}
	}
	r.run()
}
