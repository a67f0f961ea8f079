package cuda

import (
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// attention holds the sizes of an attention: batch, queries, keys, query heads, key heads, head size.
type attention struct {
	b, tq, tk, hq, hkv, dh int64
	causal                 bool
}

// attentions lists shapes of servers.
var attentions = []attention{
	{1, 4096, 4096, 32, 8, 128, true}, {1, 16384, 16384, 32, 8, 128, true}, {1, 4096, 4096, 32, 32, 64, true}, {4, 2048, 2048, 16, 16, 128, false},
	{1, 512, 8192, 32, 8, 128, true}, {1, 64, 8192, 8, 1, 128, true}, {1, 1, 8192, 32, 8, 128, true}, {64, 1, 4096, 32, 8, 128, true}, {8, 1, 32768, 8, 1, 128, true},
	{1, 512, 1536, 16, 4, 128, true}, {1, 256, 1280, 16, 4, 128, true},
	{1, 128, 1152, 16, 4, 128, true}, {1, 64, 1088, 16, 4, 128, true},
}

// BenchmarkAttention times attention of bf16 in 10 consecutive calls; tools/peers/attention.py times torch's attention
// in the same way.
func BenchmarkAttention(b *testing.B) {
	t := newTimer(b)
	for _, c := range attentions {
		q, k := t.drawn(1, ir.BF16, c.b, c.tq, c.hq, c.dh), t.drawn(2, ir.BF16, c.b, c.tk, c.hkv, c.dh)
		v, out := t.drawn(3, ir.BF16, c.b, c.tk, c.hkv, c.dh), t.view(ir.BF16, c.b, c.tq, c.hq, c.dh)
		l, err := t.d.Prepare(device.Kernel{Op: device.Attention{Scale: ir.AttentionScale(c.dh), Causal: c.causal}, Ins: []device.View{q, k, v}, Outs: []device.View{out}})
		t.must(err)
		s := t.stream(0)
		const calls = 10
		us := t.compare(s, 5, func() {
			for range calls {
				t.must(s.Launch(l))
			}
		})[0] / calls
		pairs := float64(c.tq) * float64(c.tk)
		if c.causal {
			pairs -= float64(c.tq) * float64(c.tq-1) / 2
		}
		flops, bytes := 4*pairs*float64(c.b*c.hq*c.dh), 4*float64(c.b*c.dh*(c.tq*c.hq+c.tk*c.hkv))
		b.Logf("%v: %.1f µs, %.0f TFLOP/s, %.0f GB/s", c, us, flops/us/1e6, bytes/us/1e3)
		l.Release()
		for _, x := range []device.View{q, k, v, out} {
			t.must(x.Mem.Free())
		}
	}
}
