package planner

import (
	"cmp"
	"slices"

	"hocket.example/hocket/internal/plan"
)

// Footprint holds two reference sizes for the memory of a plan. Both include the parameters.
type Footprint struct {
	// Bound is the maximum number of bytes that can be live at once on a rank, over all orders in which the streams
	// may run. No layout that keeps the plan's order of commands is smaller. BoundAt lists the buffers that are
	// live at that point.
	Bound   int64
	BoundAt []int32
	// Sequential is the maximum number of bytes that are live at once if a rank's commands run one by one in the order
	// of the text.
	Sequential int64
}

// mostOrdered is the maximum number of buffers of a rank for which Bound is computed. For more buffers, Bound is set to
// Sequential.
const mostOrdered = 6000

// Measure computes the footprint of a plan.
func Measure(p *plan.Plan) (*Footprint, error) {
	u, err := usageOf(p)
	if err != nil {
		return nil, err
	}
	return measure(p, u), nil
}

// usageOf computes the usage of the buffers of a plan. usageOf does not change the plan.
func usageOf(p *plan.Plan) (*usage, error) {
	q := *p // simulate sets fields of the buffers
	q.Buffers = slices.Clone(p.Buffers)
	for i := range q.Buffers {
		q.Buffers[i].First, q.Buffers[i].Last = -1, -1
	}
	return simulate(new(world), &q, new(Stats))
}

func measure(p *plan.Plan, u *usage) *Footprint {
	f := &Footprint{Bound: -1}
	live, at := liveAtOnce(p, u)
	f.Sequential = p.Memory.Inputs + live
	for r := range p.Ranks {
		bytes, bufs := mostUnordered(p, u, int32(r))
		if bytes > f.Bound {
			f.Bound, f.BoundAt = bytes, bufs
		}
	}
	if f.Bound < live {
		f.Bound, f.BoundAt = live, at
	}
	f.Bound += p.Memory.Inputs
	var all []int32
	for i := range p.Buffers {
		if p.Buffers[i].Role == plan.RoleInput {
			all = append(all, int32(i))
		}
	}
	f.BoundAt = append(all, f.BoundAt...)
	return f
}

// liveAtOnce returns the maximum number of bytes of a rank's buffers that are live at once in issue order, and these
// buffers.
func liveAtOnce(p *plan.Plan, u *usage) (int64, []int32) {
	most, rank, when := int64(0), int32(0), int32(0)
	type change struct {
		at    int32
		bytes int64
	}
	changes := make([][]change, p.Ranks)
	arena(p, u, func(b int32, h *holder, size int64) {
		changes[h.rank] = append(changes[h.rank], change{h.begin, size}, change{h.end + 1, -size})
	})
	for r, cs := range changes {
		slices.SortFunc(cs, func(a, b change) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.bytes, b.bytes))
		})
		live := int64(0)
		for _, c := range cs {
			if live += c.bytes; live > most {
				most, rank, when = live, int32(r), c.at
			}
		}
	}
	var bufs []int32
	arena(p, u, func(b int32, h *holder, _ int64) {
		if h.rank == rank && h.begin <= when && when <= h.end {
			bufs = append(bufs, b)
		}
	})
	return most, bufs
}

// arena is an iterator: it calls f for each rank's copy of each buffer that is in the arena and is not a parameter.
func arena(p *plan.Plan, u *usage, f func(b int32, h *holder, size int64)) {
	for i, hs := range u.holders {
		if b := &p.Buffers[i]; b.Space == plan.Arena && b.Role != plan.RoleInput && b.Bytes > 0 {
			for k := range hs {
				f(int32(i), &hs[k], plan.Aligned(b.Bytes))
			}
		}
	}
}

