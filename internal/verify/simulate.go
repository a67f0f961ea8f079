package verify

import (
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// sim executes a plan for two consecutive runs on an ideal machine, on which every stream continues as soon as it
// can. No command prevents another one from executing, so this one order decides whether a deadlock is possible.
// The order respects happens-before, so accesses can be compared in the order in which they occur.
//
// Commands are executed in the order of the plan's list, which contains the commands of all ranks. If a stream has
// to wait, its remaining commands are executed later.
type sim struct {
	ix    *index
	mem   *memory // memory with which accesses are compared; nil if they are not
	lanes laning
	views []view  // by lane
	given []int32 // for each lane: number of commands that the host has issued so far
	stuck []bool  // for each lane: whether the lane waits for another lane before its next command
	queue []int32 // lanes that may be able to continue

	events [runs][]eventState
	elems  []elemState
	left   [runs][]int32 // for each signal of an element: number of waits that still need its snapshot
	met    [runs][]int32 // for each collective: number of members that have reached it
	posted [runs][]int32 // for each transfer: the lane that posted its side first, or -1
	groups []groupState  // for each lane: the group that it executes

	stats Stats
	// The simulation calls stop, if it is not nil, once in askEvery commands. If stop returns an error, the simulation
	// ends and stores the error in stopped.
	stop    func() error
	stopped error
	// The simulation calls joined, if it is not nil, each time a lane gains knowledge from a command.
	joined func(lane int32, cmd int32, run int)
	// The simulation calls passed, if it is not nil, before a command other than a wait starts.
	passed func(lane, cmd int32, run int)
	// The simulation calls heard, if it is not nil, with the snapshot that a wait receives, before the lane of the wait
	// joins the snapshot.
	heard func(v *view, cmd int32, snap snapshot)
}

// laning divides a plan's commands into the lanes of a simulation. A lane is a sequence of commands that are executed
// one after the other: either one stream, or all streams of a rank.
type laning struct {
	of   func(c *plan.Cmd) int32
	cmds [][]int32
	// clocks reports that vector clocks are maintained.
	clocks bool
}

func streamLanes(ix *index) laning {
	return laning{of: func(c *plan.Cmd) int32 { return c.Stream }, cmds: ix.streams, clocks: true}
}

type eventState struct {
	snap    snapshot
	left    int32
	fired   bool
	waiting []int32
}

type elemState struct {
	fired   int32
	snaps   []snapshot
	waiting []int32
}

type groupState struct {
	open  int32
	heard []snapshot
}

func newSim(ix *index, mem *memory) *sim { return newSimOn(ix, mem, streamLanes(ix)) }

func newSimOn(ix *index, mem *memory, lanes laning) *sim {
	n := len(lanes.cmds)
	s := &sim{ix: ix, mem: mem, lanes: lanes, views: make([]view, n), given: make([]int32, n), stuck: make([]bool, n), groups: make([]groupState, n)}
	for i := range s.views {
		s.views[i].stream = int32(i)
	}
	s.elems = make([]elemState, len(ix.elems))
	signals := int32(0)
	for _, e := range ix.elems {
		signals += e.perRun
	}
	for r := range runs {
		s.events[r] = make([]eventState, ix.p.Events)
		for e := range s.events[r] {
			s.events[r][e].left = ix.waits[e]
		}
		s.met[r] = make([]int32, len(ix.p.Colls))
		s.posted[r] = make([]int32, len(ix.p.Pairs))
		for i := range s.posted[r] {
			s.posted[r][i] = -1
		}
		s.left[r] = make([]int32, signals)
	}
	for i := range ix.p.Cmds {
		if c := &ix.p.Cmds[i]; c.Kind == plan.WaitCounter {
			at := ix.elems[ix.elem(c.Counter, c.Rank, c.Elem)].base + int32(c.Value) - 1
			s.left[0][at]++
			s.left[1][at]++
		}
	}
	return s
}

// run executes the commands of both runs in the order of the plan's list.
func (s *sim) run() {
	for range runs {
		for i := range s.ix.p.Cmds {
			if s.stop != nil && i%askEvery == 0 {
				if s.stopped = s.stop(); s.stopped != nil {
					return
				}
			}
			lane := s.lanes.of(&s.ix.p.Cmds[i])
			s.given[lane]++
			s.advance(lane)
		}
	}
}

// askEvery is the number of commands that are executed between two calls of stop.
const askEvery = 1 << 10

// advance executes the commands of a lane until the lane has to wait. Then it executes the lanes that can continue
// because of these commands in the same way.
func (s *sim) advance(lane int32) {
	s.queue = append(s.queue, lane)
	for len(s.queue) > 0 {
		l := s.queue[len(s.queue)-1]
		s.queue = s.queue[:len(s.queue)-1]
		for !s.stuck[l] && s.views[l].done < s.given[l] {
			if !s.step(l) {
				s.stuck[l] = true
			}
		}
	}
}

func (s *sim) wake(lanes ...int32) {
	for _, l := range lanes {
		s.stuck[l] = false
		s.queue = append(s.queue, l)
	}
}

// head returns the command that a lane executes next. It returns false after the last command.
func (s *sim) head(lane int32) (cmd int32, run int, ok bool) {
	cmds := s.lanes.cmds[lane]
	done := int(s.views[lane].done)
	if done >= runs*len(cmds) {
		return 0, 0, false
	}
	return cmds[done%len(cmds)], done / len(cmds), true
}

// step executes a lane's next command. It returns false if the command has to wait.
func (s *sim) step(lane int32) bool {
	cmd, run, _ := s.head(lane)
	c := &s.ix.p.Cmds[cmd]
	v := &s.views[lane]
	switch c.Kind {
	case plan.WaitEvent:
		if !s.waitEvent(v, c, cmd, run) {
			return false
		}
	case plan.WaitCounter:
		if !s.waitCounter(v, c, cmd, run) {
			return false
		}
	case plan.Collective:
		return s.meet(lane, c, cmd, run)
	case plan.Group:
		return s.post(lane, c, cmd, run)
	default:
		s.start(lane, cmd, run)
	}
	s.finish(v)
	switch c.Kind {
	case plan.Record:
		s.record(v, c, run)
	case plan.Signal:
		s.signal(v, c, run)
	}
	return true
}

// start compares the accesses of a command that begins with earlier accesses, given the current knowledge of its lane.
func (s *sim) start(lane, cmd int32, run int) {
	if s.passed != nil {
		s.passed(lane, cmd, run)
	}
	if s.mem != nil {
		s.stats.Accesses += s.mem.touch(&s.views[lane], cmd, run)
	}
}

func (s *sim) finish(v *view) {
	v.done++
	s.stats.Steps++
}

// learn adds a snapshot to the knowledge of a lane.
func (s *sim) learn(v *view, snap snapshot, cmd int32, run int) {
	if !s.lanes.clocks {
		return
	}
	if s.heard != nil && s.ix.p.Cmds[cmd].Kind != plan.Collective && s.ix.p.Cmds[cmd].Kind != plan.Group {
		s.heard(v, cmd, snap)
	}
	if v.join(snap, len(s.views)) {
		s.stats.Joins++
		if s.joined != nil {
			s.joined(v.stream, cmd, run)
		}
	}
}

func (s *sim) record(v *view, c *plan.Cmd, run int) {
	e := &s.events[run][c.Event]
	e.fired = true
	if e.left > 0 && s.lanes.clocks {
		e.snap = v.snapshot()
	}
	s.wake(e.waiting...)
	e.waiting = nil
}

func (s *sim) waitEvent(v *view, c *plan.Cmd, cmd int32, run int) bool {
	e := &s.events[run][c.Event]
	if !e.fired {
		e.waiting = append(e.waiting, v.stream)
		return false
	}
	s.learn(v, e.snap, cmd, run)
	if e.left--; e.left == 0 {
		e.snap = snapshot{}
	}
	return true
}

func (s *sim) signal(v *view, c *plan.Cmd, run int) {
	k := s.ix.elem(c.Counter, c.Peer, c.Elem)
	e, info := &s.elems[k], &s.ix.elems[k]
	n := e.fired // number of earlier signals
	e.fired++
	if s.lanes.clocks {
		snap := snapshot{}
		if info.many || s.left[n/info.perRun][info.base+n%info.perRun] > 0 {
			snap = v.snapshot()
		}
		e.snaps = append(e.snaps, snap)
	}
	s.wake(e.waiting...)
	e.waiting = e.waiting[:0]
}

// waitCounter waits for the first Value signals of this run. If one stream sends all signals to the element, the first
// Value signals are the first ones in program order. If several streams send signals, the method ambiguous checks that
// no other signals can satisfy the wait.
func (s *sim) waitCounter(v *view, c *plan.Cmd, cmd int32, run int) bool {
	k := s.ix.elem(c.Counter, c.Rank, c.Elem)
	e, info := &s.elems[k], &s.ix.elems[k]
	want := int32(c.Value) + int32(run)*info.perRun
	if e.fired < want {
		e.waiting = append(e.waiting, v.stream)
		return false
	}
	if !s.lanes.clocks {
		return true
	}
	if info.many {
		for _, snap := range e.snaps[:want] {
			s.learn(v, snap, cmd, run)
		}
		return true
	}
	s.learn(v, e.snaps[want-1], cmd, run)
	left := &s.left[run][info.base+int32(c.Value)-1]
	if *left--; *left == 0 {
		e.snaps[want-1] = snapshot{}
	}
	return true
}

// meet executes the part of a collective that belongs to a lane. It assumes that all members wait for each other, for
// every operation; this is the worst case for deadlocks. However, a member receives only the knowledge that the data
// transfers of the operation imply (S5).
func (s *sim) meet(lane int32, c *plan.Cmd, cmd int32, run int) bool {
	s.start(lane, cmd, run)
	coll := &s.ix.p.Colls[c.Coll]
	if s.met[run][c.Coll]++; int(s.met[run][c.Coll]) < len(coll.Parts) {
		return false
	}
	members := s.members(coll)
	if s.lanes.clocks {
		s.exchange(coll, members, cmd, run)
	}
	for _, m := range members {
		s.finish(&s.views[m])
		if m != lane {
			s.wake(m)
		}
	}
	return true
}

// members returns the lanes of a collective's team.
func (s *sim) members(coll *plan.Coll) []int32 {
	ch := &s.ix.p.Channels[coll.Channel]
	if s.lanes.clocks {
		return ch.Streams
	}
	return ch.Team
}

func (s *sim) exchange(coll *plan.Coll, members []int32, cmd int32, run int) {
	views := make([]*view, len(members))
	for i, m := range members {
		views[i] = &s.views[m]
	}
	switch coll.Op {
	case ir.OpBroadcast, ir.OpScatter:
		root := views[coll.Root].snapshot()
		for _, v := range views {
			s.learn(v, root, cmd, run)
		}
	case ir.OpReduce, ir.OpGather:
		s.adopt(views[coll.Root], merge(views, len(s.views)), cmd, run)
	case ir.OpPermute:
		before := make([]snapshot, len(views))
		for i, v := range views {
			before[i] = v.snapshot()
		}
		for i := range coll.Parts {
			if from := coll.Parts[i].From; from >= 0 {
				s.learn(views[i], before[from], cmd, run)
			}
		}
	default:
		all := merge(views, len(s.views))
		for _, v := range views {
			s.adopt(v, all, cmd, run)
		}
	}
}

// adopt replaces the knowledge of a lane by a vector clock that includes this knowledge.
func (s *sim) adopt(v *view, all []int32, cmd int32, run int) {
	v.vec, v.shared = all, true
	s.stats.Joins++
	if s.joined != nil {
		s.joined(v.stream, cmd, run)
	}
}

// post starts a group's transfers. A transfer ends when both sides have started (S7), and the group ends when all of
// its transfers have ended.
func (s *sim) post(lane int32, c *plan.Cmd, cmd int32, run int) bool {
	s.start(lane, cmd, run)
	g := &s.groups[lane]
	g.open = int32(len(c.Group))
	mine := s.views[lane].snapshot()
	for _, t := range c.Group {
		first := &s.posted[run][t.Pair]
		if *first < 0 {
			*first = lane
			continue
		}
		g.open--
		o := &s.groups[*first]
		o.open--
		if *first == lane {
			continue
		}
		g.heard = append(g.heard, s.views[*first].snapshot())
		o.heard = append(o.heard, mine)
		if o.open == 0 {
			other, _, _ := s.head(*first)
			s.complete(*first, other, run)
			s.wake(*first)
		}
	}
	if g.open > 0 {
		return false
	}
	s.complete(lane, cmd, run)
	return true
}

func (s *sim) complete(lane, cmd int32, run int) {
	v, g := &s.views[lane], &s.groups[lane]
	for _, snap := range g.heard {
		s.learn(v, snap, cmd, run)
	}
	g.heard = g.heard[:0]
	s.finish(v)
}
