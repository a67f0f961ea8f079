package verify

import (
	"fmt"

	"hocket.example/hocket/internal/plan"
)

// qsim simulates a quotient, in the way in which sim simulates a plan. It executes the commands of rank 0 for two
// consecutive runs. Each executed command represents the corresponding commands of all ranks.
type qsim struct {
	q      *quotient
	mem    *memory // memory with which accesses are compared; nil if they are not
	serial bool    // set if commands are executed one by one in issue order, without clocks

	cmds  [][]int32 // by lane
	views []view
	stuck []bool
	queue []int32

	events [runs][]eventState
	elems  map[[2]int32]*qelemState
	posted [runs][]qposted // by command
	stats  Stats
}

type qelemState struct {
	fired   int32
	snaps   []snapshot
	waiting []int32
	left    map[int32]int32 // for each signal of both runs: the number of waits that still need its snapshot
}

// qposted records the state of a group in one run.
type qposted struct {
	done    bool
	snap    snapshot
	waiting []int32
}

func newQsim(q *quotient, mem *memory, serial bool) *qsim {
	s := &qsim{q: q, mem: mem, serial: serial, cmds: q.streams, elems: map[[2]int32]*qelemState{}}
	if serial {
		all := make([]int32, len(q.cmds))
		for i := range all {
			all[i] = int32(i)
		}
		s.cmds = [][]int32{all}
	}
	s.views, s.stuck = make([]view, len(s.cmds)), make([]bool, len(s.cmds))
	for i := range s.views {
		s.views[i].stream = int32(i)
	}
	for k := range q.elems {
		s.elems[k] = &qelemState{left: map[int32]int32{}}
	}
	waits := make([]int32, q.rep.rank.Events)
	for i := range q.cmds {
		switch c := &q.cmds[i]; c.Kind {
		case plan.WaitEvent:
			waits[c.Event]++
		case plan.WaitCounter:
			k := [2]int32{c.Counter, c.Elem}
			for run := range int32(runs) {
				s.elems[k].left[int32(c.Value)+run*q.elems[k].perRun]++
			}
		}
	}
	for run := range runs {
		s.events[run] = make([]eventState, len(waits))
		for e := range waits {
			s.events[run][e].left = waits[e]
		}
		s.posted[run] = make([]qposted, len(q.cmds))
	}
	return s
}

func (s *qsim) run() {
	for l := range s.cmds {
		s.queue = append(s.queue, int32(l))
		for len(s.queue) > 0 {
			l := s.queue[len(s.queue)-1]
			s.queue = s.queue[:len(s.queue)-1]
			for !s.stuck[l] && int(s.views[l].done) < runs*len(s.cmds[l]) {
				if s.step(l) {
					s.views[l].done++
					s.stats.Steps++
				} else {
					s.stuck[l] = true
				}
			}
		}
	}
}

func (s *qsim) wake(lanes *[]int32) {
	for _, l := range *lanes {
		s.stuck[l] = false
		s.queue = append(s.queue, l)
	}
	*lanes = (*lanes)[:0]
}

func (s *qsim) head(lane int32) (cmd int32, run int) {
	list := s.cmds[lane]
	done := int(s.views[lane].done)
	return list[done%len(list)], done / len(list)
}

// step executes a lane's next command, but leaves the lane at this command. It returns false if the command has to
// wait.
func (s *qsim) step(lane int32) bool {
	cmd, run := s.head(lane)
	c, v := &s.q.cmds[cmd], &s.views[lane]
	switch c.Kind {
	case plan.WaitEvent:
		e := &s.events[run][c.Event]
		if !e.fired {
			e.waiting = append(e.waiting, lane)
			return false
		}
		s.learn(v, e.snap, 0)
		if e.left--; e.left == 0 {
			e.snap = snapshot{}
		}
	case plan.WaitCounter:
		return s.waitCounter(lane, v, c, run)
	case plan.Group:
		return s.post(lane, v, cmd, run)
	case plan.Collective:
		s.touch(v, cmd, run)
		s.meet(v, &s.q.joins[c.Coll])
	case plan.Record:
		e := &s.events[run][c.Event]
		e.fired = true
		if e.left > 0 {
			e.snap = s.after(v)
		}
		s.wake(&e.waiting)
	case plan.Signal:
		k, _ := s.q.raised(c)
		e := s.elems[k]
		e.fired++
		snap := snapshot{}
		if e.left[e.fired] > 0 {
			snap = s.after(v)
		}
		e.snaps = append(e.snaps, snap)
		s.wake(&e.waiting)
	default:
		s.touch(v, cmd, run)
	}
	return true
}

