package sim

import (
	"fmt"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// Pair describes a collective and the operations with which it can overlap. All extents are numbers. Pair describes the
// work of one rank, which is the same on all ranks.
type Pair struct {
	Comm  ir.Op
	Ranks int64
	// Whole is the size of the full tensor that is gathered or reduced, in bytes: the result of an
	// all_gather, or the operand of a reduction.
	Whole int64
	DType ir.DType
	// AnyOrder reports that a reduction may add in any order. Algorithm is the algorithm that the program selects for
	// the collective, or empty.
	AnyOrder  bool
	Algorithm string
	// Team lists the ranks of the first team that crosses nodes; it is nil if no team does.
	Team []int
	// Ops compute with the gathered tensor, or produce the tensor that is reduced. Post are
	// operations on the result of a reduction.
	Ops, Post []Op
	// Before says that Ops produce the tensor that is gathered, so they run before the all_gather.
	Before bool
	// Kept says that other operations use the whole gathered tensor too. Blocks that do not arrive in this tensor are
	// copied to it.
	Kept bool
}

// Moved returns the least number of bytes that each rank receives.
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

// Collective describes the pair's collective when it is cut into the given number of parts.
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

// Prediction is the predicted time of a strategy and the timeline of one rank. The timeline is the same on every rank.
type Prediction struct {
	Time  float64 `json:"us"`
	Spans []Span  `json:"-"`
}

// pairGraph builds the tasks of a pair on one rank.
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

// Chunked predicts the pair cut into chunks.
func Chunked(p Pair, chunks int64, m *machine.Description) (Prediction, error) {
	g := &pairGraph{newGraph(), &p, m}
	for i := range chunks {
		label := fmt.Sprintf(" chunk %d", i)
		if p.Comm == ir.OpAllGather && !p.Before {
			g.join(0, onMain, g.comm(onSide, chunks, label), g.m.Wait)
			g.keep(chunks, label)
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

// Exchange predicts the pair if each rank puts blocks directly into the memory of its peers. Each block is cut into the
// given number of parts. The predicted exchange begins with a barrier: a rank may put only after each peer has finished
// reading its previous block. If own > 1, the pair is a reduction that exchanges whole blocks and cuts only the rank's
// own block, into own parts.
func Exchange(p Pair, parts, own int64, m *machine.Description) (Prediction, error) {
	g := &pairGraph{newGraph(), &p, m}
	g.add(task{stream: onSide, work: m.Barrier})
	switch {
	case p.Before:
		g.exchangeAfterOps(parts)
	case p.Comm == ir.OpAllGather:
		g.exchangeGather(parts)
	case own > 1:
		arrivals := g.reducePeers("", 1)
		for part := range own {
			g.reduceOwn(arrivals, part, own)
		}
	default:
		for part := range parts {
			g.reduceOwn(g.reducePeers(partLabel(part, parts), parts), part, parts)
		}
	}
	g.meet()
	return g.predict()
}

// Ahead predicts a gather whose blocks were sent while the previous pair was computed, within a sequence of such pairs.
// If whole is set, one GEMM reads all blocks, and the blocks of the next pair arrive while it runs. The rank first
// copies its own block within the device. The copy runs on the multiprocessors that the GEMM needs, so the two do not
// overlap: on two H200, in a graph, layers took the sum of both times, within 2 % (docs/measured/layers.md). If whole
// is not set, each block is computed separately, and all blocks have arrived.
func Ahead(p Pair, whole bool, m *machine.Description) (Prediction, error) {
	g := &pairGraph{newGraph(), &p, m}
	for i := int64(1); i < p.Ranks; i++ {
		g.push(onSide, i, 1)
	}
	if !whole {
		g.keep(p.Ranks, " own")
		g.ops(p.Ranks, " own")
		for i := int64(1); i < p.Ranks; i++ {
			label := fmt.Sprintf(" block +%d", i)
			g.add(task{stream: onMain, work: m.Wait})
			g.keep(p.Ranks, label)
			g.ops(p.Ranks, label)
		}
		g.meet()
		return g.predict()
	}
	g.add(task{stream: onSums, class: compute, work: m.TouchTime(2 * p.Whole / p.Ranks),
		span: &Span{Name: "copy", Stream: "own"}})
	g.keep(1, "")
	g.ops(1, "")
	g.meet()
	return g.predict()
}

// partLabel is the suffix that names one of several parts in a timeline.
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
		g.keep(g.Ranks*parts, label)
		g.ops(g.Ranks*parts, " own"+label)
		for i, a := range arrivals[part] {
			g.await(onMain, a)
			if parts > 1 { // whole blocks arrive in the gathered tensor
				g.keep(g.Ranks*parts, label)
			}
			g.ops(g.Ranks*parts, fmt.Sprintf(" block +%d%s", i+1, label))
		}
	}
}

// exchangeAfterOps computes the rank's own block in parts, and sends each part to all peers while it
// computes the next.
func (g *pairGraph) exchangeAfterOps(parts int64) {
	var arrivals []int
	for part := range parts {
		g.join(0, onSide, g.ops(parts, partLabel(part, parts)), g.m.Wait)
		for i := int64(1); i < g.Ranks; i++ {
			arrivals = append(arrivals, g.push(onSide, i, parts))
		}
	}
	g.await(onMain, arrivals[max(0, len(arrivals)-int(g.Ranks)+1):]...)
}

// reducePeers computes a part of each peer's block and sends it. reducePeers returns the arrivals of the same parts
// from the peers.
func (g *pairGraph) reducePeers(label string, parts int64) (arrivals []int) {
	for i := int64(1); i < g.Ranks; i++ {
		g.join(0, onSide, g.ops(g.Ranks*parts, fmt.Sprintf(" block +%d%s", i, label)), g.m.Wait)
		arrivals = append(arrivals, g.push(onSide, i, parts))
	}
	return arrivals
}

// reduceOwn computes a part of the rank's own block and sums it with the peers' parts, after their arrivals. For an
// all_reduce reduceOwn also sends the sum to all peers. If there are several parts, the sums run on a separate stream.
func (g *pairGraph) reduceOwn(arrivals []int, part, parts int64) {
	label := partLabel(part, parts)
	own := g.ops(g.Ranks*parts, " own"+label)
	sums, pushes := onMain, onSide
	if parts > 1 {
		sums, pushes = onSums, onSums
		g.join(0, sums, own, g.m.Wait)
	}
	g.await(sums, arrivals...)
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
		g.await(onMain, shared...)
	}
}

// await makes a stream wait for arrivals from peers, one counter wait for each.
func (g *pairGraph) await(stream int, arrivals ...int) {
	for _, t := range arrivals {
		g.add(task{stream: stream, work: g.m.Wait, deps: []int{t}})
	}
}

// push adds the send of a part of a block to the i-th peer. It returns the task that represents the arrival of the
// block that another peer sends to this rank. All ranks do the same at the same time, so both have the same duration.
func (g *pairGraph) push(stream int, i, parts int64) int {
	put := g.add(task{stream: stream, class: transfer, work: g.m.CopyTime(g.Whole / g.Ranks / parts),
		span: &Span{Name: fmt.Sprintf("put %+d", i), Stream: streamNames[stream]}})
	return g.free(task{work: g.m.Signal, deps: []int{put}})
}

// keep adds a task that copies one of the parts of the gathered tensor to that tensor, if the tensor is kept.
func (g *pairGraph) keep(parts int64, label string) {
	if g.Kept {
		g.kernel(onMain, "copy"+label, g.m.TouchTime(2*g.Whole/parts))
	}
}

// comm adds the collective for one of the parts.
func (g *pairGraph) comm(stream int, parts int64, label string) int {
	c := g.Collective(parts, g.m)
	work := max(g.m.CollectiveTime(c), g.m.CollectiveTime(g.Collective(1, g.m))/float64(parts))
	return g.add(task{stream: stream, class: collective, work: work, contested: g.m.Contested(c),
		span: &Span{Name: g.Comm.String() + label, Stream: streamNames[stream]}})
}

// ops adds Ops for one of the parts, and returns the last task.
func (g *pairGraph) ops(parts int64, label string) int {
	return g.kernels(onMain, g.Ops, parts, label)
}

// post adds Post for one of the parts. It returns the last task, or -1 if Post is empty.
func (g *pairGraph) post(stream int, parts int64, label string) int {
	return g.kernels(stream, g.Post, parts, label)
}

func (g *pairGraph) kernels(stream int, ops []Op, parts int64, label string) int {
	last := -1
	for _, o := range ops {
		last = g.kernel(stream, o.Name+label, o.partTime(parts, g.m))
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
