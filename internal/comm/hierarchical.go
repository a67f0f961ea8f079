package comm

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
)

// hierarchical runs collectives of members on several nodes in stages. Inside a node, members read each other's
// staging. Between nodes, each member communicates with the members at its position on the other nodes, so that every
// byte crosses once. The data is cut into chunks: while one chunk crosses on a separate stream, the next chunk is
// reduced inside the node. The stages are:
//
//	all_reduce      reduce-scatter inside, all-reduce across, all-gather inside
//	reduce_scatter  reduce inside for each node's member, reduce-scatter across
//	all_gather      all-gather across, all-gather inside
//
// Sums are computed node by node. This changes the order of the additions, so the algorithm is used only for integers
// or if the caller allows any order.
type hierarchical struct{}

func (hierarchical) Info() device.Algorithm {
	return device.Algorithm{Name: "hierarchical", Ops: hierarchicalOps,
		FreeOrder: true, Cost: hierarchicalCost,
		Takes: "all_gather, and all_reduce and reduce_scatter of integers or with order=any; " +
			"the same number of members on each node, at least two; message sizes from 64 KiB",
		How: "sums are computed inside each node, then between the members at the same position on all nodes, so that " +
			"each byte crosses once; the results of an all_reduce are gathered inside each node. Data is cut into " +
			"chunks of 1 MiB: one chunk crosses while the next chunk is summed"}
}

var hierarchicalOps = []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather}

// Usual returns true for messages that are large enough to gain from the stages.
func (hierarchical) Usual(in *Instance) bool { return in.Message() >= hierarchicalFrom }

// hierarchicalCost predicts the time as the longer of the time between nodes and the time inside a node, plus the time
// of the first chunk of the other.
func hierarchicalCost(d *machine.Description, c *machine.Collective) (us float64, ok bool) {
	free := c.AnyOrder || c.DType.IsInt() && c.Red != ir.Avg || c.Op == ir.OpAllGather
	if !d.Crosses(c) || !c.Even || c.Near < 2 || c.Message < hierarchicalFrom || !free ||
		!slices.Contains(hierarchicalOps, c.Op) {
		return 0, false
	}
	n, near, message := float64(c.Members), float64(c.Near), float64(c.Message)
	crossing, inside := message*(n-near)/n, message*(near-1)/near
	if c.Op == ir.OpAllReduce {
		crossing, inside = message*float64(c.Nodes-1), 2*inside
	}
	across, within := d.Across.Wire(crossing), d.Described(c.Op, int64(inside))
	chunks := min(max(message/(1<<20), 1), mostCrossings)
	return d.Across.Latency + max(across, within) + min(across, within)/chunks, true
}

func (hierarchical) Supports(in *Instance, _ device.Caps) error {
	if err := in.crosses(); err != nil {
		return err
	}
	if _, err := in.places(); err != nil {
		return err
	}
	switch in.Op {
	case ir.OpAllGather:
		return nil
	case ir.OpAllReduce:
		for i := range in.Parts {
			if !dense(in.Parts[i].Out) {
				return fmt.Errorf("%w: it needs dense outputs", device.ErrUnsupported)
			}
		}
	}
	integers := in.dtype() == ir.I32 || in.dtype() == ir.I64
	switch {
	case integers && in.Red == ir.Avg:
		return fmt.Errorf("%w: averages of integers must be rounded once, at the end", device.ErrUnsupported)
	case !integers && !in.AnyOrder:
		return fmt.Errorf("%w: it adds node by node, but the collective requires the order of the ranks; set order=any to "+
			"allow it",
			device.ErrUnsupported)
	}
	return nil
}

// places returns the members of each node, in their order. It returns an error unless each node has the same number of
// members, and at least two.
func (in *Instance) places() ([][]int, error) {
	var nodes [][]int
	at := map[int]int{}
	for m, node := range in.nodes {
		i, known := at[node]
		if !known {
			i = len(nodes)
			at[node], nodes = i, append(nodes, nil)
		}
		nodes[i] = append(nodes[i], m)
	}
	for _, list := range nodes {
		if len(list) != len(nodes[0]) || len(list) < 2 {
			return nil, fmt.Errorf("%w: it needs the same number of members on each node, and at least two",
				device.ErrUnsupported)
		}
	}
	return nodes, nil
}

const (
	// hierarchicalFrom is the message size in bytes from which hierarchical is used.
	hierarchicalFrom = 64 << 10
	// mostCrossings is the largest number of chunks of an instance.
	mostCrossings = 8
)

