package verify

import (
	"slices"

	"hocket.example/hocket/internal/plan"
)

// A region is the set of bytes that a tensor covers, in absolute offsets, so
// that two buffers on the same bytes have regions that overlap. Offsets are
// equal on all ranks, and so are regions.

// maxOuter is the number of strides that a region keeps apart; tensors that
// need more are taken for all bytes between their ends.
const maxOuter = 3

// region is canonical: equal sets of bytes written in the usual ways are equal
// values. It holds runs of bytes, repeated at up to maxOuter strides.
type region struct {
	space  plan.Space
	rough  bool // larger than the tensor
	off    int64
	run    int64 // contiguous bytes
	n, str [maxOuter]int64
}

// regionOf returns a tensor's region; false for an empty tensor. The tensor has
// passed the structural checks.
func regionOf(p *plan.Plan, r *plan.Ref) (region, bool) {
	b := &p.Buffers[r.Buf]
	g := region{space: b.Space, off: b.Offset + r.Off, run: r.DType.Size()}
	var dims [8][2]int64 // extent and stride in bytes, by rising stride
	k := 0
	for i, e := range r.Shape {
		switch {
		case e == 0:
			return g, false
		case e == 1 || r.Strides[i] == 0:
			continue
		case k == len(dims):
			return g.hull(r), true
		}
		d := [2]int64{e, r.Strides[i] * g.run}
		j := k
		for ; j > 0 && dims[j-1][1] > d[1]; j-- {
			dims[j] = dims[j-1]
		}
		dims[j] = d
		k++
	}
	outer := 0
	for _, d := range dims[:k] {
		switch {
		case outer == 0 && d[1] == g.run:
			g.run *= d[0]
		case outer > 0 && d[1] == g.n[outer-1]*g.str[outer-1]:
			g.n[outer-1] *= d[0]
		case outer == maxOuter:
			return g.hull(r), true
		default:
			g.n[outer], g.str[outer] = d[0], d[1]
			outer++
		}
	}
	return g, true
}

// hull returns the region of all bytes between the tensor's ends.
func (g region) hull(r *plan.Ref) region {
	bytes, _ := reach(r)
	return region{space: g.space, rough: true, off: g.off, run: bytes}
}

// bounds on the number of runs that regions are cut into.
const (
	maxRuns      = 1 << 16 // of one region
	maxTotalRuns = 1 << 21 // of all
)

// runCount returns the number of runs of contiguous bytes, at most maxRuns+1.
func (g *region) runCount() int {
	count := int64(1)
	for _, n := range g.n {
		if n > 0 {
			if count *= min(n, maxRuns+1); count > maxRuns {
				return maxRuns + 1
			}
		}
	}
	return int(count)
}

// coarse returns the region taken for all bytes between its ends.
func (g region) coarse() region {
	c := region{space: g.space, rough: true, off: g.off, run: g.run}
	for i, n := range g.n {
		c.run += max(n-1, 0) * g.str[i]
	}
	return c
}

// runs calls f for each run's first byte.
func (g *region) runs(f func(lo int64)) {
	n := g.n
	for i := range n {
		n[i] = max(n[i], 1)
	}
	for a := range n[2] {
		for b := range n[1] {
			for c := range n[0] {
				f(g.off + a*g.str[2] + b*g.str[1] + c*g.str[0])
			}
		}
	}
}

// edge is where a region begins or ends, for the sweep.
type edge struct {
	at     int64
	region int32
	begin  bool
}

// atomize cuts all regions into atoms: the largest sets of bytes that each
// region covers wholly or not at all. Two regions overlap exactly where they
// have an atom in common. It returns each region's atoms and their number.
func atomize(regions []region) (pieces [][]int32, atoms int) {
	var covers []cover
	for _, space := range []plan.Space{plan.Arena, plan.Host} {
		edges := make([]edge, 0, 2*len(regions))
		for i := range regions {
			if g := &regions[i]; g.space == space {
				g.runs(func(lo int64) {
					edges = append(edges, edge{lo, int32(i), true}, edge{lo + g.run, int32(i), false})
				})
			}
		}
		slices.SortFunc(edges, func(a, b edge) int { return compare3(a.at, b.at) })
		covers, atoms = sweep(edges, len(regions), covers, atoms)
	}
	return byRegion(covers, len(regions)), atoms
}

// cover is a region and one of its atoms.
type cover struct{ region, atom int32 }

// byRegion sorts atoms by their regions, into slices of one array.
func byRegion(covers []cover, regions int) [][]int32 {
	counts := make([]int32, regions)
	for _, c := range covers {
		counts[c.region]++
	}
	all := make([]int32, len(covers))
	pieces := make([][]int32, regions)
	for i, n := range counts {
		pieces[i], all = all[:0:n], all[n:]
	}
	for _, c := range covers {
		pieces[c.region] = append(pieces[c.region], c.atom)
	}
	return pieces
}

// sweep goes over the edges by address. The set of regions that cover a byte determines its atom; two independent
// hashes of 64 bits identify a set.
func sweep(edges []edge, regions int, covers []cover, atoms int) ([]cover, int) {
	known := make(map[[2]uint64]struct{}, len(edges)/2)
	depth := make([]int32, regions) // of regions whose own runs overlap
	at := make([]int32, regions)    // place in active
	var active []int32
	var hash [2]uint64
	flip := func(r int32) {
		hash[0] ^= mix(uint64(r)*2 + 1)
		hash[1] ^= mix(^uint64(r) * 0x9e3779b97f4a7c15)
	}
	for i := 0; i < len(edges); {
		here := edges[i].at
		for ; i < len(edges) && edges[i].at == here; i++ {
			r := edges[i].region
			if edges[i].begin {
				if depth[r]++; depth[r] == 1 {
					flip(r)
					at[r] = int32(len(active))
					active = append(active, r)
				}
				continue
			}
			if depth[r]--; depth[r] == 0 {
				flip(r)
				last := active[len(active)-1]
				active[at[r]], at[last] = last, at[r]
				active = active[:len(active)-1]
			}
		}
		if _, seen := known[hash]; seen || len(active) == 0 {
			continue
		}
		known[hash] = struct{}{}
		for _, r := range active {
			covers = append(covers, cover{r, int32(atoms)})
		}
		atoms++
	}
	return covers, atoms
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
