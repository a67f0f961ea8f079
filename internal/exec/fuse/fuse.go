// Package fuse finds commands of a plan that one launch can do.
//
// Four things are found, each from the plan alone: linears of one x (Finder.Joints),
// chains of elementwise commands (Finder.Chains), GEMMs with a relu behind them
// (Finder.Relus), and all_reduces with an add and a rms_norm behind them (Norms). Whether a machine
// has such a launch, and whether it is faster, the caller decides.
//
// Commands of one group follow each other on their stream. Nothing between them
// can be waited for by another stream, so nobody sees that the first ones are
// done later. What only the group itself reads need not go through memory; bits
// stay the same, since machines round in between as if it had been stored.
package fuse

import (
	"strings"

	"hocket.example/hocket/internal/plan"
)

// Finder looks for groups within one plan.
type Finder struct {
	p     *plan.Plan
	uses  map[place]int // how often commands name each buffer
	taken map[int]bool  // commands of accepted groups
}

// place is a buffer on a rank.
type place struct{ rank, buf int32 }

func placeOf(r plan.Ref) place { return place{r.Rank, r.Buf} }

// NewFinder prepares to look for groups in p.
func NewFinder(p *plan.Plan) *Finder {
	f := &Finder{p: p, uses: map[place]int{}, taken: map[int]bool{}}
	for i := range p.Cmds {
		for _, r := range p.Touches(&p.Cmds[i]) {
			f.uses[placeOf(r)]++
		}
	}
	return f
}

// Name is that of a group: its commands' ops, "silu+mul".
func Name(p *plan.Plan, members []int) string {
	var names []string
	for _, m := range members {
		op := p.Cmds[m].Op
		if p.Cmds[m].Kind == plan.Collective {
			op = p.Colls[p.Cmds[m].Coll].Op
		}
		names = append(names, op.String())
	}
	return strings.Join(names, "+")
}

// private reports whether only the plan's own commands see a buffer.
func private(p *plan.Plan, at place) bool {
	b := &p.Buffers[at.buf]
	return b.Space == plan.Arena && (b.Role == plan.RoleValue || b.Role == plan.RoleAlloc)
}
