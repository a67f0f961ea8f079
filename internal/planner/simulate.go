package planner

import (
	"fmt"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// runs is the number of consecutive runs that are simulated. An order that holds between the first two runs holds
// between any two consecutive runs, because streams in later runs only have more knowledge.
const runs = 2

// simulator executes a plan greedily on an idealized machine, on which every stream is a separate FIFO. No command
// prevents another one from executing, and no receive matches several sends, so the order of execution does not
// affect the outcome: one execution shows whether any order can deadlock. During the execution, the simulator
// maintains the vector clock of each stream.
type simulator struct {
	w     *world
	p     *plan.Plan
	use   *usage
	stats *Stats

	cmds  [][]int32 // by stream
	know  []knowledge
	ready []int32

	events  [runs][]eventState
	elems   map[elemOf]*elemState
	ordinal map[int32]int32 // for each Signal command: its number among the signals of its element, from 1
	colls   [runs][]collState
	groups  [runs]map[int32]*groupState
	pairs   [runs][]pairState
}

type eventState struct {
	done    bool
	clock   clock
	waiting []int32
}

type collState struct{ at []int32 } // streams that have reached the collective

// groupState holds the state of a posted group command: the transfers whose other side has not been posted yet, and the
// knowledge of the other sides.
type groupState struct {
	open   int
	stream int32
	heard  []clock
}

type pairState struct {
	posted bool
	group  int32 // the group command that posted its side first
}

// simulate executes two runs of the plan and returns the usage of its buffers with the clocks. If the plan deadlocks,
// it returns a diagnostic that lists the blocked streams.
func simulate(w *world, p *plan.Plan, stats *Stats) (*usage, error) {
	s := &simulator{w: w, p: p, stats: stats, use: findUses(p)}
	s.countSignals()
	s.cmds = make([][]int32, len(p.Streams))
	for i := range p.Cmds {
		st := p.Cmds[i].Stream
		s.cmds[st] = append(s.cmds[st], int32(i))
	}
	s.know = make([]knowledge, len(p.Streams))
	for i := range s.know {
		s.know[i].stream = int32(i)
		s.ready = append(s.ready, int32(i))
	}
	for r := range runs {
		s.events[r] = make([]eventState, p.Events)
		s.colls[r] = make([]collState, len(p.Colls))
		s.pairs[r] = make([]pairState, len(p.Pairs))
		s.groups[r] = map[int32]*groupState{}
	}
	for len(s.ready) > 0 {
		st := s.ready[len(s.ready)-1]
		s.ready = s.ready[:len(s.ready)-1]
		for s.step(st) {
			if err := w.goOn(); err != nil {
				return nil, err
			}
		}
	}
	if err := s.deadlock(); err != nil {
		return nil, err
	}
	return s.use, s.ambiguousWait()
}

// head returns the command that a stream executes next, and the run of that command. After the last command, ok is
// false.
func (s *simulator) head(st int32) (cmd int32, run int, ok bool) {
	n, pos := len(s.cmds[st]), int(s.know[st].pos)
	if pos >= runs*n {
		return 0, 0, false
	}
	return s.cmds[st][pos%n], pos / n, true
}

// step executes the next command of a stream. It returns false if the stream must wait or has no more commands.
func (s *simulator) step(st int32) bool {
	cmd, run, ok := s.head(st)
	if !ok {
		return false
	}
	k := &s.know[st]
	c := &s.p.Cmds[cmd]
	switch c.Kind {
	case plan.WaitEvent:
		e := &s.events[run][c.Event]
		if !e.done {
			e.waiting = append(e.waiting, st)
			return false
		}
		s.join(k, e.clock)
	case plan.WaitCounter:
		e := s.elem(elemOf{c.Counter, c.Rank, c.Elem})
		want := int(c.Value) + run*len(e.signals)/runs
		if e.fired < want {
			e.waiting = append(e.waiting, st)
			return false
		}
		s.hear(k, e, want)
	case plan.Collective:
		return s.meet(st, cmd, run)
	case plan.Group:
		return s.post(st, cmd, run)
	}
	s.touch(k, cmd, run)
	k.pos++
	switch c.Kind {
	case plan.Record:
		e := &s.events[run][c.Event]
		e.done, e.clock = true, k.snapshot()
		s.wake(&e.waiting)
	case plan.Signal:
		s.raise(cmd, run, k)
	}
	return true
}

func (s *simulator) wake(waiting *[]int32) {
	s.ready = append(s.ready, *waiting...)
	*waiting = nil
}

func (s *simulator) join(k *knowledge, c clock) {
	s.stats.Joins++
	k.join(c, len(s.know))
}

// touch records, for each buffer that a stream uses for the first time in cmd, the knowledge of the stream.
func (s *simulator) touch(k *knowledge, cmd int32, run int) {
	for i := s.use.opens[cmd]; i < s.use.opens[cmd+1]; i++ {
		s.use.uses[i].before[run] = k.snapshot()
	}
}

// meet records that a stream has reached its part of a collective. When the last member arrives, all members continue.
func (s *simulator) meet(st, cmd int32, run int) bool {
	s.touch(&s.know[st], cmd, run)
	id := s.p.Cmds[cmd].Coll
	state, coll := &s.colls[run][id], &s.p.Colls[id]
	state.at = append(state.at, st)
	if len(state.at) < len(coll.Parts) {
		return false
	}
	streams := s.p.Channels[coll.Channel].Streams
	s.exchange(coll, streams)
	for _, member := range streams {
		s.know[member].pos++
		if member != st {
			s.ready = append(s.ready, member)
		}
	}
	state.at = nil
	return true
}

// exchange adds to the clock of each member the knowledge that the collective guarantees. For some collectives, each
// member gets the knowledge of all members. For others, a member gets only the knowledge of the members whose data it
// receives (S5).
func (s *simulator) exchange(coll *plan.Coll, streams []int32) {
	before := make([]*knowledge, len(streams))
	for i, st := range streams {
		before[i] = &s.know[st]
	}
	s.stats.Joins += int64(len(streams))
	switch coll.Op {
	case ir.OpBroadcast, ir.OpScatter:
		root := before[coll.Root].snapshot()
		for _, k := range before {
			k.join(root, len(s.know))
		}
	case ir.OpReduce, ir.OpGather:
		before[coll.Root].adopt(together(before, len(s.know)))
	case ir.OpPermute:
		was := make([]clock, len(streams))
		for i, k := range before {
			was[i] = k.snapshot()
		}
		for i, part := range coll.Parts {
			if part.From >= 0 {
				before[i].join(was[part.From], len(s.know))
			}
		}
	default:
		all := together(before, len(s.know))
		for _, k := range before {
			k.adopt(all)
		}
	}
}

// post starts the transfers of a group. A transfer is complete when its other side has been posted, too. The group
// is complete when all of its transfers are (S7). Each side then has the knowledge that the other side had when it
// was posted.
func (s *simulator) post(st, cmd int32, run int) bool {
	if _, posted := s.groups[run][cmd]; posted {
		return false
	}
	k := &s.know[st]
	s.touch(k, cmd, run)
	entries := s.p.Cmds[cmd].Group
	g := &groupState{open: len(entries), stream: st}
	s.groups[run][cmd] = g
	mine := k.snapshot()
	for _, e := range entries {
		pair := &s.pairs[run][e.Pair]
		if !pair.posted {
			pair.posted, pair.group = true, cmd
			continue
		}
		other := s.groups[run][pair.group]
		g.heard = append(g.heard, s.know[other.stream].snapshot())
		g.open--
		other.heard = append(other.heard, mine)
		other.open--
		if other.open == 0 && other != g {
			s.complete(other)
			s.ready = append(s.ready, other.stream)
		}
	}
	if g.open > 0 {
		return false
	}
	s.complete(g)
	return true
}

func (s *simulator) complete(g *groupState) {
	k := &s.know[g.stream]
	for _, c := range g.heard {
		s.join(k, c)
	}
	g.heard = nil
	k.pos++
}

// maxHeads is the maximum number of blocked streams that the report of a deadlock lists.
const maxHeads = 8

// deadlock returns a diagnostic that describes the blocked streams, or nil if all streams are done.
func (s *simulator) deadlock() error {
	var d *ir.Diagnostic
	blocked, transfers := 0, 0
	for st := range s.cmds {
		cmd, run, ok := s.head(int32(st))
		if !ok {
			continue
		}
		blocked++
		c := &s.p.Cmds[cmd]
		if c.Kind == plan.Group {
			transfers++
		}
		line := fmt.Sprintf("%s: %s", s.w.where(c), s.waitsFor(c, run))
		if run > 0 {
			line += ", in the second of two consecutive runs"
		}
		switch {
		case d == nil:
			d = s.w.diag("deadlock", c, "deadlock: %s", line)
		case blocked <= maxHeads:
			d.Notes = append(d.Notes, s.w.note(c, "%s", line))
		}
	}
	if d == nil {
		return nil
	}
	d.Help = fmt.Sprintf("%d streams wait for each other", blocked)
	switch {
	case blocked == 1:
		d.Help = "no stream that can still run does the work for which this stream waits"
	case transfers == blocked:
		d.Help = "put a send and a recv between the same two ranks into one group { … }, which posts them together"
	}
	return d
}

// waitsFor describes the event that a blocked command waits for.
func (s *simulator) waitsFor(c *plan.Cmd, run int) string {
	switch c.Kind {
	case plan.WaitEvent:
		return "waits for an event that is never recorded"
	case plan.WaitCounter:
		e := s.elem(elemOf{c.Counter, c.Rank, c.Elem})
		have := e.fired - run*len(e.signals)/runs
		return fmt.Sprintf("waits for %s[%d] >= %d, which is %d", s.p.Counters[c.Counter].Name, c.Elem, c.Value, max(have, 0))
	case plan.Collective:
		coll := &s.p.Colls[c.Coll]
		ch := &s.p.Channels[coll.Channel]
		var missing []int32
		for m, r := range ch.Team {
			if h, hr, ok := s.head(ch.Streams[m]); !ok || hr != run || s.p.Cmds[h].Kind != plan.Collective || s.p.Cmds[h].Coll != c.Coll {
				missing = append(missing, r)
			}
		}
		return fmt.Sprintf("waits in %s for ranks %v", coll.Op, missing)
	case plan.Group:
		if open := s.groups[run][s.headOf(c)].open; open > 1 {
			return fmt.Sprintf("waits for %d transfers whose other side is never posted", open)
		}
		return "waits for a transfer whose other side is never posted"
	}
	return "stands still"
}

// headOf returns the index of a command that is the next command of its stream.
func (s *simulator) headOf(c *plan.Cmd) int32 {
	cmd, _, _ := s.head(c.Stream)
	return cmd
}