// crossingBytes is the size of the chunks that a message is cut into. Tests lower it.
var crossingBytes int64 = 1 << 20

// stages describes how an instance is cut into chunks and where staging holds them.
type stages struct {
	nodes  [][]int
	n, l   int64 // number of nodes; number of members on each
	chunks int64
	size   int64 // bytes of an element
	// For an all_reduce, whole is the number of elements, and slice the number of elements of a chunk that one member of a
	// node reduces.
	whole int64
	// For other collectives, slice is the number of rows of a chunk along the first dimension of a block, and row the
	// number of elements of a row.
	slice, row int64
	block      []int64 // the shape of a block

	sum, came, total, bytes int64 // offsets in staging of: sums that cross, received data, totals of an all_reduce
	native                  bool  // whether the transport can add the sums between nodes itself
}

func (hierarchical) stages(in *Instance) stages {
	nodes, _ := in.places()
	s := stages{nodes: nodes, n: int64(len(nodes)), l: int64(len(nodes[0])), size: in.dtype().Size()}
	s.chunks = min(max(in.Message()/crossingBytes, 1), mostCrossings)
	if in.Op == ir.OpAllReduce {
		elements := in.Parts[0].In.Elements()
		s.whole, s.slice = elements, (elements+s.chunks*s.l-1)/(s.chunks*s.l)
		s.sum = alignUp(s.chunks * s.l * s.slice * s.size)
		s.came = s.sum + alignUp(s.chunks*s.slice*s.size)
		s.total = s.came + alignUp(s.chunks*s.n*s.slice*s.size)
		s.bytes = s.total + s.chunks*s.slice*s.size
		return s
	}
	s.block = in.Parts[0].In.Shape
	operand := int64(1) // number of blocks in a member's operand
	if in.Op == ir.OpReduceScatter {
		s.block = in.Parts[0].Out.Shape
		operand = s.n * s.l
	}
	rows := s.block[0]
	s.row = 1
	for _, e := range s.block[1:] {
		s.row *= e
	}
	s.chunks = min(s.chunks, max(rows, 1))
	s.slice = (rows + s.chunks - 1) / s.chunks
	bytes := rows * s.row * s.size // bytes of a block
	s.sum = alignUp(operand * bytes)
	s.came = s.sum
	if in.Op == ir.OpReduceScatter {
		s.came += alignUp(s.n * bytes)
	}
	s.bytes = s.came + s.n*bytes
	return s
}

// elements returns the range of elements of all_reduce chunk k that the members at the given position of each node
// reduce.
func (s *stages) elements(k, place int64) (lo, n int64) {
	lo = min((k*s.l+place)*s.slice, s.whole)
	return lo, min(s.slice, s.whole-lo)
}

// rows returns the range of rows of chunk k.
func (s *stages) rows(k int64) (lo, n int64) {
	lo = min(k*s.slice, s.block[0])
	return lo, min(s.slice, s.block[0]-lo)
}

func (h hierarchical) Staging(in *Instance) int64 { return h.stages(in).bytes }

func (h hierarchical) Build(b *Build) {
	s := h.stages(b.in)
	// Each member's steps are added in the order post, begin(0), begin(1), end(0), begin(2), end(1), …
	works := make([]*stageWork, b.Size())
	for _, members := range s.nodes {
		for place, me := range members {
			works[me] = &stageWork{b: b, s: &s, me: me, place: int64(place), near: members}
			works[me].post()
		}
	}
	for k := range s.chunks {
		for _, w := range works {
			w.begin(k)
		}
		for place := range s.l {
			b.cross(&s, works, place, k)
		}
		if k > 0 {
			for _, w := range works {
				w.end(k - 1)
			}
		}
	}
	for _, w := range works {
		w.end(s.chunks - 1)
	}
}

// stageWork adds the steps of one member.
type stageWork struct {
	b       *Build
	s       *stages
	me      int
	place   int64
	near    []int          // the members of the node
	crossed []device.Event // by chunk: recorded when the chunk has crossed
}

func (w *stageWork) at(member int, off int64, shape ...int64) device.View {
	return w.b.Staging(member, off, shape)
}

// meetNear makes the member signal all members of its node and wait for the signals of all of them.
func (w *stageWork) meetNear() {
	for d := 1; d < len(w.near); d++ {
		w.b.Tell(w.me, w.near[(int(w.place)+d)%len(w.near)])
	}
	for d := 1; d < len(w.near); d++ {
		w.b.Await(w.me, w.near[(int(w.place)+d)%len(w.near)])
	}
}

