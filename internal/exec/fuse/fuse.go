// Package fuse finds groups of commands of a plan that one launch can execute.
//
// It finds seven kinds of groups, each from the plan alone: linears with a common operand (Finder.Joints), chains of
// elementwise commands (Finder.Chains), GEMMs followed by a relu (Finder.Relus), scales followed by a quantize
// (Finder.Quantizes), attentions followed by attention_lse (Finder.Attentions), ropes and index_copies of the same
// tokens (Finder.Ropes), and all_reduces followed by an add and a rms_norm (Norms). The caller decides whether the
// machine has such a launch, and whether it is faster.
//
// The commands of a group are consecutive on their stream. No other stream can wait for a position between them, so
// the first commands may be executed as late as the last one. Values that only the group reads need not be stored in
// memory. The results have the same bits, because machines round these values as if they had been stored. Only the bits
// of attention_lse may differ, since the launch adds up the exponentials in another order.
package fuse

import (
	"strings"

	"hocket.example/hocket/internal/plan"
)

// Finder searches one plan for groups.
type Finder struct {
	p     *plan.Plan
	uses  map[place]int // by buffer: number of uses by commands
	taken map[int]bool  // commands of accepted groups
	relus map[int]bool  // relus that a GEMM can apply; set before the search for chains
}

// place identifies a buffer of a rank.
type place struct{ rank, buf int32 }

func placeOf(r plan.Ref) place { return place{r.Rank, r.Buf} }

// NewFinder returns a Finder for p.
func NewFinder(p *plan.Plan) *Finder {
	f := &Finder{p: p, uses: map[place]int{}, taken: map[int]bool{}}
	for i := range p.Cmds {
		for _, r := range p.Touches(&p.Cmds[i]) {
			f.uses[placeOf(r)]++
		}
	}
	return f
}

// Name returns the name of a group, which joins the ops of its commands, for example "silu+mul".
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

// private reports whether only the plan's own commands can access a buffer.
func private(p *plan.Plan, at place) bool {
	b := &p.Buffers[at.buf]
	return b.Space == plan.Arena && (b.Role == plan.RoleValue || b.Role == plan.RoleAlloc)
}
