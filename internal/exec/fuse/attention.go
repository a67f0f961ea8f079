package fuse

import (
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Attentions calls accept for each attention that is directly followed, on its stream, by an attention_lse of the same
// queries and keys. One launch can compute both, and then multiplies queries and keys only once.
func (f *Finder) Attentions(accept func(attention, lse int) error) error {
	for _, cmds := range f.streams() {
		for i := 1; i < len(cmds); i++ {
			if !f.taken[cmds[i-1]] && !f.taken[cmds[i]] && f.sums(cmds[i-1], cmds[i]) {
				if err := accept(cmds[i-1], cmds[i]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// sums reports whether one launch may compute an attention and the attention_lse after it. Neither result may share
// bytes with the other result or with an operand.
func (f *Finder) sums(attention, lse int) bool {
	a, l := &f.p.Cmds[attention], &f.p.Cmds[lse]
	return a.Kind == plan.Compute && a.Op == ir.OpAttention && l.Kind == plan.Compute && l.Op == ir.OpAttentionLSE &&
		len(a.Ins) == 3 && a.Attr.Causal == l.Attr.Causal && a.Attr.Number(0) == l.Attr.Number(0) &&
		a.Attr.Number(1).Float == 0 && a.Attr.Number(2).Float == 0 && l.Ins[0].Same(a.Ins[0]) &&
		l.Ins[1].Same(a.Ins[1]) && l.Outs[0].Elements() > 0 && !f.meets(a.Outs[0], a.Ins...) &&
		!f.meets(l.Outs[0], a.Ins...) && !f.meets(l.Outs[0], a.Outs...)
}
