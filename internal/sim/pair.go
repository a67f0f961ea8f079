package sim

import (
	"fmt"

	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// Op is one operation of a pair, with what one rank computes of it.
type Op struct {
	Name string `json:"name"`
	// M, N and K are a GEMM's extents; K is 0 for anything else.
	M, N, K int64
	DType   ir.DType
	// Bytes it reads and writes.
	Bytes int64
}

// Pair is a collective and the operations that it may be hidden under, with
// numbers for all extents. One rank stands for all: they do the same.
type Pair struct {
	Comm  ir.Op
	Ranks int64
	// Whole is the bytes of what is gathered or reduced, as one rank holds it:
	// an all_gather's result, a reduction's operand.
	Whole int64
	Ops   []Op
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

// Streams of a pair's timeline.
const (
	onMain = iota
	onSide
)

var streamNames = [...]string{"main", "side"}

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
	if p.Comm == ir.OpAllGather {
		g.comm(onMain, 1, "")
		g.ops(1, "")
	} else {
		g.ops(1, "")
		g.comm(onMain, 1, "")
	}
	return g.predict()
}

// Chunked predicts the pair cut into so many chunks.
func Chunked(p Pair, chunks int64, m *machine.Description) (Prediction, error) {
	g := &pairGraph{newGraph(), &p, m}
	for i := range chunks {
		label := fmt.Sprintf(" chunk %d", i)
		if p.Comm == ir.OpAllGather {
			g.wait(0, onMain, g.comm(onSide, chunks, label))
			g.ops(chunks, label)
		} else {
			g.wait(0, onSide, g.ops(chunks, label))
			g.comm(onSide, chunks, label)
		}
	}
	g.join()
	return g.predict()
}

// Exchange predicts the pair with blocks put directly to the peers.
func Exchange(p Pair, m *machine.Description) (Prediction, error) {
	g := &pairGraph{newGraph(), &p, m}
	g.add(task{stream: onMain, work: m.Barrier, span: &Span{Name: "barrier", Stream: streamNames[onMain]}})
	if p.Comm == ir.OpAllGather {
		g.exchangeGather()
	} else {
		g.exchangeReduce()
	}
	g.join()
	return g.predict()
}

func (g *pairGraph) exchangeGather() {
	if t, ok := g.tail(0, onMain); ok {
		g.wait(0, onSide, t)
	}
	var arrivals []int
	for i := int64(1); i < g.Ranks; i++ {
		arrivals = append(arrivals, g.push(i))
	}
	g.ops(g.Ranks, " own")
	for i, a := range arrivals {
		g.wait(0, onMain, a)
		g.ops(g.Ranks, fmt.Sprintf(" block +%d", i+1))
	}
}

func (g *pairGraph) exchangeReduce() {
	var last int
	for i := int64(1); i < g.Ranks; i++ {
		g.wait(0, onSide, g.ops(g.Ranks, fmt.Sprintf(" block +%d", i)))
		last = g.push(i)
	}
	g.ops(g.Ranks, " own")
	if g.Ranks > 1 {
		g.wait(0, onMain, last)
	}
	sum := g.kernel("sum", g.m.ReduceTime(g.Whole+g.Whole/g.Ranks))
	if g.Comm != ir.OpAllReduce {
		return
	}
	g.wait(0, onSide, sum)
	for i := int64(1); i < g.Ranks; i++ {
		last = g.push(i)
	}
	if g.Ranks > 1 {
		g.wait(0, onMain, last)
	}
}

// push puts a block to the i-th peer. It returns the arrival of the same
// push of the peer that sends here in this step.
func (g *pairGraph) push(i int64) int {
	put := g.add(task{stream: onSide, class: transfer, work: g.m.CopyTime(g.Whole / g.Ranks),
		span: &Span{Name: fmt.Sprintf("put %+d", i), Stream: streamNames[onSide]}})
	g.tasks = append(g.tasks, task{work: g.m.Signal, deps: []int{put}})
	return len(g.tasks) - 1
}

// comm adds one of so many parts of the collective.
func (g *pairGraph) comm(stream int, parts int64, label string) int {
	return g.add(task{stream: stream, class: collective, work: g.m.CollectiveTime(g.Comm, g.Moved()/parts),
		span: &Span{Name: g.Comm.String() + label, Stream: streamNames[stream]}})
}

// ops adds one of so many parts of the operations, and returns the last.
func (g *pairGraph) ops(parts int64, label string) int {
	last := 0
	for i := range g.Ops {
		o := g.Ops[i]
		o.M, o.Bytes = (o.M+parts-1)/parts, o.Bytes/parts
		last = g.kernel(o.Name+label, o.Time(g.m))
	}
	return last
}

func (g *pairGraph) kernel(name string, us float64) int {
	return g.add(task{stream: onMain, class: compute, work: us, span: &Span{Name: name, Stream: streamNames[onMain]}})
}

// Time is how long the operation takes alone.
func (o *Op) Time(m *machine.Description) float64 {
	if o.K > 0 {
		return m.GEMMTime(o.DType, o.M, o.N, o.K)
	}
	return m.TouchTime(o.Bytes)
}

// join makes main wait for the side stream.
func (g *pairGraph) join() {
	if t, ok := g.tail(0, onSide); ok {
		g.wait(0, onMain, t)
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
