package verify_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

var explored = flag.Int("explored", 400, "how many random plans are explored exhaustively")

// explorer visits every state of two consecutive runs of a small plan. A state records for each stream the number of
// completed commands, and whether the next command has started. The explorer uses no clocks and no happens-before
// edges; it knows only the conditions under which a command may start and end. A race is a state in which two commands
// are running that access the same bytes, at least one of them for writing.
type explorer struct {
	p       *plan.Plan
	streams [][]int // commands by stream
	meet    bool    // set if all members of a collective end together, whatever data they need
	pos     []int   // for each command: its position in its stream, from 0
	touched [][]touch
	seen    map[uint64]bool
	fault   string
}

// exploreFor limits the number of states that are visited for one plan.
const exploreFor = 40_000

// explore returns "" if there is no fault, a description of a fault, or "too large".
func explore(p *plan.Plan, meet bool) string {
	x := &explorer{p: p, meet: meet, streams: make([][]int, len(p.Streams)), seen: map[uint64]bool{}}
	for i := range p.Cmds {
		s := p.Cmds[i].Stream
		x.pos = append(x.pos, len(x.streams[s]))
		x.streams[s] = append(x.streams[s], i)
		x.touched = append(x.touched, x.touches(i))
	}
	todo := []uint64{0}
	x.seen[0] = true
	for len(todo) > 0 {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if len(x.seen) > exploreFor {
			return "too large"
		}
		next := x.visit(at)
		if x.fault != "" {
			return x.fault
		}
		for _, n := range next {
			if !x.seen[n] {
				x.seen[n] = true
				todo = append(todo, n)
			}
		}
	}
	return ""
}

const bitsPerStream = 7

// place returns the number of commands that a stream has completed, over both runs, and reports whether its next
// command is running.
func place(at uint64, stream int) (done int, active bool) {
	v := at >> (bitsPerStream * stream) & (1<<bitsPerStream - 1)
	return int(v / 2), v%2 == 1
}

// command returns the n-th command of a stream, counted over both runs.
func (x *explorer) command(stream, n int) (cmd, run int, ok bool) {
	k := len(x.streams[stream])
	if n >= 2*k {
		return 0, 0, false
	}
	return x.streams[stream][n%k], n / k, true
}

func (x *explorer) visit(at uint64) []uint64 {
	var next []uint64
	left := false
	var active []int
	for s := range x.streams {
		done, on := place(at, s)
		cmd, run, ok := x.command(s, done)
		if !ok {
			continue
		}
		left = true
		if on {
			active = append(active, cmd)
			x.readsSomething(at, cmd, run)
		}
		if !on || x.mayEnd(at, cmd, run) {
			next = append(next, at+1<<(bitsPerStream*s))
		}
	}
	for i := range active {
		for j := range i {
			if x.conflict(active[i], active[j]) {
				x.fault = "race"
			}
		}
		if x.within(active[i]) {
			x.fault = "race within a command"
		}
	}
	if left && len(next) == 0 && x.fault == "" {
		x.fault = "deadlock"
	}
	return next
}

// state returns the state of a command in a run: 0 if it has not started, 1 if it is running, 2 if it is complete.
func (x *explorer) state(at uint64, cmd, run int) int {
	s := int(x.p.Cmds[cmd].Stream)
	n := run*len(x.streams[s]) + x.pos[cmd]
	done, on := place(at, s)
	switch {
	case done > n:
		return 2
	case done == n && on:
		return 1
	}
	return 0
}

