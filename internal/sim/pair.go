package sim

import (
	"fmt"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// Pair is a collective and the operations that it may be hidden under, with
// numbers for all extents. One rank stands for all: they do the same.
type Pair struct {
	Comm  ir.Op
	Ranks int64
	// Whole is the bytes of what is gathered or reduced, as one rank holds it:
	// an all_gather's result, a reduction's operand.
	Whole int64
	DType ir.DType
	// AnyOrder: a reduction may be in any order. Algorithm is the one that is pinned.
	AnyOrder  bool
	Algorithm string
	// Team are the members' ranks, where these are on several nodes: those of the first team that crosses.
	Team []int
	// Ops are computed with what is gathered, or make what is reduced; Post is
	// computed of a reduction's result.
	Ops, Post []Op
	// Before: what is gathered is what Ops make.
	Before bool
}

// Moved returns the bytes that each rank receives at the least.
func (p *Pair) Moved() int64 {
	n := p.Ranks
	if n <= 1 {
		return 0
	}
	if p.Comm == ir.OpAllReduce {
		return 2 * p.Whole / n * (n - 1)
	}
	return p.Whole / n * (n - 1)
}

// Collective is one of so many parts of the pair's.
func (p *Pair) Collective(parts int64, m *machine.Description) *machine.Collective {
	c := &machine.Collective{Op: p.Comm, DType: p.DType, Members: p.Ranks, Message: p.Whole / parts,
		Moved:    p.Moved() / parts,
		AnyOrder: p.AnyOrder, Algorithm: p.Algorithm}
	if p.Comm != ir.OpAllGather {
		c.Red = ir.Sum
	}
	m.Span(c, p.Team)
	return c
}

// Streams of a pair's timeline.
const (
	onMain = iota
	onSide
	onSums
)

var streamNames = [...]string{"main", "side", "sums"}

// Prediction is what a strategy is expected to take, and its timeline on any rank.
type Prediction struct {
	Time  float64 `json:"us"`
	Spans []Span  `json:"-"`
}

// pairGraph builds one rank's tasks of a pair.
type pairGraph struct {
	*graph
	*Pair
	m *machine.Description
}

// Sequential predicts the pair with nothing overlapped.
func Sequential(p Pair, m *machine.Description) (Prediction, error) {
	g := &pairGraph{newGraph(), &p, m}
	if p.Comm == ir.OpAllGather && !p.Before {
		g.comm(onMain, 1, "")
		g.ops(1, "")
	} else {
		g.ops(1, "")
		g.comm(onMain, 1, "")
		g.post(onMain, 1, "")
	}
	return g.predict()
}

// Chunked predicts the pair cut into so many chunks.
func Chunked(p Pair, chunks int64, m *machine.Description) (Prediction, error) {
	g := &pairGraph{newGraph(), &p, m}
	for i := range chunks {
		label := fmt.Sprintf(" chunk %d", i)
		if p.Comm == ir.OpAllGather && !p.Before {
			g.join(0, onMain, g.comm(onSide, chunks, label), g.m.Wait)
			g.ops(chunks, label)
		} else {
			g.join(0, onSide, g.ops(chunks, label), g.m.Wait)
			g.comm(onSide, chunks, label)
			g.post(onSide, chunks, label)
		}
	}
	g.meet()
	return g.predict()
}

// Exchange predicts the pair with blocks put directly to the peers, each cut
// into so many parts. It counts credits, as if no other pair served this one:
// to those who put they are a barrier. With own > 1 it is a reduction's of whole blocks but the own, which is cut into
// so many parts.
func Exchange(p Pair, parts, own int64, m *machine.Description) (Prediction, error) {
	g := &pairGraph{newGraph(), &p, m}
	g.add(task{stream: onSide, work: m.Barrier})
	switch {
	case p.Before:
		g.exchangeBehind(parts)
	case p.Comm == ir.OpAllGather:
		g.exchangeGather(parts)
	case own > 1:
		come := g.reducePeers("", 1)
		for part := range own {
			g.reduceOwn(come, part, own)
		}
	default:
		for part := range parts {
			g.reduceOwn(g.reducePeers(partLabel(part, parts), parts), part, parts)
		}
	}
	g.meet()
	return g.predict()
}

// Ahead predicts a gather whose blocks have left while the pair before was computed, within a sequence of such pairs.
// With whole set, one GEMM takes all blocks. While it runs, the blocks of the next pair arrive. Its own block is
// copied within the device first, which takes the multiprocessors that the GEMM needs: on two H200, by graph, layers
// took the sum of both, within 2 % (docs/measured/layers.md). Without whole, each block is computed separately, and no
// block is waited for.
func Ahead(p Pair, whole bool, m *machine.Description) (Prediction, error) {
	g := &pairGraph{newGraph(), &p, m}
	for i := int64(1); i < p.Ranks; i++ {
		g.push(onSide, i, 1)
	}
	if !whole {
		g.ops(p.Ranks, " own")
		for i := int64(1); i < p.Ranks; i++ {
			g.add(task{stream: onMain, work: m.Wait})
			g.ops(p.Ranks, fmt.Sprintf(" block +%d", i))
		}
		g.meet()
		return g.predict()
	}
	g.add(task{stream: onSums, class: compute, work: m.TouchTime(2 * p.Whole / p.Ranks),
		span: &Span{Name: "copy", Stream: "own"}})
	g.ops(1, "")
	g.meet()
	return g.predict()
}

// partLabel names part of parts in a timeline.
func partLabel(part, parts int64) string {
	if parts == 1 {
		return ""
	}
	return fmt.Sprintf(" part %d", part)
}

func (g *pairGraph) exchangeGather(parts int64) {
	arrivals := make([][]int, parts)
	for part := range parts {
		for i := int64(1); i < g.Ranks; i++ {
			arrivals[part] = append(arrivals[part], g.push(onSide, i, parts))
		}
	}
	for part := range parts {
		label := partLabel(part, parts)
		g.ops(g.Ranks*parts, " own"+label)
		for i, a := range arrivals[part] {
			g.come(onMain, a)
			g.ops(g.Ranks*parts, fmt.Sprintf(" block +%d%s", i+1, label))
		}
	}
}

// exchangeBehind computes the own block in parts, each of which goes to all peers while the next is
// computed.
func (g *pairGraph) exchangeBehind(parts int64) {
	var come []int
	for part := range parts {
		g.join(0, onSide, g.ops(parts, partLabel(part, parts)), g.m.Wait)
		for i := int64(1); i < g.Ranks; i++ {
			come = append(come, g.push(onSide, i, parts))
		}
	}
	g.come(onMain, come[max(0, len(come)-int(g.Ranks)+1):]...)
}

// reducePeers adds one of so many parts of the peers' blocks, and returns the arrivals of theirs.
func (g *pairGraph) reducePeers(label string, parts int64) (come []int) {
	for i := int64(1); i < g.Ranks; i++ {
		g.join(0, onSide, g.ops(g.Ranks*parts, fmt.Sprintf(" block +%d%s", i, label)), g.m.Wait)
		come = append(come, g.push(onSide, i, parts))
	}
	return come
}

// reduceOwn adds a part of the own block, its sum, once come have come, and, of an all-reduce, its pushes. With several
// parts, sums have a stream of their own.
func (g *pairGraph) reduceOwn(come []int, part, parts int64) {
	label := partLabel(part, parts)
	own := g.ops(g.Ranks*parts, " own"+label)
	sums, pushes := onMain, onSide
	if parts > 1 {
		sums, pushes = onSums, onSums
		g.join(0, sums, own, g.m.Wait)
	}
	g.come(sums, come...)
	sum := g.kernel(sums, "sum"+label, g.m.ReduceTime((g.Whole+g.Whole/g.Ranks)/parts))
	if g.Comm != ir.OpAllReduce {
		g.post(sums, parts, label)
		return
	}
	if n := g.post(sums, g.Ranks*parts, label); n >= 0 {
		sum = n
	}
	if pushes != sums {
		g.join(0, pushes, sum, g.m.Wait)
	}
	var shared []int
	for i := int64(1); i < g.Ranks; i++ {
		shared = append(shared, g.push(pushes, i, parts))
	}
	if part == parts-1 {
		g.come(onMain, shared...)
	}
}

// come makes a stream wait until counters say that pushes have come, one for each peer.
func (g *pairGraph) come(stream int, arrivals ...int) {
	for _, t := range arrivals {
		g.add(task{stream: stream, work: g.m.Wait, deps: []int{t}})
	}
}

// push puts a part of a block to the i-th peer. It returns the arrival of the
// same push of the peer that sends here in this step.
func (g *pairGraph) push(stream int, i, parts int64) int {
	put := g.add(task{stream: stream, class: transfer, work: g.m.CopyTime(g.Whole / g.Ranks / parts),
		span: &Span{Name: fmt.Sprintf("put %+d", i), Stream: streamNames[stream]}})
	return g.free(task{work: g.m.Signal, deps: []int{put}})
}

// comm adds one of so many parts of the collective.
func (g *pairGraph) comm(stream int, parts int64, label string) int {
	c := g.Collective(parts, g.m)
	work := max(g.m.CollectiveTime(c), g.m.CollectiveTime(g.Collective(1, g.m))/float64(parts))
	return g.add(task{stream: stream, class: collective, work: work, contested: g.m.Contested(c),
		span: &Span{Name: g.Comm.String() + label, Stream: streamNames[stream]}})
}

// ops adds one of so many parts of the operations, and returns the last.
func (g *pairGraph) ops(parts int64, label string) int {
	return g.kernels(onMain, g.Ops, parts, label)
}

// post adds one of so many parts of what follows a reduction, and returns the
// last, or -1 where nothing does.
func (g *pairGraph) post(stream int, parts int64, label string) int {
	return g.kernels(stream, g.Post, parts, label)
}

func (g *pairGraph) kernels(stream int, ops []Op, parts int64, label string) int {
	last := -1
	for _, o := range ops {
		o.M, o.Bytes = (o.M+parts-1)/parts, o.Bytes/parts
		last = g.kernel(stream, o.Name+label, o.Time(g.m))
	}
	return last
}

func (g *pairGraph) kernel(stream int, name string, us float64) int {
	return g.add(task{stream: stream, class: compute, work: us, span: &Span{Name: name, Stream: streamNames[stream]}})
}

// meet makes main wait for the other streams.
func (g *pairGraph) meet() {
	for _, stream := range []int{onSide, onSums} {
		if t, ok := g.tail(0, stream); ok {
			g.join(0, onMain, t, g.m.Wait)
		}
	}
	g.add(task{stream: onMain})
}

func (g *pairGraph) predict() (Prediction, error) {
	start, end, err := g.run(g.m)
	if err != nil {
		return Prediction{}, err
	}
	p := Prediction{Spans: g.spans(start, end)}
	for _, e := range end {
		p.Time = max(p.Time, e)
	}
	return p, nil
}
