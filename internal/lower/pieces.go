package lower

import (
	"slices"
	"strconv"

	"hocket.example/hocket/ir"
)

// This file finds out which rank sends which part of its block to whom. Two
// meshes cut a dimension into p and q blocks; the smallest parts in which both
// can be counted are its lcm(p, q)-ths, and the text promises that it has them.

// span is a part of one dimension of a block: chunk index of count.
type span struct{ index, count int64 }

// piece is a part of a block on its way: which part it is, by dimension, of
// what the sender holds (source) and of what the receiver wants (target).
type piece struct {
	from, to       int64
	source, target []span
}

// common is what a receiver's block has in common with a sender's along one
// dimension, or a part of that.
type common struct {
	block          int64 // the sender's
	source, target span
}

// overlaps returns of what block b of q is made where there are p blocks. What
// is no chunk of both, counted from their beginnings, comes in several parts.
func overlaps(p, q, b int64) []common {
	all := leastCommon(p, q)
	theirs, ours := all/p, all/q
	var out []common
	for a := b * ours / theirs; a*theirs < (b+1)*ours; a++ {
		lo, hi := max(a*theirs, b*ours), min((a+1)*theirs, (b+1)*ours)
		unit := hi - lo
		for _, n := range []int64{lo - a*theirs, lo - b*ours, theirs, ours} {
			unit = greatestCommon(unit, n)
		}
		for x := lo; x < hi; x += unit {
			out = append(out, common{a, span{(x - a*theirs) / unit, theirs / unit}, span{(x - b*ours) / unit, ours / unit}})
		}
	}
	return out
}

// route says which rank sends what to whom, so that every rank of to gets its
// block of layout want. A rank that holds what it needs keeps it; of several
// holders the receivers take turns.
func route(have, want *ir.Type, from, to *place) []piece {
	holders := map[string][]int64{} // by block
	holds := map[int64]string{}     // the block of each sender
	for i, r := range from.devices {
		k := key(from.blocks(have, i))
		holders[k], holds[r] = append(holders[k], r), k
	}
	turns := map[string]int{}
	var out []piece
	for i, r := range to.devices {
		for _, parts := range sources(have, want, from, to, i) {
			p := piece{to: r}
			block := make([]int64, len(parts))
			for d, o := range parts {
				block[d] = o.block
				p.source, p.target = append(p.source, o.source), append(p.target, o.target)
			}
			k := key(block)
			if h, ok := holds[r]; ok && h == k {
				p.from = r
			} else {
				p.from = holders[k][turns[k]%len(holders[k])]
				turns[k]++
			}
			out = append(out, p)
		}
	}
	return out
}

// sources returns the pieces of which the i-th receiver's block is made, each
// one for every dimension.
func sources(have, want *ir.Type, from, to *place, i int) [][]common {
	out := [][]common{nil}
	for d, b := range to.blocks(want, i) {
		var next [][]common
		for _, parts := range out {
			for _, o := range overlaps(from.parts(have.Dims[d].Axes), to.parts(want.Dims[d].Axes), b) {
				next = append(next, append(slices.Clone(parts), o))
			}
		}
		out = next
	}
	return out
}

// countPieces returns how many pieces route makes.
func countPieces(have, want *ir.Type, from, to *place) int {
	total := 0
	for i := range to.devices {
		n := 1
		for d, b := range to.blocks(want, i) {
			n *= len(overlaps(from.parts(have.Dims[d].Axes), to.parts(want.Dims[d].Axes), b))
		}
		total += n
	}
	return total
}

// missing returns which part of the whole tensor the i-th receiver wants and
// does not hold.
func missing(have, want *ir.Type, from, to *place, i int) float64 {
	wanted, held := 1.0, 0.0
	j := from.index(to.devices[i])
	if j >= 0 {
		held = 1
	}
	for d, b := range to.blocks(want, i) {
		p, q := from.parts(have.Dims[d].Axes), to.parts(want.Dims[d].Axes)
		wanted /= float64(q)
		if j >= 0 {
			all := leastCommon(p, q)
			a := from.block(have.Dims[d].Axes, j)
			n := min((a+1)*all/p, (b+1)*all/q) - max(a*all/p, b*all/q)
			held *= float64(max(n, 0)) / float64(all)
		}
	}
	return wanted - held
}

func greatestCommon(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func leastCommon(a, b int64) int64 { return a / greatestCommon(a, b) * b }

// key makes a map key of a block's coordinates.
func key(block []int64) string {
	var b []byte
	for _, x := range block {
		b = strconv.AppendInt(b, x, 10)
		b = append(b, ' ')
	}
	return string(b)
}
