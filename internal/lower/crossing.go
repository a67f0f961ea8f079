package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file decides how a value gets from one mesh to another: in which layout
// it leaves and in which it arrives.

// crossing is a way between two meshes: steps on the first, to layout have;
// then its blocks travel to those of layout want on the other.
type crossing struct {
	steps      []step
	have, want *ir.Type
	// bytes a rank receives at the most and all receive, in whole tensors
	most, total float64
	// isWhole says that the value travels whole; what it costs is not counted.
	isWhole bool
}

// maxPieces bounds what one reshard may become: a text with more transfers
// than that helps nobody, and the value travels whole.
const maxPieces = 4096

// cross returns the cheapest way from layout src on the mesh from to layout
// dst on the mesh to. A receiver takes exactly what it lacks from those who
// have it, so nothing beats leaving in the layout src; only what is still owed
// must be reduced first, and then to the layout from which the whole way is
// cheapest. Where the text leaves the ranks or their arrangement open, or there
// would be too many transfers, nobody can be told what to send to whom: the
// value becomes whole on from and arrives whole.
func cross(src, dst *ir.Type, from, to *place) crossing {
	if from.known() && to.known() {
		var best *crossing
		for _, n := range from.reductionsOf(src, dst, to) {
			c := crossing{steps: n.steps, have: n.t, want: dst.Clone()}
			c.count(n.cost, from, to)
			if best == nil || c.before(best) {
				best = &c
			}
		}
		if best != nil && countPieces(best.have, dst, from, to) <= maxPieces {
			return *best
		}
	}
	have, want := wholeOf(src), wholeOf(dst)
	return crossing{steps: from.plan(src, have), have: have, want: want, isWhole: true}
}

// fetches reports whether on a sub-mesh, whose ranks the text names, less
// moves where each rank fetches what it lacks than by collectives: these bring
// all ranks equally much, and cannot trade places there.
func (at *place) fetches(src, dst *ir.Type) bool {
	if at.main || !at.known() || len(dst.Partial) > 0 {
		return false
	}
	c, n := cross(src, dst, at, at), at.planner(src, dst).search()
	byCollectives := crossing{most: n.cost, total: n.cost * float64(len(at.devices))}
	return !c.isWhole && c.before(&byCollectives)
}

// reductionsOf returns src itself, or, where that is partial, the layouts that
// it can be reduced to, and the ways there.
func (at *place) reductionsOf(src, dst *ir.Type, to *place) []*node {
	if len(src.Partial) == 0 {
		return []*node{{t: src.Clone()}}
	}
	done := src.Clone()
	done.Partial = nil
	p := at.planner(src, done)
	for i := range src.Dims {
		p.divisors = append(p.divisors, leastCommon(at.parts(src.Dims[i].Axes), to.parts(dst.Dims[i].Axes)))
	}
	nodes := p.settle(func(*ir.Type) bool { return false })
	return slices.DeleteFunc(nodes, func(n *node) bool { return len(n.t.Partial) > 0 })
}

// count sets what the crossing costs; every rank of from has received steps
// before.
func (c *crossing) count(steps float64, from, to *place) {
	c.most, c.total = steps, steps*float64(len(from.devices))
	for i, r := range to.devices {
		n := missing(c.have, c.want, from, to, i)
		c.total += n
		if from.index(r) >= 0 {
			n += steps
		}
		c.most = max(c.most, n)
	}
}

func (c *crossing) before(d *crossing) bool {
	const equal = 1e-9
	switch {
	case c.most < d.most-equal, c.most > d.most+equal:
		return c.most < d.most
	case c.total < d.total-equal, c.total > d.total+equal:
		return c.total < d.total
	}
	return len(c.steps) < len(d.steps)
}

// wholeOf returns t split and partial over nothing.
func wholeOf(t *ir.Type) *ir.Type {
	u := t.Clone()
	u.Partial = nil
	for i := range u.Dims {
		u.Dims[i].Axes = nil
	}
	return u
}