// post copies the operand to staging, from which the node's members or the transport read it.
func (w *stageWork) post() {
	in := w.b.in
	p := &in.Parts[w.me]
	if in.Op == ir.OpReduceScatter {
		n := w.b.Size()
		for i := range n {
			w.b.Copy(w.me, w.at(w.me, int64(i)*w.blockBytes(), w.s.block...), block(p.In, in.Axis, i, n))
		}
	} else {
		w.b.Copy(w.me, w.at(w.me, 0, p.In.Shape...), p.In)
	}
	if in.Op != ir.OpAllGather {
		w.meetNear()
	}
}

func (w *stageWork) blockBytes() int64 { return w.s.block[0] * w.s.row * w.s.size }

// chunkShape returns the shape of n rows of a block.
func (w *stageWork) chunkShape(n int64) []int64 {
	return append([]int64{n}, w.s.block[1:]...)
}

// begin reduces chunk k inside the node.
func (w *stageWork) begin(k int64) {
	s := w.s
	switch w.b.in.Op {
	case ir.OpAllReduce:
		lo, n := s.elements(k, w.place)
		w.reduceNear(w.at(w.me, s.sum+k*s.slice*s.size, n), lo*s.size, n)
	case ir.OpReduceScatter:
		lo, n := s.rows(k)
		for node := range s.n {
			to := int64(s.nodes[node][w.place])
			off := to*w.blockBytes() + lo*s.row*s.size
			w.reduceNear(w.at(w.me, s.sum+(s.n*lo+node*n)*s.row*s.size, n*s.row), off, n*s.row)
		}
	}
}

// reduceNear reduces the given number of elements of the node's members, which begin off bytes after the start of each
// member's staging, into to.
func (w *stageWork) reduceNear(to device.View, off, elements int64) {
	var from []device.View
	for _, m := range w.near {
		from = append(from, w.at(m, off, elements))
	}
	w.b.Reduce(w.me, to, from)
}

// cross makes the members at position place of all nodes exchange chunk k on their side streams, concurrently with
// their other work.
func (b *Build) cross(s *stages, works []*stageWork, place, k int64) {
	var members []int
	for _, node := range s.nodes {
		members = append(members, node[place])
	}
	var c device.Collective
	var part func(me int) Part
	at := func(me int, off, elements int64) device.View { return b.Staging(me, off, []int64{elements}) }
	switch b.in.Op {
	case ir.OpAllReduce:
		c.Op = ir.OpAllGather
		_, n := s.elements(k, place)
		part = func(me int) Part {
			return Part{In: at(me, s.sum+k*s.slice*s.size, n), Out: at(me, s.came+k*s.n*s.slice*s.size, s.n*n)}
		}
	case ir.OpReduceScatter:
		c.Op = ir.OpAllToAll
		lo, n := s.rows(k)
		part = func(me int) Part {
			off := s.n * lo * s.row * s.size
			return Part{In: at(me, s.sum+off, s.n*n*s.row), Out: at(me, s.came+off, s.n*n*s.row)}
		}
	default:
		c.Op = ir.OpAllGather
		lo, n := s.rows(k)
		part = func(me int) Part {
			return Part{In: at(me, lo*s.row*s.size, n*s.row), Out: at(me, s.came+s.n*lo*s.row*s.size, s.n*n*s.row)}
		}
	}
	open := func() (device.Team, error) { return b.ch.sideTeam(int(place), members) }
	if native, nativePart := s.sums(b, place, k); native.Op != ir.OpBarrier &&
		b.takes(open, native, members, nativePart) {
		s.native, c, part = true, native, nativePart
	}
	b.launchAll(open, c, members, part, func(me int, l device.Launch) {
		side := b.ch.sides[me]
		b.add(me, step{kind: stepFork, side: side})
		b.add(me, step{kind: stepSide, side: side, launch: l})
	})
	if b.err != nil {
		return
	}
	for _, me := range members {
		e, err := b.ch.device(me).NewEvent()
		if err != nil {
			b.fail(err)
			return
		}
		b.ch.joins = append(b.ch.joins, e)
		b.add(me, step{kind: stepCrossed, side: &side{b.ch.sides[me].stream, e}})
		works[me].crossed = append(works[me].crossed, e)
	}
}