func (x *explorer) mayEnd(at uint64, cmd, run int) bool {
	c := &x.p.Cmds[cmd]
	switch c.Kind {
	case plan.WaitEvent:
		for i := range x.p.Cmds {
			if o := &x.p.Cmds[i]; o.Kind == plan.Record && o.Event == c.Event {
				return x.state(at, i, run) == 2
			}
		}
	case plan.WaitCounter:
		raised, perRun := 0, 0
		for i := range x.p.Cmds {
			o := &x.p.Cmds[i]
			if o.Kind != plan.Signal || o.Counter != c.Counter || o.Elem != c.Elem || o.Peer != c.Rank {
				continue
			}
			perRun++
			for r := range 2 {
				if x.state(at, i, r) == 2 {
					raised++
				}
			}
		}
		return raised >= int(c.Value)+run*perRun
	case plan.Collective:
		coll := &x.p.Colls[c.Coll]
		for i := range x.p.Cmds {
			o := &x.p.Cmds[i]
			if o.Kind == plan.Collective && o.Coll == c.Coll && (x.meet || needs(coll, c.Part, o.Part)) &&
				x.state(at, i, run) == 0 {
				return false
			}
		}
	case plan.Group:
		for _, mine := range c.Group {
			for i := range x.p.Cmds {
				for _, o := range x.p.Cmds[i].Group {
					if o.Pair == mine.Pair && o.Send != mine.Send && x.state(at, i, run) == 0 {
						return false
					}
				}
			}
		}
	}
	return true
}

// needs reports whether member a of a collective cannot end before member b has started.
func needs(c *plan.Coll, a, b int32) bool {
	switch c.Op {
	case ir.OpBroadcast:
		return b == c.Root
	case ir.OpReduce:
		return a == c.Root
	}
	return true
}

type touch struct {
	rank   int32
	lo, hi int64
	write  bool
}

func (x *explorer) touches(cmd int) []touch {
	p, c := x.p, &x.p.Cmds[cmd]
	var out []touch
	add := func(r plan.Ref, write bool) {
		if r.Present() && r.Elements() > 0 {
			lo, hi := r.Span() // the random plans have dense tensors only
			b := p.Buffers[r.Buf].Offset
			out = append(out, touch{r.Rank, b + lo, b + hi, write})
		}
	}
	for _, r := range c.Ins {
		add(r, false)
	}
	for _, r := range c.Outs {
		add(r, true)
	}
	switch c.Kind {
	case plan.Collective:
		add(p.Colls[c.Coll].Parts[c.Part].In, false)
		add(p.Colls[c.Coll].Parts[c.Part].Out, true)
	case plan.Input:
		add(p.Inputs[c.IO].Parts[c.Rank].Ref, true)
	case plan.Output:
		add(p.Outputs[c.IO].Parts[c.Rank].Ref, false)
		add(p.Outputs[c.IO].Parts[c.Rank].Ref, true)
	}
	for _, g := range c.Group {
		if g.Send {
			add(p.Pairs[g.Pair].Src, false)
		} else {
			add(p.Pairs[g.Pair].Dst, true)
		}
	}
	return out
}

func clash(a, b touch) bool {
	return a.rank == b.rank && (a.write || b.write) && a.lo < b.hi && b.lo < a.hi
}

func (x *explorer) conflict(a, b int) bool {
	for _, s := range x.touched[a] {
		for _, t := range x.touched[b] {
			if clash(s, t) {
				return true
			}
		}
	}
	return false
}

// within reports whether two transfers of one group conflict.
func (x *explorer) within(cmd int) bool {
	if x.p.Cmds[cmd].Kind != plan.Group {
		return false
	}
	ts := x.touched[cmd]
	for i := range ts {
		for j := range i {
			if clash(ts[i], ts[j]) {
				return true
			}
		}
	}
	return false
}

// readsSomething checks that every byte that a command reads was written before.
func (x *explorer) readsSomething(at uint64, cmd, run int) {
	for _, r := range x.touched[cmd] {
		if r.write || run > 0 {
			continue
		}
		written := map[int64]bool{}
		for i := range x.p.Cmds {
			if x.state(at, i, 0) != 2 {
				continue
			}
			for _, w := range x.touched[i] {
				if w.write && w.rank == r.rank {
					for b := w.lo; b < w.hi; b++ {
						written[b] = true
					}
				}
			}
		}
		for b := r.lo; b < r.hi; b++ {
			if !written[b] && x.fault == "" {
				x.fault = "unwritten"
			}
		}
	}
}

