package cuda

import (
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// BenchmarkNormGrad times the gradients of rms_norm of bf16, and a copy of x. The reported rates count the bytes of the
// operands and of the result.
func BenchmarkNormGrad(b *testing.B) {
	t := newTimer(b)
	for _, c := range [][2]int64{{4096, 4096}, {8192, 4096}, {8192, 8192}, {8192, 2048}, {262144, 128}} {
		rows, n := c[0], c[1]
		x, dy, w := t.drawn(1, ir.BF16, rows, n), t.drawn(2, ir.BF16, rows, n), t.drawn(3, ir.BF16, n)
		dx, dw := t.view(ir.BF16, rows, n), t.view(ir.F32, n)
		us := t.kernels(
			device.Kernel{Op: device.NormGrad{Op: ir.OpRMSNormDX, Eps: 1e-5}, Ins: []device.View{x, w, dy}, Outs: []device.View{dx}},
			device.Kernel{Op: device.NormGrad{Op: ir.OpRMSNormDW, Eps: 1e-5}, Ins: []device.View{x, dy}, Outs: []device.View{dw}},
			device.Kernel{Op: device.Copy{Op: ir.OpCopy}, Ins: []device.View{x}, Outs: []device.View{dx}},
		)
		rate := func(i int, tensors int64) float64 { return float64(tensors*rows*n*2) / us[i] / 1e6 }
		b.Logf("%d rows of %d: dx %.1f µs, %.2f TB/s; dw %.1f µs, %.2f TB/s; copy %.1f µs, %.2f TB/s", rows, n,
			us[0], rate(0, 3), us[1], rate(1, 2), us[2], rate(2, 2))
		for _, v := range []device.View{x, dy, w, dx, dw} {
			t.must(v.Mem.Free())
		}
	}
}