// sums returns the collective that adds chunk k between nodes in the transport, and each member's part of it. If
// nothing is added, the collective is a barrier.
func (s *stages) sums(b *Build, place, k int64) (c device.Collective, part func(me int) Part) {
	at := func(me int, off, elements int64) device.View { return b.Staging(me, off, []int64{elements}) }
	// Instances that reach this point allow any order or add integers.
	c = device.Collective{Op: b.in.Op, Red: b.in.Red, AnyOrder: true}
	switch b.in.Op {
	case ir.OpAllReduce:
		_, n := s.elements(k, place)
		return c, func(me int) Part {
			return Part{In: at(me, s.sum+k*s.slice*s.size, n), Out: at(me, s.total+k*s.slice*s.size, n)}
		}
	case ir.OpReduceScatter:
		lo, n := s.rows(k)
		off := s.n * lo * s.row * s.size
		return c, func(me int) Part {
			return Part{In: at(me, s.sum+off, s.n*n*s.row), Out: at(me, s.came+off, n*s.row)}
		}
	}
	return device.Collective{Op: ir.OpBarrier}, nil
}

// takes reports whether the transport supports a collective of the given members.
func (b *Build) takes(open func() (device.Team, error), c device.Collective, members []int,
	part func(me int) Part) bool {
	team, err := open()
	if err != nil {
		return false // launchAll reports the error
	}
	for _, me := range members {
		p := part(me)
		p.Reads, p.Writes, p.To, p.From = true, true, -1, -1
		c.Parts = append(c.Parts, p)
	}
	return team.Supports(device.Tuning{Algo: b.ch.world.Transport()}, &c) == nil
}

// end waits until chunk k has crossed, and finishes the chunk inside the node.
func (w *stageWork) end(k int64) {
	b, s, p := w.b, w.s, &w.b.in.Parts[w.me]
	if b.err != nil {
		return
	}
	b.add(w.me, step{kind: stepJoin, side: &side{event: w.crossed[k]}})
	switch b.in.Op {
	case ir.OpAllReduce:
		_, n := s.elements(k, w.place)
		var came []device.View
		for node := range s.n {
			came = append(came, w.at(w.me, s.came+(k*s.n*s.slice+node*n)*s.size, n))
		}
		if !s.native {
			b.Reduce(w.me, w.at(w.me, s.total+k*s.slice*s.size, n), came)
		}
		w.meetNear()
		for place, m := range w.near {
			lo, n := s.elements(k, int64(place))
			b.Copy(w.me, flat(p.Out, lo, lo+n), w.at(m, s.total+k*s.slice*s.size, n))
		}
	case ir.OpReduceScatter:
		lo, n := s.rows(k)
		if s.native {
			b.Copy(w.me, rows(p.Out, 0, lo, n), w.at(w.me, s.came+s.n*lo*s.row*s.size, w.chunkShape(n)...))
			return
		}
		var came []device.View
		for node := range s.n {
			came = append(came, w.at(w.me, s.came+(s.n*lo+node*n)*s.row*s.size, w.chunkShape(n)...))
		}
		b.Reduce(w.me, rows(p.Out, 0, lo, n), came)
	default:
		w.meetNear()
		lo, n := s.rows(k)
		for place, m := range w.near {
			for node := range s.n {
				from := w.at(m, s.came+(s.n*lo+node*n)*s.row*s.size, w.chunkShape(n)...)
				to := block(p.Out, b.in.Axis, s.nodes[node][place], b.Size())
				b.Copy(w.me, rows(to, 0, lo, n), from)
			}
		}
	}
}

// side is a stream that a member uses in addition to its own, and an event that orders the two streams.
type side struct {
	stream device.Stream
	event  device.Event
}

// sideTeam returns the team that consists of the members at one position of all nodes, on their side streams.
func (c *Channel) sideTeam(place int, members []int) (device.Team, error) {
	if t := c.sideTeams[place]; t != nil {
		return t, nil
	}
	if c.sides == nil {
		c.sides, c.sideTeams = map[int]*side{}, map[int]device.Team{}
	}
	var list []Member
	for _, m := range members {
		d := c.device(m)
		s, err := d.NewStream(device.StreamOptions{Name: c.members[m].Stream.Name() + ", between nodes"})
		if err != nil {
			return nil, err
		}
		fork, err := d.NewEvent()
		if err != nil {
			return nil, err
		}
		c.sides[m] = &side{s, fork}
		list = append(list, Member{Rank: c.members[m].Rank, Stream: s})
	}
	t, err := c.world.OpenTeam(list)
	if err == nil {
		c.sideTeams[place] = t
	}
	return t, err
}
