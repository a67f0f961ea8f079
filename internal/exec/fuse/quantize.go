package fuse

import (
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Quantizes calls accept for each command scales that is directly followed, on its stream, by a quantize of the same
// tensor by these scales. One launch can compute both, and then reads the tensor only once.
func (f *Finder) Quantizes(accept func(scales, quantize int) error) error {
	for _, cmds := range f.streams() {
		for i := 1; i < len(cmds); i++ {
			s, q := &f.p.Cmds[cmds[i-1]], &f.p.Cmds[cmds[i]]
			if s.Kind != plan.Compute || s.Op != ir.OpScales || q.Kind != plan.Compute || q.Op != ir.OpQuantize ||
				!q.Ins[0].Same(s.Ins[0]) || !q.Ins[1].Same(s.Outs[0]) || f.meets(q.Outs[0], q.Ins...) ||
				f.meets(s.Outs[0], s.Ins...) || f.taken[cmds[i-1]] || f.taken[cmds[i]] {
				continue
			}
			if err := accept(cmds[i-1], cmds[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// ScalesByColumns returns, by rank and buffer, the scales of blocks that only scales, quantize, and linears that
// multiply the scaled tensor use, always as a whole. These scales can be stored by columns, the order in which cuBLASLt
// reads scales, because no other command depends on the order.
func ScalesByColumns(p *plan.Plan) map[[2]int32]bool {
	whole, other := map[[2]int32]plan.Ref{}, map[[2]int32]bool{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		for _, r := range p.Touches(c) {
			at := [2]int32{r.Rank, r.Buf}
			if first, ok := whole[at]; ok && !first.Same(r) || !private(p, placeOf(r)) || !isScales(c, r) {
				other[at] = true
			}
			whole[at] = r
		}
	}
	all := map[[2]int32]bool{}
	for at := range whole {
		if !other[at] {
			all[at] = true
		}
	}
	return all
}

// isScales reports whether a command uses r only as scales of blocks of 128 elements of a row.
func isScales(c *plan.Cmd, r plan.Ref) bool {
	if c.Kind != plan.Compute || !r.Dense() || r.Off != 0 || len(r.Shape) < 2 {
		return false
	}
	var x plan.Ref
	switch {
	case c.Op == ir.OpScales && c.Outs[0].Same(r):
		x = c.Ins[0]
	case c.Op == ir.OpQuantize && c.Ins[1].Same(r):
		x = c.Ins[0]
	case c.Op == ir.OpLinear && len(c.Ins) == 4 && c.Ins[2].Same(r) && !c.Ins[3].Same(r):
		x = c.Ins[0]
	default:
		return false
	}
	last := len(x.Shape) - 1
	return last == len(r.Shape)-1 && slices.Equal(x.Shape[:last], r.Shape[:last])
}
