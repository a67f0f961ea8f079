package verify

import (
	"fmt"

	"hocket.example/hocket/internal/plan"
)

// maxHeads limits the number of blocked streams that the report of a deadlock lists.
const maxHeads = 8

// deadlock returns a finding that lists the lanes that are blocked forever, or nil if all lanes have finished. If some
// lanes wait for each other in a cycle, the finding begins with the commands of the cycle, each of which waits for the
// next one.
func (s *sim) deadlock() *Finding {
	var blocked []int32
	for l := range s.lanes.cmds {
		if _, _, ok := s.head(int32(l)); ok {
			blocked = append(blocked, int32(l))
		}
	}
	if len(blocked) == 0 {
		return nil
	}
	cycle := s.cycle(blocked[0])
	f := &Finding{Kind: KindDeadlock, Count: len(blocked)}
	for _, l := range cycle {
		if cmd, run, ok := s.head(l); ok && len(f.Acts) < maxHeads {
			f.Acts = append(f.Acts, Act{Cmd: cmd, Run: run, What: s.waitsFor(l)})
		}
	}
	first := f.Acts[0]
	f.Message = "deadlock: " + place(s.ix, first) + " " + first.What
	if first.Run > 0 {
		f.Message += ", in the second of two consecutive runs"
	}
	f.Help = fmt.Sprintf("%s cannot continue: each of the ops below waits for the next one, and the last waits for the first. Issue one of them earlier, or on another stream", count(len(blocked), s.laneWord()))
	return f
}

func (s *sim) laneWord() string {
	if s.lanes.clocks {
		return "stream"
	}
	return "rank"
}

// cycle starts at a blocked lane and goes from each lane to a lane for which it waits, until a lane occurs twice. The
// result is the lanes between the two occurrences, which wait for each other in a cycle.
func (s *sim) cycle(lane int32) []int32 {
	at := map[int32]int{}
	var way []int32
	for {
		if k, seen := at[lane]; seen {
			return way[k:]
		}
		at[lane] = len(way)
		way = append(way, lane)
		next := s.blocker(lane)
		if next < 0 {
			return way
		}
		lane = next
	}
}

// blocker returns a lane that must continue before the given blocked lane can. It returns -1 if there is no such lane.
func (s *sim) blocker(lane int32) int32 {
	cmd, run, ok := s.head(lane)
	if !ok {
		return -1
	}
	p := s.ix.p
	c := &p.Cmds[cmd]
	switch c.Kind {
	case plan.WaitEvent:
		return s.lanes.of(&p.Cmds[s.ix.records[c.Event]])
	case plan.WaitCounter:
		e := &s.ix.elems[s.ix.elem(c.Counter, c.Rank, c.Elem)]
		for i := range p.Cmds {
			o := &p.Cmds[i]
			if o.Kind == plan.Signal && o.Counter == c.Counter && o.Elem == c.Elem && o.Peer == c.Rank {
				if l := s.lanes.of(o); !s.passedBy(l, int32(i), run) {
					return l
				}
			}
		}
		return e.stream
	case plan.Collective:
		for _, m := range s.members(&p.Colls[c.Coll]) {
			if h, r, ok := s.head(m); !ok || h == cmd || r == run && p.Cmds[h].Kind == plan.Collective && p.Cmds[h].Coll == c.Coll {
				continue
			}
			return m
		}
	case plan.Group:
		for _, t := range c.Group {
			if l := s.otherSide(t); l >= 0 && l != lane && s.posted[run][t.Pair] == lane {
				return l
			}
		}
		return lane
	}
	return -1
}

// passedBy reports whether a lane has executed a command in the given run.
func (s *sim) passedBy(lane, cmd int32, run int) bool {
	h, r, ok := s.head(lane)
	return !ok || r > run || r == run && h > cmd
}

// otherSide returns the lane that posts the other side of a transfer.
func (s *sim) otherSide(t plan.P2P) int32 {
	for i := range s.ix.p.Cmds {
		for _, o := range s.ix.p.Cmds[i].Group {
			if o.Pair == t.Pair && o.Send != t.Send {
				return s.lanes.of(&s.ix.p.Cmds[i])
			}
		}
	}
	return -1
}

