package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"hocket.example/hocket/internal/longtest"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// randomPlan returns a random plan without deadlock: each command is added after everything that it waits for. Then the
// commands of different ranks are interleaved at random, so that a wait may precede its signal in the list.
type randomPlan struct {
	*rand.Rand
	p       *plan.Plan
	streams [][]int32 // by rank
	events  [][]int32 // for each rank: events recorded so far
	raised  []int64   // for each signalling stream and waiting rank: how often it was raised
}

func drawPlan(r *rand.Rand) *plan.Plan {
	d := &randomPlan{Rand: r, p: &plan.Plan{Ranks: 1 + r.IntN(3), Sites: make([]plan.Site, 1),
		Buffers: make([]plan.Buffer, 1)}}
	for rank := range d.p.Ranks {
		d.streams, d.events = append(d.streams, nil), append(d.events, nil)
		for s := range 1 + r.IntN(4) {
			d.streams[rank] = append(d.streams[rank], int32(len(d.p.Streams)))
			d.p.Streams = append(d.p.Streams, plan.Stream{Rank: int32(rank), Name: fmt.Sprintf("s%d", s)})
		}
	}
	d.p.Counters = []plan.Counter{{Len: int32(len(d.p.Streams))}}
	d.raised = make([]int64, len(d.p.Streams)*d.p.Ranks)
	for range 4 + r.IntN(28) {
		d.step()
	}
	byRank := make([][]plan.Cmd, d.p.Ranks)
	for _, c := range d.p.Cmds {
		byRank[c.Rank] = append(byRank[c.Rank], c)
	}
	for i := range d.p.Cmds {
		rank := r.IntN(d.p.Ranks)
		for len(byRank[rank]) == 0 {
			rank = (rank + 1) % d.p.Ranks
		}
		d.p.Cmds[i], byRank[rank] = byRank[rank][0], byRank[rank][1:]
	}
	return d.p
}

// ref returns a matrix with a random number of rows.
func (d *randomPlan) ref(rank int) plan.Ref {
	n := int64(1) << (4 + d.IntN(9))
	return plan.Ref{Rank: int32(rank), DType: ir.BF16, Shape: []int64{n, 1024}, Strides: []int64{1024, 1}}
}

func (d *randomPlan) stream(rank int) int32 { return d.streams[rank][d.IntN(len(d.streams[rank]))] }

func (d *randomPlan) add(rank int, stream int32, c plan.Cmd) {
	c.Rank, c.Stream = int32(rank), stream
	if c.Kind != plan.Copy {
		c.Peer = max(c.Peer, 0)
	}
	d.p.Cmds = append(d.p.Cmds, c)
}

func (d *randomPlan) step() {
	rank := d.IntN(d.p.Ranks)
	s, peer := d.stream(rank), d.IntN(d.p.Ranks)
	switch d.IntN(10) {
	case 0, 1, 2:
		op := []ir.Op{ir.OpAdd, ir.OpSum}[d.IntN(2)]
		d.add(rank, s, plan.Cmd{Kind: plan.Compute, Op: op, Ins: []plan.Ref{d.ref(rank)}, Outs: []plan.Ref{d.ref(rank)}})
	case 3:
		from := d.ref(rank)
		to := from
		to.Rank = int32(peer)
		d.add(rank, s, plan.Cmd{Kind: plan.Copy, Peer: int32(peer), Ins: []plan.Ref{from}, Outs: []plan.Ref{to}})
	case 4:
		d.events[rank] = append(d.events[rank], int32(d.p.Events))
		d.add(rank, s, plan.Cmd{Kind: plan.Record, Event: int32(d.p.Events)})
		d.p.Events++
	case 5, 6:
		if n := len(d.events[rank]); n > 0 { // mostly a recent one
			d.add(rank, s, plan.Cmd{Kind: plan.WaitEvent, Event: d.events[rank][max(d.IntN(n), d.IntN(n))]})
		}
	case 7:
		if from := d.IntN(len(d.p.Streams)); d.IntN(2) == 0 {
			d.raised[int(s)*d.p.Ranks+peer]++
			d.add(rank, s, plan.Cmd{Kind: plan.Signal, Elem: s, Peer: int32(peer)})
		} else if n := d.raised[from*d.p.Ranks+rank]; n > 0 {
			d.add(rank, s, plan.Cmd{Kind: plan.WaitCounter, Elem: int32(from), Value: 1 + d.Int64N(n)})
		}
	case 8:
		d.collective()
	case 9:
		d.group()
	}
}

func (d *randomPlan) collective() {
	ops := []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpBarrier}
	coll := plan.Coll{Op: ops[d.IntN(len(ops))], Channel: int32(len(d.p.Channels))}
	var ch plan.Channel
	of := d.ref(0)
	for i, rank := range d.Perm(d.p.Ranks)[:1+d.IntN(d.p.Ranks)] {
		of.Rank = int32(rank)
		ch.Team, ch.Streams = append(ch.Team, int32(rank)), append(ch.Streams, d.stream(rank))
		coll.Parts = append(coll.Parts, plan.CollPart{In: of, Out: of})
		d.add(rank, ch.Streams[i], plan.Cmd{Kind: plan.Collective, Coll: int32(len(d.p.Colls)), Part: int32(i)})
	}
	d.p.Channels, d.p.Colls = append(d.p.Channels, ch), append(d.p.Colls, coll)
}