// randomPlan generates small plans. Each rank has two streams, which compute, copy to each other, take part in
// collectives and wait.
type randomPlan struct {
	r *rand.Rand
	p *plan.Plan
}

func newRandomPlan(seed uint64) *plan.Plan {
	g := &randomPlan{r: rand.New(rand.NewPCG(seed, 7)),
		p: &plan.Plan{Ranks: 2, Func: "f", Sites: []plan.Site{{Op: ir.OpCopy}}}}
	if g.r.IntN(4) == 0 {
		g.p.Ranks = 3
	}
	p := g.p
	for r := range p.Ranks {
		p.Main = append(p.Main, int32(len(p.Streams)))
		p.Streams = append(p.Streams, plan.Stream{Rank: int32(r), Name: "main"},
			plan.Stream{Rank: int32(r), Name: "%s"})
	}
	for b := range 3 {
		p.Buffers = append(p.Buffers, plan.Buffer{Name: fmt.Sprintf("%%b%d", b), Role: plan.RoleAlloc, Symmetric: true,
			Offset: int64(b) * 8, Bytes: 8})
	}
	p.Buffers[0].Role = plan.RoleInput
	p.ArenaBytes = 24
	in := plan.IO{Name: "b0", DType: ir.F32, Shape: []int64{2}, Inout: true}
	for r := range p.Ranks {
		in.Parts = append(in.Parts, plan.IOPart{Ref: g.whole(int32(r), 0)})
	}
	p.Inputs, p.Outputs = []plan.IO{in}, []plan.IO{in}
	p.Counters = []plan.Counter{{Name: "%c", Len: 1, PerRun: make([]int64, p.Ranks)}}
	if g.r.IntN(2) == 0 {
		for r := range p.Ranks {
			g.emit(int32(r), p.Main[r], plan.Cmd{Kind: plan.Input})
		}
	}
	for r := range int32(p.Ranks) {
		if g.r.IntN(8) == 0 {
			continue
		}
		g.emit(r, p.Main[r], plan.Cmd{Kind: plan.Compute, Op: ir.OpFill,
			Outs: []plan.Ref{g.whole(r, 0), g.whole(r, 1), g.whole(r, 2)}})
		g.wait(r, p.Main[r]+1, p.Main[r])
	}
	if g.r.IntN(2) == 0 {
		g.collective()
	}
	raiser := make([]int32, p.Ranks)
	for r := range raiser {
		raiser[r] = int32(g.r.IntN(p.Ranks))
	}
	for range 2 + g.r.IntN(6) {
		g.step(raiser)
	}
	for range g.r.IntN(4) { // a little disorder
		i, j := g.r.IntN(len(p.Cmds)), g.r.IntN(len(p.Cmds))
		if p.Cmds[i].Kind == plan.WaitCounter || p.Cmds[i].Kind == plan.Group || p.Cmds[i].Kind == plan.Collective ||
			j == i+1 {
			p.Cmds[i], p.Cmds[j] = p.Cmds[j], p.Cmds[i]
		}
	}
	for r := range int32(p.Ranks) {
		if g.r.IntN(8) > 0 {
			g.wait(r, p.Main[r], p.Main[r]+1)
		}
	}
	if g.r.IntN(2) == 0 {
		for r := range int32(p.Ranks) {
			g.emit(r, p.Main[r], plan.Cmd{Kind: plan.Output})
		}
	}
	g.late()
	return p
}

func (g *randomPlan) whole(rank, buf int32) plan.Ref {
	return plan.Ref{Rank: rank, Buf: buf, DType: ir.F32, Shape: []int64{2}, Strides: []int64{1}}
}

// ref returns one element of a buffer, or all of the buffer.
func (g *randomPlan) ref(rank int32) plan.Ref {
	r := g.whole(rank, int32(g.r.IntN(3)))
	if k := g.r.IntN(3); k < 2 {
		r.Off, r.Shape = int64(k)*4, []int64{1}
	}
	return r
}