// waitsFor describes the condition for which a blocked lane's next command waits.
func (s *sim) waitsFor(lane int32) string {
	cmd, run, _ := s.head(lane)
	p := s.ix.p
	c := &p.Cmds[cmd]
	switch c.Kind {
	case plan.WaitEvent:
		return "waits for work of " + s.name(s.lanes.of(&p.Cmds[s.ix.records[c.Event]])) + ", which does not reach it"
	case plan.WaitCounter:
		k := s.ix.elem(c.Counter, c.Rank, c.Elem)
		have := max(s.elems[k].fired-int32(run)*s.ix.elems[k].perRun, 0)
		return fmt.Sprintf("waits for %s[%d] >= %d, but the counter stays at %d", p.Counters[c.Counter].Name, c.Elem, c.Value, have)
	case plan.Collective:
		coll := &p.Colls[c.Coll]
		missing := ""
		if b := s.blocker(lane); b >= 0 {
			missing = ", which " + s.name(b) + " does not reach"
		}
		return fmt.Sprintf("waits in %s%s", coll.Op, missing)
	case plan.Group:
		return fmt.Sprintf("waits for %s whose other side is never posted", count(int(s.groups[lane].open), "transfer"))
	}
	return "is blocked"
}

// name returns a lane's name.
func (s *sim) name(lane int32) string {
	if !s.lanes.clocks {
		return fmt.Sprintf("rank %d", lane)
	}
	return streamName(s.ix.p, lane)
}

// ambiguous reports waits that can be satisfied by other signals than the first ones of the run. After such a wait, it
// is not certain which commands of the signalling streams are complete (S12).
func (s *sim) ambiguous() []Finding {
	var out []Finding
	p := s.ix.p
	least := map[int32]map[int32]bool{}
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if c.Kind != plan.WaitCounter {
			continue
		}
		k := s.ix.elem(c.Counter, c.Rank, c.Elem)
		if !s.ix.elems[k].many {
			continue
		}
		if least[k] == nil {
			least[k] = s.unsettled(k)
		}
		for run := range int32(runs) {
			if !least[k][int32(c.Value)+run*s.ix.elems[k].perRun] {
				continue
			}
			out = append(out, Finding{
				Kind: KindMatch, Acts: []Act{{Cmd: int32(i), Run: int(run)}}, Count: 1,
				Message: fmt.Sprintf("%s[%d] >= %d does not identify its signals: the counter is raised from several streams that are not ordered, so any %d signals of the run may end the wait", p.Counters[c.Counter].Name, c.Elem, c.Value, c.Value),
				Help:    "order the signalling streams by waits, within a run and between consecutive runs, or use a separate counter element for each stream",
			})
			break
		}
		if len(out) == maxFindings {
			break
		}
	}
	return out
}

// unsettled returns each number n such that some later signal to an element is not ordered after all of the first n
// signals.
func (s *sim) unsettled(k int32) map[int32]bool {
	snaps := s.elems[k].snaps
	bad := map[int32]bool{}
	// weakest[st] is the minimum, over the later signals, of the number of commands of stream st that are complete when
	// a signal is sent.
	streams := map[int32]bool{}
	for i := range snaps {
		streams[snaps[i].stream] = true
	}
	weakest := map[int32]int32{}
	for st := range streams {
		weakest[st] = 1<<31 - 1
	}
	last := make([]map[int32]int32, len(snaps)+1) // for each n and stream: the last command among the first n signals
	last[0] = map[int32]int32{}
	for n := range snaps {
		m := map[int32]int32{}
		for st, v := range last[n] {
			m[st] = v
		}
		m[snaps[n].stream] = snaps[n].done
		last[n+1] = m
	}
	for n := len(snaps); n > 0; n-- {
		for st, pos := range last[n] {
			if weakest[st] < pos {
				bad[int32(n)] = true
			}
		}
		for st := range streams {
			know := int32(0)
			switch {
			case st == snaps[n-1].stream:
				know = snaps[n-1].done
			case snaps[n-1].vec != nil:
				know = snaps[n-1].vec[st]
			}
			weakest[st] = min(weakest[st], know)
		}
	}
	return bad
}