// group adds a ring of sends and receives between some ranks, or one within a rank.
func (d *randomPlan) group() {
	ranks := d.Perm(d.p.Ranks)[:1+d.IntN(d.p.Ranks)]
	first := len(d.p.Pairs)
	for i, rank := range ranks {
		from, to := d.ref(rank), d.ref(rank)
		to.Rank = int32(ranks[(i+1)%len(ranks)])
		d.p.Pairs = append(d.p.Pairs, plan.Pair{Src: from, Dst: to})
		prev := (i + len(ranks) - 1) % len(ranks)
		d.add(rank, d.stream(rank), plan.Cmd{Kind: plan.Group,
			Group: []plan.P2P{{Pair: int32(first + i), Send: true}, {Pair: int32(first + prev)}}})
	}
}

// These are the points of a command that happens-before relates: it is issued, then runs, then
// ends.
const (
	issued = iota
	runs
	ended
)

// happensBefore returns, for each of the three points of each command, the points that directly
// follow. A wait ends after the command that it waits for has ended. The parts of a collective, and
// the two sides of a transfer, run once all of them are issued.
func happensBefore(p *plan.Plan) [][]int {
	next := make([][]int, 3*len(p.Cmds))
	edge := func(a, atA, b, atB int) { next[3*a+atA] = append(next[3*a+atA], 3*b+atB) }
	last := map[int32]int{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		edge(i, issued, i, runs)
		edge(i, runs, i, ended)
		if before, ok := last[c.Stream]; ok {
			edge(before, ended, i, issued)
		}
		last[c.Stream] = i
		raised := int64(0)
		for j := range p.Cmds {
			switch o := &p.Cmds[j]; {
			case c.Kind == plan.WaitEvent && o.Kind == plan.Record && o.Event == c.Event:
				edge(j, ended, i, ended)
			case c.Kind == plan.WaitCounter && o.Kind == plan.Signal && o.Peer == c.Rank && o.Elem == c.Elem:
				if raised++; raised <= c.Value {
					edge(j, ended, i, ended)
				}
			case c.Kind == plan.Collective && o.Kind == plan.Collective && o.Coll == c.Coll:
				edge(j, issued, i, runs)
			case c.Kind == plan.Group && o.Kind == plan.Group && share(c.Group, o.Group):
				edge(j, issued, i, runs)
			}
		}
	}
	return next
}

func share(a, b []plan.P2P) bool {
	for _, x := range a {
		for _, y := range b {
			if x.Pair == y.Pair {
				return true
			}
		}
	}
	return false
}

// listing prints a plan's commands, for error messages.
func listing(p *plan.Plan) string {
	var b strings.Builder
	for i := range p.Cmds {
		c := &p.Cmds[i]
		fmt.Fprintf(&b, "%d r%d %d %s event %d counter %d→%d >= %d coll %d %v\n", i, c.Rank, c.Stream, c.Kind, c.Event,
			c.Elem, c.Peer, c.Value, c.Coll, c.Group)
	}
	return b.String()
}

// TestTimelineKeepsOrder checks that the timeline respects happens-before: if the plan orders two
// commands, the first ends before the second begins. If waits and signals take no time, each
// command must begin exactly when its last predecessor ends: commands that share a device slow each
// other down, but do not wait.
func TestTimelineKeepsOrder(t *testing.T) {
	real, instant := h200(t), h200(t)
	instant.Wait, instant.Signal, instant.Barrier, instant.Across = 0, 0, 0, nil
	seed := longtest.Seed(t)
	ordered := 0
	for n := range uint64(longtest.Of(10_000, 200_000)) {
		p := drawPlan(rand.New(rand.NewPCG(seed, n)))
		for of, m := range map[string]*machine.Description{"a machine": real, "a machine whose waits take no time": instant} {
			line, err := Plan(p, m)
			if err != nil {
				t.Fatalf("plan %d on %s: %v\n%s", n, of, err, listing(p))
			}
			ordered += checkOrder(t, p, line.Spans, m == instant)
			if t.Failed() {
				t.Fatalf("plan %d on %s:\n%s", n, of, listing(p))
			}
		}
	}
	if ordered < 100_000 {
		t.Errorf("only %d pairs of commands are ordered, too few for a test", ordered)
	}
}

// checkOrder checks a timeline against happensBefore, and returns how many pairs of commands are
// ordered. If exact is set, each command must begin when its last predecessor ends.
func checkOrder(t *testing.T, p *plan.Plan, spans []Span, exact bool) (ordered int) {
	var timed []int // the commands that the spans belong to, in order
	for i := range p.Cmds {
		switch p.Cmds[i].Kind {
		case plan.Compute, plan.Copy, plan.Collective, plan.Group:
			timed = append(timed, i)
		}
	}
	if len(timed) != len(spans) {
		t.Errorf("%d spans for %d commands", len(spans), len(timed))
		return 0
	}
	next := happensBefore(p)
	earliest := make([]float64, len(timed))
	last := make([]int, len(timed)) // for each command, the predecessor that ends last
	for a, cmd := range timed {
		reached := make([]bool, len(next))
		for todo := []int{3*cmd + ended}; len(todo) > 0; {
			at := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			for _, to := range next[at] {
				if !reached[to] {
					reached[to] = true
					todo = append(todo, to)
				}
			}
		}
		for b, later := range timed {
			if !reached[3*later+runs] {
				continue
			}
			ordered++
			if spans[a].End >= earliest[b] {
				earliest[b], last[b] = spans[a].End, cmd
			}
		}
	}
	for b, cmd := range timed {
		off := spans[b].Start - earliest[b]
		if slack := 1e-6 * (1 + earliest[b]); off < -slack || exact && math.Abs(off) > slack {
			t.Errorf("command %d begins at %v µs, its last predecessor %d ends at %v", cmd, spans[b].Start, last[b],
				earliest[b])
		}
	}
	return ordered
}