func (g *randomPlan) emit(rank, stream int32, c plan.Cmd) {
	c.Rank, c.Stream = rank, stream
	if c.Kind != plan.Copy {
		c.Peer = max(c.Peer, 0)
	}
	g.p.Cmds = append(g.p.Cmds, c)
}

func (g *randomPlan) stream(rank int32) int32 { return g.p.Main[rank] + int32(g.r.IntN(2)) }

func (g *randomPlan) step(raiser []int32) {
	p := g.p
	rank := int32(g.r.IntN(p.Ranks))
	s := g.stream(rank)
	switch k := g.r.IntN(16); {
	case k < 4:
		g.emit(rank, s, plan.Cmd{Kind: plan.Compute, Op: ir.OpFill, Outs: []plan.Ref{g.ref(rank)}})
	case k < 6:
		in, out := g.ref(rank), g.ref(rank)
		if in.Buf == out.Buf {
			out = in
		}
		g.emit(rank, s, plan.Cmd{Kind: plan.Compute, Op: ir.OpRelu, Ins: []plan.Ref{in}, Outs: []plan.Ref{out}})
	case k < 7:
		peer := int32(g.r.IntN(p.Ranks))
		in, out := g.ref(rank), g.ref(peer)
		out.Shape = in.Shape
		out.Off = in.Off
		if rank == peer && in.Buf == out.Buf {
			return
		}
		g.emit(rank, s, plan.Cmd{Kind: plan.Copy, Ins: []plan.Ref{in}, Outs: []plan.Ref{out}, Peer: peer})
	case k < 11:
		other := p.Main[rank] + (p.Main[rank] + 1 - s)
		g.wait(rank, s, other)
	case k < 13:
		g.collective()
	case k < 14:
		g.transfer(rank, s)
	default:
		from := raiser[rank]
		g.emit(from, g.stream(from), plan.Cmd{Kind: plan.Signal, Peer: rank})
		p.Counters[0].PerRun[rank]++
		if g.r.IntN(5) > 0 {
			g.emit(rank, s, plan.Cmd{Kind: plan.WaitCounter, Value: 1 + g.r.Int64N(p.Counters[0].PerRun[rank])})
		}
	}
}

// wait makes a stream wait for another stream of its rank.
func (g *randomPlan) wait(rank, stream, on int32) {
	g.emit(rank, on, plan.Cmd{Kind: plan.Record, Event: int32(g.p.Events)})
	g.emit(rank, stream, plan.Cmd{Kind: plan.WaitEvent, Event: int32(g.p.Events)})
	g.p.Events++
}

func (g *randomPlan) collective() {
	p := g.p
	ch := plan.Channel{}
	which := g.r.IntN(2)
	for r := range p.Ranks {
		ch.Team = append(ch.Team, int32(r))
		ch.Streams = append(ch.Streams, p.Main[r]+int32(which))
	}
	id := int32(-1)
	for i := range p.Channels {
		if p.Channels[i].Streams[0] == ch.Streams[0] {
			id = int32(i)
		}
	}
	if id < 0 {
		id = int32(len(p.Channels))
		p.Channels = append(p.Channels, ch)
	}
	coll := plan.Coll{Op: []ir.Op{ir.OpBarrier, ir.OpAllReduce, ir.OpBroadcast, ir.OpReduce}[g.r.IntN(4)], Channel: id,
		Root: int32(g.r.IntN(p.Ranks))}
	for i := range p.Colls {
		if p.Colls[i].Channel == id {
			coll.Seq++
		}
	}
	in, out := int32(g.r.IntN(3)), int32(g.r.IntN(3))
	for r := range int32(p.Ranks) {
		part := plan.CollPart{In: plan.Absent(), Out: plan.Absent(), To: -1, From: -1}
		if coll.Op == ir.OpAllReduce || coll.Op == ir.OpReduce || coll.Op == ir.OpBroadcast && r == coll.Root {
			part.In = g.whole(r, in)
		}
		if coll.Op == ir.OpAllReduce || coll.Op == ir.OpBroadcast || coll.Op == ir.OpReduce && r == coll.Root {
			part.Out = g.whole(r, out)
		}
		coll.Parts = append(coll.Parts, part)
	}
	for r := range int32(p.Ranks) {
		g.emit(r, ch.Streams[r], plan.Cmd{Kind: plan.Collective, Coll: int32(len(p.Colls)), Part: r})
	}
	p.Colls = append(p.Colls, coll)
}

