package exec

import (
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// TestAttentionsFound checks which attentions are fused with the attention_lse after them into one launch, and that the
// results have the same bits on a machine that computes attention_lse first.
func TestAttentionsFound(t *testing.T) {
	type rig struct {
		*builder
		q, k, v, y, lse plan.Ref
	}
	attend := func(r rig, out plan.Ref) {
		r.compute(0, "main", ir.OpAttention, out, r.q, r.k, r.v)
		r.attrs(true, 0.5, 0, 0)
	}
	sum := func(r rig, causal bool, scale float64, q, k plan.Ref) {
		r.compute(0, "main", ir.OpAttentionLSE, r.lse, q, k)
		r.attrs(causal, scale)
	}
	for name, c := range map[string]struct {
		emit func(r rig)
		want int
	}{
		"both":       {func(r rig) { attend(r, r.y); sum(r, true, 0.5, r.q, r.k) }, 1},
		"other keys": {func(r rig) { attend(r, r.y); sum(r, true, 0.5, r.q, r.v) }, 0},
		"other queries": {func(r rig) {
			attend(r, r.y)
			sum(r, true, 0.5, r.k, r.k)
		}, 0},
		"other scale": {func(r rig) { attend(r, r.y); sum(r, true, 0.25, r.q, r.k) }, 0},
		"not causal":  {func(r rig) { attend(r, r.y); sum(r, false, 0.5, r.q, r.k) }, 0},
		"before":      {func(r rig) { sum(r, true, 0.5, r.q, r.k); attend(r, r.y) }, 0},
		"something between": {func(r rig) {
			attend(r, r.y)
			r.after(0, "third", "main")
			sum(r, true, 0.5, r.q, r.k)
		}, 0},
		"over its values": {func(r rig) {
			attend(r, r.y)
			r.p.Buffers[r.lse.Buf].Offset = r.p.Buffers[r.v.Buf].Offset
			sum(r, true, 0.5, r.q, r.k)
		}, 0},
		"window": {func(r rig) {
			attend(r, r.y)
			r.attrs(true, 0.5, 2, 0)
			sum(r, true, 0.5, r.q, r.k)
		}, 0},
		"softcap": {func(r rig) {
			attend(r, r.y)
			r.attrs(true, 0.5, 0, 2)
			sum(r, true, 0.5, r.q, r.k)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBuilder(1, ir.F32)
			ref := func(name string, shape ...int64) plan.Ref {
				in := b.ref(0, b.input(name, false, shape...), shape...)
				v := b.ref(0, b.buffer("%"+name, plan.RoleValue, shape...), shape...)
				b.compute(0, "main", ir.OpNeg, v, in)
				return v
			}
			r := rig{builder: b, q: ref("q", 4, 2, 6), k: ref("k", 4, 2, 6), v: ref("v", 4, 2, 6)}
			r.y = b.ref(0, b.result("y", false, 4, 2, 6), 4, 2, 6)
			r.lse = b.ref(0, b.buffer("%lse", plan.RoleValue, 4, 2), 4, 2)
			c.emit(r)
			b.compute(0, "main", ir.OpNeg, b.ref(0, b.result("sums", false, 4, 2), 4, 2), r.lse)
			b.after(0, "main", "third")
			b.output()
			if m := sameBits(t, 1, b.p); *m.sums != c.want {
				t.Errorf("%d attentions compute attention_lse, want %d", *m.sums, c.want)
			}
		})
	}
}

// attrs sets the attributes of the last command.
func (b *builder) attrs(causal bool, numbers ...float64) {
	b.p.Cmds[len(b.p.Cmds)-1].Attr = ir.Attrs{Causal: causal, Numbers: ir.Reals(numbers...)}
}
