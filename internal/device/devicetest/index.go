package devicetest

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// testIota counts along each axis.
func testIota(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, shape := range [][]int64{{1}, {300}, {2, 3}, {4, 0}, {3, 5, 2}} {
			for axis := range shape {
				for _, first := range []int64{0, 4} {
					var want []float64
					inner := elements(shape[axis+1:])
					for i := range elements(shape) {
						want = append(want, tensor.Round(dt, float64(-3+first+i/inner%shape[axis])))
					}
					k := device.Kernel{Op: device.Iota{Axis: axis, Start: ir.Whole(-3), First: first}}
					r.exactly(fmt.Sprintf("iota of %s%v along %d", dt, shape, axis), k, l, dt, shape, want)
				}
			}
		}
	})
	half := device.Kernel{Op: device.Iota{Start: ir.Real(0.5)}, Outs: []device.View{r.empty(0, ir.I32, 3)}}
	_, err := r.w.Device(0).Prepare(half)
	r.refused("an integer from 0.5 on", err)
}
