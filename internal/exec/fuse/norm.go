package fuse

import (
	"maps"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Norm is an all_reduce, the add of a residual to its result, and the rms_norm of the sum, which together end a block
// of a tensor-parallel model. The three commands are consecutive on every member's stream, only the add reads the
// result of the all_reduce, and the residual and the weights are complete before the all_reduce begins. One launch on
// each member can therefore replace all three commands. The launch does not store the result of the all_reduce, and may
// read residual and weights before the other members have begun. If only the rms_norm reads the result of the add, the
// launch does not store that result either.
type Norm struct {
	Members []NormMember
}

// NormMember holds one member's commands.
type NormMember struct {
	Reduce, Add, Norm int
	Stored            bool // whether a command other than Norm may read the result of Add
}

// Norms returns, by collective, the commands that a team may execute in one launch.
func Norms(p *plan.Plan) map[int32]*Norm {
	found := neighbours(p)
	keep(found, func(m NormMember) bool { return connected(p, m) })
	if len(found) > 0 {
		a := accessesOf(p, found)
		keep(found, a.free)
		for _, n := range found {
			for i := range n.Members {
				n.Members[i].Stored = a.stored(n.Members[i])
			}
		}
	}
	return found
}

// keep removes the norms for which the function ok returns false for any member.
func keep(all map[int32]*Norm, ok func(NormMember) bool) {
	maps.DeleteFunc(all, func(_ int32, n *Norm) bool {
		return slices.ContainsFunc(n.Members, func(m NormMember) bool { return !ok(m) })
	})
}

// neighbours returns the all_reduces that are directly followed by an add and a rms_norm on the stream of every member.
func neighbours(p *plan.Plan) map[int32]*Norm {
	type two struct{ before, last int }
	streams := slices.Repeat([]two{{-1, -1}}, len(p.Streams))
	found := map[int32]*Norm{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		m := NormMember{Reduce: streams[c.Stream].before, Add: streams[c.Stream].last, Norm: i}
		streams[c.Stream] = two{m.Add, i}
		if c.Kind != plan.Compute || c.Op != ir.OpRMSNorm || m.Reduce < 0 || p.Cmds[m.Reduce].Kind != plan.Collective ||
			p.Cmds[m.Add].Kind != plan.Compute || p.Cmds[m.Add].Op != ir.OpAdd {
			continue
		}
		at := p.Cmds[m.Reduce].Coll
		if coll := &p.Colls[at]; coll.Op != ir.OpAllReduce || coll.Red != ir.Sum {
			continue
		}
		if found[at] == nil {
			found[at] = &Norm{}
		}
		found[at].Members = append(found[at].Members, m)
	}
	maps.DeleteFunc(found, func(at int32, n *Norm) bool {
		eps := p.Cmds[n.Members[0].Norm].Attr.Number(0).Float
		other := func(m NormMember) bool { return p.Cmds[m.Norm].Attr.Number(0).Float != eps }
		return len(n.Members) != len(p.Colls[at].Parts) || slices.ContainsFunc(n.Members, other)
	})
	return found
}

// Part returns the member's operands of the all_reduce.
func (m NormMember) Part(p *plan.Plan) *plan.CollPart {
	c := &p.Cmds[m.Reduce]
	return &p.Colls[c.Coll].Parts[c.Part]
}

// Residual returns the tensor that the member adds to the result of the all_reduce, which is the other operand of the
// add.
func (m NormMember) Residual(p *plan.Plan) plan.Ref {
	ins := p.Cmds[m.Add].Ins
	if ins[0].Same(m.Part(p).Out) {
		return ins[1]
	}
	return ins[0]
}

// connected reports whether the add reads the result of the all_reduce exactly once, and whether the rms_norm reads
// the result of the add.
func connected(p *plan.Plan, m NormMember) bool {
	part, add, norm := m.Part(p), &p.Cmds[m.Add], &p.Cmds[m.Norm]
	if !part.In.Present() || !part.Out.Present() || len(add.Ins) != 2 || len(norm.Ins) != 2 ||
		!norm.Ins[0].Same(add.Outs[0]) {
		return false
	}
	return (add.Ins[0].Same(part.Out) || add.Ins[1].Same(part.Out)) && !m.Residual(p).Overlaps(part.Out)
}