// transfer generates one send and recv, or an exchange in groups.
func (g *randomPlan) transfer(rank, s int32) {
	p := g.p
	peer := int32(g.r.IntN(p.Ranks))
	t := g.stream(peer)
	pair := func(a, b int32) int32 {
		p.Pairs = append(p.Pairs, plan.Pair{Src: g.whole(a, int32(g.r.IntN(3))), Dst: g.whole(b, int32(g.r.IntN(3)))})
		return int32(len(p.Pairs)) - 1
	}
	there := pair(rank, peer)
	one := []plan.P2P{{Pair: there, Send: true}}
	two := []plan.P2P{{Pair: there}}
	if g.r.IntN(2) == 0 {
		back := pair(peer, rank)
		one = append(one, plan.P2P{Pair: back})
		two = append(two, plan.P2P{Pair: back, Send: true})
	}
	if rank == peer && g.r.IntN(2) == 0 {
		g.emit(rank, s, plan.Cmd{Kind: plan.Group, Group: append(one, two...)})
		return
	}
	g.emit(rank, s, plan.Cmd{Kind: plan.Group, Group: one})
	g.emit(peer, t, plan.Cmd{Kind: plan.Group, Group: two})
}

// late sets the mark Late of counter waits whose signals are issued after the wait.
func (g *randomPlan) late() {
	fired := make([]int64, g.p.Ranks)
	for i := range g.p.Cmds {
		switch c := &g.p.Cmds[i]; c.Kind {
		case plan.Signal:
			fired[c.Peer]++
		case plan.WaitCounter:
			c.Late = fired[c.Rank] < c.Value
		}
	}
}

// TestExplorerAgrees compares the checker's verdicts on random plans with those of an exhaustive exploration of all
// states.
func TestExplorerAgrees(t *testing.T) {
	counts := map[string]int{}
	tried := 0
	want := *explored
	if testing.Short() {
		want = min(want, 100)
	}
	for seed := uint64(0); tried < want; seed++ {
		p := newRandomPlan(seed)
		r := verify.Plan(p, verify.Options{})
		if outside(r) {
			counts["outside"]++
			continue
		}
		seen := explore(p, true)
		if seen == "" || seen == "race" {
			if s := explore(p, false); s != "" {
				seen = s
			}
		}
		if seen == "too large" {
			counts[seen]++
			continue
		}
		tried++
		counts[seen]++
		if (seen == "") != (r.Verdict == verify.Proved) || r.Verdict == verify.Unknown {
			t.Fatalf("plan %d: explored %q, checker %v\n%s\n%s", seed, seen, r.Verdict, r.Diagnostics(&ir.Program{}), p)
		}
	}
	t.Logf("%d plans agree: %v", tried, counts)
	if counts[""] < tried/20 || counts["race"] < tried/20 || counts["deadlock"] < tried/200 {
		t.Errorf("the random plans are too much alike: %v", counts)
	}
}

// outside reports whether a plan was refuted for a reason that the explorer does not model: structure, waits that other
// signals than the intended ones may satisfy, and reads of bytes that another buffer wrote.
func outside(r *verify.Result) bool {
	for i := range r.Findings {
		f := &r.Findings[i]
		switch f.Kind {
		case verify.KindMatch, verify.KindIssue, verify.KindBounds, verify.KindClobbered:
			return true
		}
	}
	return false
}
