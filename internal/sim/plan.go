package sim

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/exec/fuse"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Timeline is the predicted run of a plan.
type Timeline struct {
	// Time is the time at which the last rank finishes, in microseconds.
	Time float64 `json:"us"`
	// Exposed is, for each rank, the time in microseconds in which the rank computes nothing.
	Exposed []float64 `json:"exposed_us"`
	Spans   []Span    `json:"spans"`
}

// Plan predicts the run of a plan. It assumes that all ranks start at the same time and that the host never delays a
// command.
func Plan(p *plan.Plan, m *machine.Description) (*Timeline, error) {
	b, err := newPlanGraph(p, m)
	if err != nil {
		return nil, err
	}
	start, end, err := b.run(m)
	if err != nil {
		return nil, err
	}
	t := &Timeline{Spans: b.spans(start, end), Exposed: make([]float64, p.Ranks)}
	for _, e := range end {
		t.Time = max(t.Time, e)
	}
	busy := b.computing(start, end)
	for r := range t.Exposed {
		t.Exposed[r] = t.Time - busy[r]
	}
	return t, nil
}

// newPlanGraph makes the tasks of a plan.
func newPlanGraph(p *plan.Plan, m *machine.Description) (*planGraph, error) {
	b := &planGraph{graph: newGraph(), plan: p, m: m, records: map[int32]int{}, signals: map[counterAt][]int{},
		sent: map[*plan.Cmd]int{}, posted: map[*plan.Cmd]int{}, sides: map[int32][]int{}, chains: map[int]*fuse.Chain{},
		onStream: map[[2]int32]int{}}
	for i := range p.Cmds {
		b.announce(&p.Cmds[i])
	}
	if m.GPU != "" { // GPUs execute a chain of elementwise commands as one kernel
		finder := fuse.NewFinder(p)
		err := finder.Candidates(func(c *fuse.Chain) error {
			for _, i := range c.Members {
				b.chains[i] = nil
			}
			b.chains[c.Members[len(c.Members)-1]] = c
			return nil
		})
		if err == nil {
			err = finder.Attentions(func(attention, lse int) error {
				if p.Cmds[attention].Outs[0].DType.Size() == 2 { // tensor cores compute both in one kernel
					b.chains[lse] = nil
				}
				return nil
			})
		}
		if err != nil {
			return nil, err
		}
	}
	for i := range p.Cmds {
		if c, ok := b.chains[i]; ok {
			b.chain(&p.Cmds[i], c)
			continue
		}
		if err := b.cmd(&p.Cmds[i]); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// counterAt is one element of a counter on one rank.
type counterAt struct{ rank, counter, elem int32 }

// planGraph builds the tasks of a plan.
type planGraph struct {
	*graph
	plan    *plan.Plan
	m       *machine.Description
	records map[int32]int // for each event, the task that it records, or -1
	// Tasks that commands of other streams wait for are created before all others, because the
	// commands that complete them may come later in the plan.
	signals map[counterAt][]int // for each counter element, the tasks that raise it, in order of issue
	sent    map[*plan.Cmd]int   // for each signal command: the task that raises the counter
	posted  map[*plan.Cmd]int   // by group command: its start
	sides   map[int32][]int     // for each send/receive pair: the starts of the two groups that contain its sides
	// onStream is the number of collectives of each (rank, stream).
	onStream map[[2]int32]int
	// chains holds, by command that is in a chain, the chain for its last member and nil for the others. The chain is
	// also nil for an attention_lse that the kernel of an attention computes.
	chains map[int]*fuse.Chain
}

// chain adds the kernel of chain c, of which cmd is the last command. It does nothing if c is nil.
func (b *planGraph) chain(cmd *plan.Cmd, c *fuse.Chain) {
	if c == nil {
		return
	}
	b.add(task{rank: int(cmd.Rank), stream: int(cmd.Stream), class: compute, work: b.m.TouchTime(c.Bytes),
		span: b.named(cmd, b.plan.Called(cmd))})
}

// announce creates the tasks that commands of other streams wait for.
func (b *planGraph) announce(c *plan.Cmd) {
	switch c.Kind {
	case plan.Collective:
		b.onStream[[2]int32{c.Rank, c.Stream}]++
	case plan.Signal:
		b.sent[c] = b.free(task{rank: int(c.Rank), work: b.m.Signal})
		at := counterAt{c.Peer, c.Counter, c.Elem}
		b.signals[at] = append(b.signals[at], b.sent[c])
	case plan.Group:
		b.posted[c] = b.free(task{rank: int(c.Rank)})
		for _, t := range c.Group {
			b.sides[t.Pair] = append(b.sides[t.Pair], b.posted[c])
		}
	}
}

// after makes the task t wait for the task with the number on.
func (b *planGraph) after(t, on int) { b.tasks[t].deps = append(b.tasks[t].deps, on) }

func (b *planGraph) cmd(c *plan.Cmd) error {
	rank, stream := int(c.Rank), int(c.Stream)
	switch c.Kind {
	case plan.Record:
		b.records[c.Event] = -1
		if t, ok := b.tail(rank, stream); ok {
			b.records[c.Event] = t
		}
	case plan.WaitEvent:
		if t, ok := b.records[c.Event]; ok && t >= 0 {
			b.join(rank, stream, t, b.m.Wait)
		}
	case plan.Signal:
		b.after(b.sent[c], b.add(task{rank: rank, stream: stream}))
	case plan.WaitCounter:
		raised := b.signals[counterAt{c.Rank, c.Counter, c.Elem}]
		if int(c.Value) > len(raised) {
			return fmt.Errorf("rank %d waits for signal %d of %d", c.Rank, c.Value, len(raised))
		}
		b.add(task{rank: rank, stream: stream, work: b.m.Wait, deps: slices.Clone(raised[:c.Value])})
	case plan.Collective:
		b.collective(c)
	case plan.Group:
		b.group(c)
	case plan.Copy:
		b.copy(c)
	case plan.Compute:
		b.add(task{rank: rank, stream: stream, class: compute, work: b.computeTime(c),
			span: b.named(c, b.plan.Called(c))})
	}
	return nil
}

// group starts transfers. A transfer continues once both of its sides have started.
func (b *planGraph) group(c *plan.Cmd) {
	rank, stream := int(c.Rank), int(c.Stream)
	b.after(b.posted[c], b.add(task{rank: rank, stream: stream}))
	t := task{rank: rank, stream: stream, class: transfer, work: b.groupTime(c), span: b.named(c, "send/recv")}
	for _, p := range c.Group {
		t.deps = append(t.deps, b.sides[p.Pair]...)
	}
	b.add(t)
}

func (b *planGraph) named(c *plan.Cmd, name string) *Span {
	return &Span{Name: name, Stream: b.plan.Streams[c.Stream].Name}
}

func (b *planGraph) collective(c *plan.Cmd) {
	coll := &b.plan.Colls[c.Coll]
	t := task{rank: int(c.Rank), stream: int(c.Stream), class: collective, group: int(c.Coll) + 1,
		span: b.named(c, coll.Op.String())}
	if coll.Op == ir.OpBarrier {
		t.class = instant
	}
	like := described(coll)
	b.m.Span(like, b.team(coll))
	t.work, t.contested = b.m.CollectiveTime(like), b.m.GEMMBesideCollective
	if b.onStream[[2]int32{c.Rank, c.Stream}] > 1 { // one of several chunks; a single collective slows a GEMM less
		t.contested = b.m.Contested(like)
	}
	b.add(t)
}

// team returns a collective's members.
func (b *planGraph) team(c *plan.Coll) (ranks []int) {
	for _, r := range b.plan.Channels[c.Channel].Team {
		ranks = append(ranks, int(r))
	}
	return ranks
}

// described returns the properties of a collective that its time depends on.
func described(c *plan.Coll) *machine.Collective {
	out := &machine.Collective{Op: c.Op, Red: c.Red, Members: int64(len(c.Parts)), AnyOrder: c.AnyOrd,
		Algorithm: c.Algo}
	for i := range c.Parts {
		p := &c.Parts[i]
		out.Moved = max(out.Moved, c.Moved(i))
		for _, r := range []plan.Ref{p.In, p.Out} {
			if r.Present() {
				out.DType, out.Message = r.DType, max(out.Message, r.Bytes())
			}
		}
	}
	return out
}

func (b *planGraph) copy(c *plan.Cmd) {
	t := task{rank: int(c.Rank), stream: int(c.Stream), class: compute, work: b.m.TouchTime(2 * c.Ins[0].Bytes()),
		span: b.named(c, "copy")}
	if c.Peer >= 0 && c.Peer != c.Rank {
		t.class, t.work = transfer, b.m.CopyTime(c.Ins[0].Bytes())
		t.span.Name = fmt.Sprintf("put %d→%d", c.Ins[0].Rank, c.Outs[0].Rank)
	}
	b.add(t)
}

// groupTime is the time of the longest transfer of a group. Both directions run at once.
func (b *planGraph) groupTime(c *plan.Cmd) float64 {
	send, recv := 0.0, 0.0
	for _, p := range c.Group {
		us := b.m.CopyTime(b.plan.Pairs[p.Pair].Src.Bytes())
		if p.Send {
			send += us
		} else {
			recv += us
		}
	}
	return max(send, recv)
}

func (b *planGraph) computeTime(c *plan.Cmd) float64 {
	if c.Op == ir.OpLaunch { // the memory that a user kernel accesses is unknown
		o := Op{}
		for _, t := range tensors(slices.Concat(c.Ins, c.Outs)) {
			o.Bytes += t.Bytes
		}
		return o.Time(b.m)
	}
	o := NewOp(c.Op, tensors(c.Ins), tensors(c.Outs)[0], c.Attr.TA)
	o.FastAccum = c.Attr.FastAccum
	return o.Time(b.m)
}

func tensors(refs []plan.Ref) []Tensor {
	out := make([]Tensor, len(refs))
	for i, r := range refs {
		out[i] = Tensor{Shape: r.Shape, DType: r.DType, Bytes: r.Distinct()}
	}
	return out
}

// computing returns the time in which a rank computes, for each rank. Time in which several kernels run is counted
// once.
func (g *graph) computing(start, end []float64) map[int]float64 {
	busy, until := map[int]float64{}, map[int]float64{}
	for _, i := range byStart(start) {
		if t := &g.tasks[i]; t.class == compute {
			from := max(start[i], until[t.rank])
			busy[t.rank] += max(0, end[i]-from)
			until[t.rank] = max(until[t.rank], end[i])
		}
	}
	return busy
}
