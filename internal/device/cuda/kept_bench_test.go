package cuda

import (
	"encoding/binary"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// BenchmarkKept times operations on tensors that stay on the devices, in 10 consecutive calls. It also reports the
// number of bytes that these operations must move.
func BenchmarkKept(b *testing.B) {
	t := newTimer(b)
	s := t.stream(0)
	ints := func(f func(i int64) int64, shape ...int64) device.View {
		v := t.view(ir.I32, shape...)
		var raw []byte
		for i := range v.Elements() {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(f(i)))
		}
		t.must(s.Upload(v, raw))
		t.must(t.w.Sync(b.Context()))
		return v
	}
	timed := func(what string, bytes int64, k device.Kernel) {
		l := t.prepare(k)
		const calls = 10
		us := t.compare(s, 5, func() {
			for range calls {
				t.must(s.Launch(l))
			}
		})[0] / calls
		b.Logf("%s: %.1f µs, %.0f GB/s", what, us, float64(bytes)/us/1e3)
		l.Release()
		freed := map[device.Memory]bool{}
		for _, x := range append(k.Ins, k.Outs...) {
			if !freed[x.Mem] {
				t.must(x.Mem.Free())
			}
			freed[x.Mem] = true
		}
	}
	attention := func(what string, b, tq, tk, kept int64) {
		const hq, hkv, dh = 32, 8, 128
		q, k, v := t.drawn(1, ir.BF16, b, tq, hq, dh), t.drawn(2, ir.BF16, b, tk, hkv, dh), t.drawn(3, ir.BF16, b, tk, hkv, dh)
		at := ints(func(i int64) int64 { return kept - tq + 1 + i%tq }, b, tq)
		timed(what, 4*b*kept*hkv*dh, device.Kernel{Op: device.Attention{Scale: ir.AttentionScale(dh)}, Ins: []device.View{q, k, v, at},
			Outs: []device.View{t.view(ir.BF16, b, tq, hq, dh)}})
	}
	attention("attention, 64 sequences of 4096 of 8192 keys, a query each", 64, 1, 8192, 4096)
	attention("attention, a sequence of 8192 of 32768 keys, a query", 1, 1, 32768, 8192)
	attention("attention, 4 sequences of 4096 of 8192 keys, 512 queries each", 4, 512, 8192, 4096)
	for _, c := range []struct{ b, tokens int64 }{{64, 1}, {4, 2048}} {
		rows, cache := t.view(ir.BF16, c.b, c.tokens, 8, 128), t.view(ir.BF16, c.b, 4096, 8, 128)
		at := ints(func(i int64) int64 { return 100 + i%c.tokens }, c.b, c.tokens)
		timed("index_copy", 4*rows.Elements(), device.Kernel{Op: device.IndexCopy{Axis: 1}, Ins: []device.View{rows, at, cache}, Outs: []device.View{cache}})
		x := t.view(ir.BF16, c.b, c.tokens, 32, 128)
		at = ints(func(i int64) int64 { return i }, c.b, c.tokens)
		timed("rope", 4*x.Elements(), device.Kernel{Op: device.Rope{Rope: ir.Rope{Theta: 5e5}}, Ins: []device.View{x, at}, Outs: []device.View{t.view(ir.BF16, x.Shape...)}})
	}
	for _, rows := range []int64{1, 64} {
		x := t.drawn(4, ir.F32, rows, 128256)
		timed("argmax", 4*x.Elements(), device.Kernel{Op: device.Argmax{Axis: 1}, Ins: []device.View{x}, Outs: []device.View{t.view(ir.I32, rows)}})
	}
}
