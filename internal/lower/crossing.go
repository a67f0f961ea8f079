package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file decides how a value is moved from one mesh to another: the layout in which it leaves the first mesh, and
// the layout in which it arrives on the second.

// crossing describes how a value is moved between two meshes. The steps change the value's layout on the first mesh to
// the layout have. Blocks are then transferred so that the value has the layout want on the other mesh.
type crossing struct {
	steps      []step
	have, want *ir.Type
	// most is the maximum number of bytes that a rank receives, and total is the number of bytes that all ranks
	// receive. most and total are in units of whole tensors.
	most, total float64
	// isWhole reports that the whole value is transferred. Its cost is not computed.
	isWhole bool
}

// maxPieces is the maximum number of transfers that replace one reshard. A text with more transfers would be too long
// to read, so the value is transferred whole instead.
const maxPieces = 4096

// cross returns the cheapest crossing from the layout src on one mesh (from) to the layout dst on another mesh (to). If
// src is not partial, the cheapest crossing transfers blocks of layout src, because each receiver then fetches exactly
// the data that it lacks. If src is partial, the value must be reduced first, to the layout for which the total cost is
// lowest.
//
// The text cannot list the transfers if it does not determine the ranks or their arrangement, or if more than maxPieces
// transfers are needed. If the text cannot list the transfers, the value is made whole on the first mesh and is
// transferred whole.
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

// fetches reports whether ranks of a sub-mesh, which the text lists, receive fewer bytes if each fetches the data that
// it lacks than if collectives are used. Collectives bring the same number of bytes to every rank, and on a sub-mesh
// they cannot permute blocks.
func (at *place) fetches(src, dst *ir.Type) bool {
	if at.main || !at.known() || len(dst.Partial) > 0 {
		return false
	}
	c, n := cross(src, dst, at, at), at.planner(src, dst).search()
	byCollectives := crossing{most: n.cost, total: n.cost * float64(len(at.devices))}
	return !c.isWhole && c.before(&byCollectives)
}

// reductionsOf returns the layouts to which a partial src can be reduced, with the steps to each. If src is not
// partial, reductionsOf returns src alone.
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

// count sets the cost of the crossing. The argument steps is the number of bytes, in units of whole tensors, that every
// rank of the first mesh receives in the steps before the transfer.
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

// wholeOf returns t with no split dimensions and no partial sums.
func wholeOf(t *ir.Type) *ir.Type {
	u := t.Clone()
	u.Partial = nil
	for i := range u.Dims {
		u.Dims[i].Axes = nil
	}
	return u
}