// after returns the knowledge that a lane has when its next command is complete.
func (s *qsim) after(v *view) snapshot {
	snap := v.snapshot()
	snap.done++
	return snap
}

func (s *qsim) learn(v *view, snap snapshot, from int32) {
	if !s.serial && s.q.join(v, snap, from) {
		s.stats.Joins++
	}
}

// touch compares the accesses of all ranks to the memory of rank 0 with earlier accesses. For an access by rank 0 it
// uses the view v, and for an access by rank -d the translated view.
func (s *qsim) touch(v *view, cmd int32, run int) {
	if s.mem == nil {
		return
	}
	c := &s.q.cmds[cmd]
	k := s.mem.opens[cmd]
	refsOfRank(s.q.rep.rank, c, func(r *plan.Ref, _ bool) {
		if r.Elements() == 0 {
			return // an empty tensor has no region and is not accessed
		}
		at := v
		if r.Rank != 0 {
			at = s.q.shifted(v, s.q.grid.add(0, r.Rank, -1))
		}
		s.stats.Accesses += s.mem.compare(at, epoch{at.stream, at.done + 1}, cmd, run, &s.mem.access[k])
		k++
	})
}

func (s *qsim) waitCounter(lane int32, v *view, c *plan.Cmd, run int) bool {
	k := [2]int32{c.Counter, c.Elem}
	e, info := s.elems[k], s.q.elems[k]
	want := int32(c.Value) + int32(run)*info.perRun
	if e.fired < want {
		e.waiting = append(e.waiting, lane)
		return false
	}
	s.learn(v, e.snaps[want-1], info.from)
	if e.left[want]--; e.left[want] == 0 {
		e.snaps[want-1] = snapshot{}
	}
	return true
}

// meet executes a collective for all members at once, since all ranks execute in step.
func (s *qsim) meet(v *view, j *qjoin) {
	switch {
	case s.serial:
	case j.all:
		v.vec, v.shared = s.q.together(v, j), true
		s.stats.Joins++
	case j.from >= 0:
		s.learn(v, v.snapshot(), j.from)
	}
}

// post starts a group. A group ends when the other sides of its transfers have started.
func (s *qsim) post(lane int32, v *view, cmd int32, run int) bool {
	me := &s.posted[run][cmd]
	if !me.done {
		s.touch(v, cmd, run)
		me.done, me.snap = true, v.snapshot()
		s.wake(&me.waiting)
	}
	for _, o := range s.q.groups[cmd] {
		if other := &s.posted[run][o.cmd]; !other.done {
			other.waiting = append(other.waiting, lane)
			return false
		}
	}
	for _, o := range s.q.groups[cmd] {
		if o.cmd != cmd || o.rank != 0 {
			s.learn(v, s.posted[run][o.cmd].snap, o.rank)
		}
	}
	return true
}

// deadlock returns a finding that lists where rank 0 is blocked forever, or nil if rank 0 has finished.
func (s *qsim) deadlock() *Finding {
	f := &Finding{Kind: KindDeadlock}
	for l := range s.cmds {
		if int(s.views[l].done) >= runs*len(s.cmds[l]) {
			continue
		}
		cmd, run := s.head(int32(l))
		f.Count++
		if len(f.Acts) == maxHeads {
			continue
		}
		a := Act{Cmd: cmd, Run: run, What: s.waitsFor(&s.q.cmds[cmd])}
		f.Acts = append(f.Acts, a)
		if f.Message == "" {
			f.Message = fmt.Sprintf("deadlock: rank 0 %s %s, and so does every rank",
				s.q.rep.rank.Streams[s.q.cmds[cmd].Stream].Name, a.What)
			if run > 0 {
				f.Message += ", in the second of two consecutive runs"
			}
		}
	}
	if f.Count == 0 {
		return nil
	}
	f.Help = "issue one of the listed ops earlier, or on a separate stream"
	return f
}

func (s *qsim) waitsFor(c *plan.Cmd) string {
	switch c.Kind {
	case plan.WaitEvent:
		return "waits for work that another stream does not reach"
	case plan.WaitCounter:
		return fmt.Sprintf("waits for %s[%d] >= %d, but the counter stays at %d", s.q.p.Counters[c.Counter].Name, c.Elem, c.Value,
			s.elems[[2]int32{c.Counter, c.Elem}].fired)
	}
	return "waits for a transfer whose other side is not posted"
}
