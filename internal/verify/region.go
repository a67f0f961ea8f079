package verify

import (
	"slices"

	"hocket.example/hocket/internal/plan"
)

// A region is the set of bytes that a tensor covers. Regions have absolute offsets, so that the regions of two buffers
// on the same bytes overlap. Offsets, and therefore regions, are the same on all ranks.

// maxOuter is the largest number of strides of a region. A tensor with more strides is treated as if it covered all
// bytes from its first to its last.
const maxOuter = 3

// region represents a set of bytes. The representation is canonical: the usual descriptions of the same set give equal
// regions. A region consists of intervals of bytes, which are repeated with up to maxOuter strides.
type region struct {
	space  plan.Space
	rough  bool // set if the region covers more bytes than the tensor
	off    int64
	run    int64 // number of bytes in each interval
	n, str [maxOuter]int64
}

// regionOf returns a tensor's region, or false if the tensor is empty. The tensor must have passed the structural
// checks.
func regionOf(p *plan.Plan, r *plan.Ref) (region, bool) {
	b := &p.Buffers[r.Buf]
	g := region{space: b.Space, off: b.Offset + r.Off, run: r.DType.Size()}
	var dims [8][2]int64 // extents and strides in bytes, sorted by stride
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

// hull returns the region of all bytes from the tensor's first to its last.
func (g region) hull(r *plan.Ref) region {
	bytes, _ := reach(r)
	return region{space: g.space, rough: true, off: g.off, run: bytes}
}

// These constants limit the number of intervals of contiguous bytes into which regions are divided.
const (
	maxRuns      = 1 << 16 // maximum number of intervals of one region
	maxTotalRuns = 1 << 21 // maximum number of intervals of all regions
)

// runCount returns the number of intervals of contiguous bytes in a region, or maxRuns+1 if there are more than
// maxRuns.
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

// coarse returns the region of all bytes from the first to the last byte of g.
func (g region) coarse() region {
	c := region{space: g.space, rough: true, off: g.off, run: g.run}
	for i, n := range g.n {
		c.run += max(n-1, 0) * g.str[i]
	}
	return c
}

// runs is an iterator: it calls the function f with the address of the first byte of each interval.
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

// edge is the beginning or end of an interval of a region. The function sweep visits all edges.
type edge struct {
	at     int64
	region int32
	begin  bool
}

// atomize divides all regions into atoms. An atom is a largest set of bytes such that each region covers either all or
// none of these bytes. Two regions overlap exactly if they have an atom in common. atomize returns the atoms of each
// region and the number of atoms.
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

// cover pairs a region with one of its atoms.
type cover struct{ region, atom int32 }

// byRegion returns the atoms of each region, as slices of one array.
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

// sweep visits the edges in the order of their addresses. The set of regions that cover a byte determines the byte's
// atom; two independent hashes of 64 bits identify a set of regions.
func sweep(edges []edge, regions int, covers []cover, atoms int) ([]cover, int) {
	known := make(map[[2]uint64]struct{}, len(edges)/2)
	depth := make([]int32, regions) // for each region: number of its intervals that cover the current byte
	at := make([]int32, regions)    // for each region: index in active
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

// mix is the finalizer of the hash function splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
