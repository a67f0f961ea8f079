package cuda

import (
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// BenchmarkAttentionGrad times attention of bf16, alone and with attention_lse, and the operations that compute its
// gradients, in the same way as BenchmarkAttention; tools/peers/attention_grad.py times torch's. The last reported
// figure is operations per time: FlashAttention counts a backward pass as two and a half forward passes, and this
// number of operations is divided by the time of all three gradient operations.
func BenchmarkAttentionGrad(b *testing.B) {
	t := newTimer(b)
	for _, c := range []attention{
		{1, 2048, 2048, 32, 8, 128, true}, {1, 8192, 8192, 32, 8, 128, true}, {1, 4096, 4096, 32, 32, 64, true},
		{4, 2048, 2048, 16, 16, 128, false},
	} {
		q, k := t.drawn(1, ir.BF16, c.b, c.tq, c.hq, c.dh), t.drawn(2, ir.BF16, c.b, c.tk, c.hkv, c.dh)
		v, dy := t.drawn(3, ir.BF16, c.b, c.tk, c.hkv, c.dh), t.drawn(4, ir.BF16, c.b, c.tq, c.hq, c.dh)
		y, lse := t.view(ir.BF16, c.b, c.tq, c.hq, c.dh), t.view(ir.F32, c.b, c.tq, c.hq)
		delta := t.view(ir.F32, c.b, c.tq, c.hq)
		dq, dkv := t.view(ir.BF16, c.b, c.tq, c.hq, c.dh), t.view(ir.BF16, 2, c.b, c.tk, c.hkv, c.dh)
		all := []device.View{q, k, v, dy, lse, delta}
		grad := func(op ir.Op) device.Op {
			return device.AttentionGrad{Op: op, Scale: ir.AttentionScale(c.dh), Causal: c.causal}
		}
		us := t.kernels(
			device.Kernel{Op: device.Attention{Scale: ir.AttentionScale(c.dh), Causal: c.causal}, Ins: all[:3],
				Outs: []device.View{y}},
			device.Kernel{Op: grad(ir.OpAttentionLSE), Ins: all[:2], Outs: []device.View{lse}},
			device.Kernel{Op: grad(ir.OpAttentionDQ), Ins: all, Outs: []device.View{dq}},
			device.Kernel{Op: grad(ir.OpAttentionDKV), Ins: all, Outs: []device.View{dkv}},
			device.Kernel{Op: device.Attention{Scale: ir.AttentionScale(c.dh), Causal: c.causal, LSE: true},
				Ins: all[:3], Outs: []device.View{lse, y}},
		)
		pairs := float64(c.tq) * float64(c.tk)
		if c.causal {
			pairs -= float64(c.tq) * float64(c.tq-1) / 2
		}
		forward, backward := us[0], us[1]+us[2]+us[3]
		flops := 4 * pairs * float64(c.b*c.hq*c.dh)
		b.Logf("%v: attention %.1f µs, %.0f TFLOP/s, with lse %.1f µs; lse %.1f, dq %.1f, dkv %.1f, together %.1f µs, %.0f "+
			"TFLOP/s", c, forward, flops/forward/1e6, us[4], us[1], us[2], us[3], backward, 2.5*flops/backward/1e6)
		for _, x := range append(all, y, dq, dkv) {
			t.must(x.Mem.Free())
		}
	}
}