// mostUnordered returns a set of buffers of a rank, and the sum of their bytes. Among the sets in which no two buffers
// are ordered, the returned set is the one with the largest sum. Buffer a is ordered before b if all uses of a are
// certain to be done before b is used; the set is the heaviest antichain of this order. By duality, the sum of the set
// equals the sum of all bytes minus the maximum number of bytes that buffers can pass on to later buffers. The maximum
// is computed as a maximum flow.
func mostUnordered(p *plan.Plan, u *usage, rank int32) (int64, []int32) {
	var bufs []int32
	var hs []*holder
	var sizes []int64
	arena(p, u, func(b int32, h *holder, size int64) {
		if h.rank == rank {
			bufs, hs, sizes = append(bufs, b), append(hs, h), append(sizes, size)
		}
	})
	n := len(bufs)
	if n > mostOrdered {
		return 0, nil
	}
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(hs[a].begin, hs[b].begin) })
	net := newNetwork(2*n + 2)
	source, sink := int32(2*n), int32(2*n+1)
	total := int64(0)
	words := (n + 63) / 64
	behind := make([]uint64, n*words) // bit sets, by index in the order: the buffers that are ordered after this one
	for i := n - 1; i >= 0; i-- {
		a := order[i]
		total += sizes[a]
		net.edge(source, int32(a), sizes[a])
		net.edge(int32(n+a), sink, sizes[a])
		net.edge(int32(n+a), int32(a), 1<<62) // every buffer that is ordered after b is also ordered after a
		reach := behind[i*words : (i+1)*words]
		for j := i + 1; j < n; j++ {
			if reach[j/64]&(1<<(j%64)) != 0 {
				continue
			}
			b := order[j]
			if hs[a].end < hs[b].begin && u.precedes(hs[a], hs[b]) {
				net.edge(int32(a), int32(n+b), 1<<62)
				reach[j/64] |= 1 << (j % 64)
				for w, x := range behind[j*words : (j+1)*words] {
					reach[w] |= x
				}
			}
		}
	}
	flow := net.flow(source, sink)
	seen := net.reachable(source)
	var at []int32
	for i := range n {
		if seen[i] && !seen[n+i] {
			at = append(at, bufs[i])
		}
	}
	return total - flow, at
}

// precedes reports whether all uses of a are certain to be done before b is used in the same run.
func (u *usage) precedes(a, b *holder) bool {
	for i := a.uses; i >= 0; i = u.uses[i].next {
		for j := b.uses; j >= 0; j = u.uses[j].next {
			if !u.uses[j].before[0].knows(u.uses[i].stream, u.uses[i].last) {
				return false
			}
		}
	}
	return true
}

// network computes a maximum flow with Dinic's algorithm.
type network struct {
	edges []flowEdge // edges e and e^1 have opposite directions
	first []int32    // for each node, its first edge, or -1
	level []int32
	next  []int32
}

type flowEdge struct {
	to, next int32
	room     int64
}

func newNetwork(nodes int) *network {
	n := &network{first: make([]int32, nodes), level: make([]int32, nodes), next: make([]int32, nodes)}
	for i := range n.first {
		n.first[i] = -1
	}
	return n
}

func (n *network) edge(from, to int32, room int64) {
	n.edges = append(n.edges, flowEdge{to, n.first[from], room}, flowEdge{from, n.first[to], 0})
	n.first[from], n.first[to] = int32(len(n.edges)-2), int32(len(n.edges)-1)
}

func (n *network) flow(source, sink int32) int64 {
	total := int64(0)
	for n.levels(source)[sink] >= 0 {
		copy(n.next, n.first)
		for {
			f := n.push(source, sink, 1<<62)
			if f == 0 {
				break
			}
			total += f
		}
	}
	return total
}

// levels returns for each node the number of edges with free capacity on the shortest path from the source, or -1 if
// the node cannot be reached.
func (n *network) levels(source int32) []int32 {
	for i := range n.level {
		n.level[i] = -1
	}
	n.level[source] = 0
	queue := []int32{source}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		for e := n.first[v]; e >= 0; e = n.edges[e].next {
			if w := n.edges[e].to; n.edges[e].room > 0 && n.level[w] < 0 {
				n.level[w] = n.level[v] + 1
				queue = append(queue, w)
			}
		}
	}
	return n.level
}

func (n *network) push(v, sink int32, most int64) int64 {
	if v == sink {
		return most
	}
	for ; n.next[v] >= 0; n.next[v] = n.edges[n.next[v]].next {
		e := n.next[v]
		w := n.edges[e].to
		if n.edges[e].room == 0 || n.level[w] != n.level[v]+1 {
			continue
		}
		if f := n.push(w, sink, min(most, n.edges[e].room)); f > 0 {
			n.edges[e].room -= f
			n.edges[e^1].room += f
			return f
		}
	}
	return 0
}

func (n *network) reachable(source int32) []bool {
	seen := make([]bool, len(n.first))
	for v, l := range n.levels(source) {
		seen[v] = l >= 0
	}
	return seen
}
