package lower

import (
	"slices"
	"strconv"

	"hocket.example/hocket/ir"
)

// This file determines which part of its block each rank sends to which other rank. Suppose that one mesh cuts a
// dimension into p blocks and the other into q blocks. The dimension is then divided into lcm(p, q) equal parts, so
// that each block of either mesh consists of whole parts. The text guarantees that the dimension is a multiple of
// lcm(p, q).

// span selects a part of a block along one dimension: the chunk with the given index of count chunks.
type span struct{ index, count int64 }

// piece describes one transfer between two ranks. For each dimension, source selects the part of the sender's block
// that is sent, and target selects the part of the receiver's block where it is stored.
type piece struct {
	from, to       int64
	source, target []span
}

// common describes the part that a receiver's block and a sender's block share along one dimension, or a part of it.
type common struct {
	block          int64 // index of the sender's block
	source, target span
}

// overlaps returns the parts from which block b of q blocks is assembled if the dimension is held as p blocks. A shared
// part that is not a chunk of both blocks is returned as several parts.
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

// route returns the transfers that give every rank of the target mesh its block in the layout want. A rank that already
// holds a part of its block keeps that part. If several ranks hold the same block, the receivers are assigned to them
// in rotation.
func route(have, want *ir.Type, from, to *place) []piece {
	holders := map[string][]int64{} // the ranks that hold each block
	holds := map[int64]string{}     // the key of each sender's block
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

// sources returns, for each dimension, the pieces from which the i-th receiver's block is assembled.
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

// countPieces returns the number of pieces that route returns.
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

// missing returns the size of the part of its block that the i-th receiver does not hold yet, as a fraction of the
// whole tensor.
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

// key returns a map key for the coordinates of a block.
func key(block []int64) string {
	var b []byte
	for _, x := range block {
		b = strconv.AppendInt(b, x, 10)
		b = append(b, ' ')
	}
	return string(b)
}
