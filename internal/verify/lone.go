package verify

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// This file refutes programs in which a few ranks do not do what all others do. It proves
// nothing: what it does not refute stays undecided.
//
// No clocks are kept. The commands that come before a given one are found by a search back from it, from command to
// command, over all ranks: the few ranks have their own commands, and the others those of rank 0, translated. A command
// of one of the few races with a conflicting access if neither comes before the other, unless the program deadlocks
// first; then it is wrong as well.

// lone is such a program.
type lone struct {
	q     *quotient
	few   map[int32]*script
	usual *script // of rank 0
	// By buffer: what rank 0's commands, translated, do to rank 0's memory.
	touched map[int32][]touching
}

// script has the commands of a rank, and an index of those that the search looks up.
type script struct {
	rank    *plan.Rank
	cmds    []plan.Cmd
	streams [][]int32
	pos     []int32
	records []int32
	signals map[[3]int32][]int32  // by peer, counter and element
	joins   map[string][]int32    // by team: its collectives
	teams   map[string][]int      // and who is in it
	orders  map[string]string     // and in which order
	mixed   bool                  // teams of the same ranks in different orders
	ends    map[endKey][]int32    // sends and recvs along an axis with a peer
	joinAt  []int32               // by command: its number in its team
	endAt   map[plan.P2P][2]int32 // by entry: its command, and its number in its lane
}

type endKey struct {
	axis string
	peer int32
	send bool
}

// touching is one access to a rank's memory.
type touching struct {
	cmd, actor int32 // whose command
	write      bool
	ref        plan.Ref
}

// node is an execution of a rank's command.
type node struct{ rank, cmd, run int32 }

func newScript(r *plan.Rank) *script {
	s := &script{
		rank: r, cmds: r.Cmds, streams: make([][]int32, len(r.Streams)), pos: make([]int32, len(r.Cmds)),
		records: slices.Repeat([]int32{-1}, r.Events),
		signals: map[[3]int32][]int32{}, joins: map[string][]int32{}, teams: map[string][]int{}, orders: map[string]string{},
		ends:   map[endKey][]int32{},
		joinAt: make([]int32, len(r.Cmds)), endAt: map[plan.P2P][2]int32{},
	}
	names := map[*int]string{}
	for i := range r.Cmds {
		c, me := &r.Cmds[i], int32(i)
		s.pos[i] = int32(len(s.streams[c.Stream]))
		s.streams[c.Stream] = append(s.streams[c.Stream], me)
		switch c.Kind {
		case plan.Record:
			s.records[c.Event] = me
		case plan.Signal:
			k := [3]int32{c.Peer, c.Counter, c.Elem}
			s.signals[k] = append(s.signals[k], me)
		case plan.Collective:
			team := r.Joins[c.Coll].Team
			name, known := names[&team[0]]
			if !known {
				sorted := slices.Clone(team)
				slices.Sort(sorted)
				name = fmt.Sprint(sorted)
				names[&team[0]], s.teams[name] = name, sorted
				order, again := s.orders[name]
				s.orders[name] = fmt.Sprint(team)
				s.mixed = s.mixed || again && order != s.orders[name]
			}
			s.joinAt[i] = int32(len(s.joins[name]))
			s.joins[name] = append(s.joins[name], me)
		case plan.Group:
			for _, g := range c.Group {
				e := &r.Ends[g.Pair]
				k := endKey{e.Axis, e.Peer, g.Send}
				s.endAt[g] = [2]int32{me, int32(len(s.ends[k]))}
				s.ends[k] = append(s.ends[k], me)
			}
		}
	}
	return s
}

// refute looks for a fault; the result is Unknown without one.
func (q *quotient) refute(few []*plan.Rank) *Result {
	r := new(Result)
	q.cmds, q.lanes = q.rep.rank.Cmds, int32(len(q.rep.rank.Streams))
	for _, step := range []func(){q.structure, q.signals, q.collectives, q.transfers} {
		if step(); len(q.faults) > 0 || q.unsure != "" {
			q.faults, q.unsure = nil, "some ranks differ, and what the others do is wrong or undecided by itself"
			return q.close(r)
		}
	}
	l := &lone{q: q, few: map[int32]*script{}, usual: newScript(q.rep.rank), touched: map[int32][]touching{}}
	for _, x := range few {
		if !q.likeUsual(x) {
			q.unsure = "some ranks differ, in what they declare too"
			return q.close(r)
		}
		l.few[x.Rank] = newScript(x)
		if l.few[x.Rank].mixed || l.usual.mixed {
			q.unsure = "some ranks differ, and teams have the same ranks in different orders"
			return q.close(r)
		}
	}
	q.unsure = "some ranks differ from the others"
	for _, x := range few {
		if why := l.unmatched(x.Rank); why != "" {
			q.faults, q.unsure = []Finding{{Kind: KindMatch, Count: 1,
				Message: fmt.Sprintf("rank %d does not do what others expect of it: %s", q.named(x.Rank), why)}}, ""
			return q.close(r)
		}
	}
	l.index()
	for _, x := range few {
		if f := l.race(x.Rank); f != nil {
			q.faults, q.unsure = []Finding{*f}, ""
			break
		}
	}
	return q.close(r)
}

// likeUsual reports whether a rank declares what the others do.
func (q *quotient) likeUsual(x *plan.Rank) bool {
	ok := len(x.Streams) == int(q.lanes)
	for i := range x.Cmds {
		c := &x.Cmds[i]
		if c.Kind == plan.Signal || c.Kind == plan.WaitCounter {
			ok = ok && within(c.Counter, len(q.p.Counters))
		}
		refsOfRank(x, c, func(r *plan.Ref, _ bool) { ok = ok && within(r.Buf, len(q.p.Buffers)) })
	}
	return ok
}

func (l *lone) script(rank int32) *script {
	if s := l.few[rank]; s != nil {
		return s
	}
	return l.usual
}

// back is a rank as seen from a script: from rank 0, where that is translated.
func (l *lone) back(of, rank int32) int32 {
	if l.few[of] != nil {
		return rank
	}
	return l.q.grid.add(rank, of, -1)
}

// there is the opposite: the rank that a script of a rank means by one.
func (l *lone) there(of, seen int32) int32 {
	if l.few[of] != nil {
		return seen
	}
	return l.q.grid.add(seen, of, 1)
}

// elem is an element of a rank's counter as rank 0 would have it, where that rank is to be translated.
func (l *lone) turned(counter, elem, by int32) int32 {
	return int32(l.q.rep.counters[counter].turn(l.q.grid, int64(elem), by, 1))
}

// raisers returns the rank that raises an element of a rank, and the signals, in order.
func (l *lone) raisers(rank, counter, elem int32) (int32, []int32) {
	home := int32(l.q.rep.counters[counter].turn(l.q.grid, int64(elem), rank, -1))
	e := l.q.elems[[2]int32{counter, home}]
	if e == nil {
		return -1, nil
	}
	from := l.q.grid.add(e.from, rank, 1)
	seen := elem
	if l.few[from] == nil {
		seen = int32(l.q.rep.counters[counter].turn(l.q.grid, int64(elem), from, -1))
	}
	return from, l.script(from).signals[[3]int32{l.back(from, rank), counter, seen}]
}

// team returns the members of a collective, and the name that the team has in a member's script.
func (l *lone) team(rank int32, name string) []int32 {
	var out []int32
	for _, r := range l.script(rank).teams[name] {
		out = append(out, l.there(rank, int32(r)))
	}
	slices.Sort(out)
	return out
}

func (l *lone) nameOf(team []int32, member int32) string {
	seen := make([]int, len(team))
	for i, r := range team {
		seen[i] = int(l.back(member, r))
	}
	slices.Sort(seen)
	return fmt.Sprint(seen)
}

// unmatched says what a rank does that others do not meet, or does not do that others wait for.
func (l *lone) unmatched(x int32) string {
	s, p := l.few[x], l.q.p
	for name := range s.joins {
		team := l.team(x, name)
		for _, m := range team {
			theirs := l.script(m).joins[l.nameOf(team, m)]
			if len(theirs) != len(s.joins[name]) {
				return fmt.Sprintf("it issues %d collectives to a team to which rank %d issues %d", len(s.joins[name]),
					l.q.named(m), len(theirs))
			}
			for k, c := range theirs {
				a, b := &s.rank.Joins[s.cmds[s.joins[name][k]].Coll], &l.script(m).rank.Joins[l.script(m).cmds[c].Coll]
				if a.Coll.Op != b.Coll.Op || a.Coll.Red != b.Coll.Red ||
					!slices.Equal(a.Part.In.Shape, b.Part.In.Shape) ||
					!slices.Equal(a.Part.Out.Shape, b.Part.Out.Shape) {
					return fmt.Sprintf("its %s meets rank %d's %s", a.Coll.Op, l.q.named(m), b.Coll.Op)
				}
			}
		}
	}
	for name, usual := range l.usual.joins {
		team := make([]int32, 0, len(l.usual.teams[name]))
		for _, r := range l.usual.teams[name] {
			team = append(team, l.q.grid.add(int32(r), x, 1))
		}
		slices.Sort(team)
		if n := len(s.joins[l.nameOf(team, x)]); n != len(usual) {
			return fmt.Sprintf("it issues %d collectives to a team to which others issue %d", n, len(usual))
		}
	}
	for k := range s.signals {
		if from, _ := l.raisers(k[0], k[1], k[2]); from != x && from >= 0 {
			return fmt.Sprintf("it raises %s[%d] of rank %d, and so does rank %d", p.Counters[k[1]].Name, k[2],
				l.q.named(k[0]), l.q.named(from))
		}
	}
	for r := range int32(l.q.grid.n) {
		w := l.script(r)
		for i := range w.cmds {
			c := &w.cmds[i]
			if c.Kind != plan.WaitCounter {
				continue
			}
			elem := c.Elem
			if l.few[r] == nil {
				elem = l.turned(c.Counter, c.Elem, r)
			}
			if from, signals := l.raisers(r, c.Counter, elem); (from == x || r == x) && c.Value > int64(len(signals)) {
				return fmt.Sprintf("rank %d waits for %s[%d] >= %d, which rank %d signals %d times a run", l.q.named(r),
					p.Counters[c.Counter].Name, elem, c.Value, l.q.named(max(from, 0)), len(signals))
			}
		}
	}
	return l.lanes(x)
}

// lanes compares a rank's transfers with those of its peers.
func (l *lone) lanes(x int32) string {
	s := l.few[x]
	keys := map[endKey]bool{}
	for k := range s.ends {
		keys[k] = true
	}
	for k := range l.usual.ends {
		k.peer = l.q.grid.add(k.peer, x, 1)
		keys[k] = true
	}
	for k := range keys {
		other := l.script(k.peer)
		theirs := other.ends[endKey{k.axis, l.back(k.peer, x), !k.send}]
		if len(s.ends[k]) != len(theirs) {
			return fmt.Sprintf("it has %d transfers with rank %d, which has %d", len(s.ends[k]), l.q.named(k.peer),
				len(theirs))
		}
	}
	return ""
}

// known is how far a command's past has been followed: by stream of all ranks the number of commands
// that it knows to be done, over the runs.
type known struct {
	l     *lone
	upTo  []int32
	went  []int32 // of those, how many have been looked at
	queue []int32
}

func (l *lone) nothing() *known {
	n := l.q.grid.n * int(l.q.lanes)
	return &known{l: l, upTo: make([]int32, n), went: make([]int32, n)}
}

// place is a node's stream, and how many commands come before it there.
func (l *lone) place(at node) (stream, before int32) {
	s := l.script(at.rank)
	st := s.cmds[at.cmd].Stream
	return at.rank*l.q.lanes + st, at.run*int32(len(s.streams[st])) + s.pos[at.cmd]
}

// follow adds all that what comes before a node knows.
func (k *known) follow(at node) {
	k.reach(at, 0)
	for len(k.queue) > 0 {
		st := k.queue[len(k.queue)-1]
		k.queue = k.queue[:len(k.queue)-1]
		rank := st / k.l.q.lanes
		list := k.l.script(rank).streams[st%k.l.q.lanes]
		for k.went[st] < k.upTo[st] {
			n := k.went[st]
			k.went[st]++
			k.learned(node{rank, list[int(n)%len(list)], n / int32(len(list))})
		}
	}
}

// reach adds what is before a node, and with done 1 the node.
func (k *known) reach(at node, done int32) {
	st, before := k.l.place(at)
	if before+done > k.upTo[st] {
		k.upTo[st] = before + done
		k.queue = append(k.queue, st)
	}
}

// learned adds what a node brings to its stream.
func (k *known) learned(at node) {
	l := k.l
	s := l.script(at.rank)
	c := &s.cmds[at.cmd]
	switch c.Kind {
	case plan.WaitEvent:
		k.reach(node{at.rank, s.records[c.Event], at.run}, 1)
	case plan.WaitCounter:
		elem := c.Elem
		if l.few[at.rank] == nil {
			elem = l.turned(c.Counter, c.Elem, at.rank)
		}
		from, signals := l.raisers(at.rank, c.Counter, elem)
		k.reach(node{from, signals[c.Value-1], at.run}, 1)
	case plan.Collective:
		j := &s.rank.Joins[c.Coll]
		if j.Coll.Op == ir.OpPermute && j.Part.From < 0 {
			return
		}
		names := map[*script]string{}
		for m, r := range j.Team {
			if j.Coll.Op == ir.OpPermute && int32(m) != j.Part.From {
				continue
			}
			member := l.there(at.rank, int32(r))
			other := l.script(member)
			if len(j.Team) != l.q.grid.n || names[other] == "" {
				team := make([]int32, len(j.Team))
				for i, x := range j.Team {
					team[i] = l.there(at.rank, int32(x))
				}
				names[other] = l.nameOf(team, member)
			}
			k.reach(node{member, other.joins[names[other]][s.joinAt[at.cmd]], at.run}, 0)
		}
	case plan.Group:
		for _, g := range c.Group {
			e := &s.rank.Ends[g.Pair]
			peer := l.there(at.rank, e.Peer)
			theirs := l.script(peer).ends[endKey{e.Axis, l.back(peer, at.rank), !g.Send}]
			k.reach(node{peer, theirs[s.endAt[g][1]], at.run}, 0)
		}
	}
}

// index notes what rank 0's commands, translated, do to rank 0's memory.
func (l *lone) index() {
	q := l.q
	for i := range l.usual.cmds {
		refsOfRank(l.usual.rank, &l.usual.cmds[i], func(r *plan.Ref, write bool) {
			ref := *r
			actor := q.grid.add(0, r.Rank, -1)
			ref.Off, ref.Rank = q.moving(r).turn(q.grid, r.Off, r.Rank, -1), 0
			l.touched[ref.Buf] = append(l.touched[ref.Buf], touching{int32(i), actor, write, ref})
		})
	}
}

// on calls f for all accesses to a buffer of a rank.
func (l *lone) on(rank, buf int32, f func(t touching)) {
	for _, t := range l.touched[buf] {
		t.actor = l.q.grid.add(t.actor, rank, 1)
		if l.few[t.actor] == nil {
			t.ref.Off = l.q.moving(&t.ref).turn(l.q.grid, t.ref.Off, rank, 1)
			t.ref.Rank = rank
			f(t)
		}
	}
	for x, s := range l.few {
		for i := range s.cmds {
			refsOfRank(s.rank, &s.cmds[i], func(r *plan.Ref, write bool) {
				if r.Rank == rank && r.Buf == buf {
					f(touching{int32(i), x, write, *r})
				}
			})
		}
	}
}

// pair is two accesses of which the second does not know the first.
type pair struct {
	a, b           node
	bufA, bufB     int32
	writeA, writeB bool
	rank, upTo     int32
}

// maxQuestions bounds how many pairs are looked at from their other end.
const maxQuestions = 64

// race finds two accesses of which one is a rank's, and that do not know each other.
func (l *lone) race(x int32) *Finding {
	s, p := l.few[x], l.q.p
	type kind struct{ a, b, runA, runB int32 }
	var pairs []pair
	seen := map[kind]int{}
	for st, list := range s.streams {
		know := l.nothing()
		for run := range int32(runs) {
			for _, cmd := range list {
				b := node{x, cmd, run}
				know.follow(b)
				refsOfRank(s.rank, &s.cmds[cmd], func(rb *plan.Ref, writeB bool) {
					gb, some := regionOf(p, rb)
					if !some {
						return
					}
					l.on(rb.Rank, rb.Buf, func(t touching) {
						other := l.script(t.actor)
						if !t.write && !writeB || t.actor == x && other.cmds[t.cmd].Stream == int32(st) {
							return
						}
						if ga, some := regionOf(p, &t.ref); !some || !bothCover(&ga, &gb) {
							return
						}
						for runA := range int32(runs) {
							a := node{t.actor, t.cmd, runA}
							sa, before := l.place(a)
							k := kind{other.cmds[t.cmd].Site, s.cmds[cmd].Site, runA, run}
							if know.upTo[sa] > before || seen[k] >= 2 {
								continue
							}
							seen[k]++
							pairs = append(pairs,
								pair{a, b, t.ref.Buf, rb.Buf, t.write, writeB, rb.Rank, know.upTo[sa]})
						}
					})
				})
			}
		}
	}
	for _, pr := range pairs[:min(len(pairs), maxQuestions)] {
		know := l.nothing()
		know.follow(pr.a)
		if sb, before := l.place(pr.b); know.upTo[sb] <= before {
			return l.tell(pr)
		}
	}
	return nil
}

// named is the rank that is called so here.
func (q *quotient) named(rank int32) int32 { return q.grid.add(rank, q.base, 1) }

// bothCover reports whether two regions surely have a byte in common.
func bothCover(a, b *region) bool {
	if a.rough || b.rough || a.space != b.space || a.runCount()*b.runCount() > maxRuns {
		return false
	}
	found := false
	a.runs(func(lo int64) {
		b.runs(func(lo2 int64) { found = found || lo < lo2+b.run && lo2 < lo+a.run })
	})
	return found
}

// tell puts a race into words, with the commands of its ranks as an excerpt.
func (l *lone) tell(pr pair) *Finding {
	q := l.q
	ranks := []int32{pr.a.rank}
	if pr.b.rank != pr.a.rank {
		ranks = append(ranks, pr.b.rank)
	}
	q.shown = q.excerptOf(ranks, func(r int32) []plan.Cmd { return l.script(r).cmds })
	at := func(n node) epoch {
		st, before := l.place(n)
		return epoch{q.named(n.rank)*q.lanes + st%q.lanes, before + 1}
	}
	a, b, swap := at(pr.a), at(pr.b), pr.a.run > pr.b.run
	r := &race{a: a, b: b, writeA: pr.writeA, writeB: pr.writeB, bufA: pr.bufA, bufB: pr.bufB, rank: q.named(pr.rank),
		upTo: pr.upTo, count: 1}
	if swap {
		r.a, r.b, r.writeA, r.writeB, r.bufA, r.bufB, r.upTo = b, a, pr.writeB, pr.writeA, pr.bufB, pr.bufA, 0
	}
	f := (&memory{ix: q.shown}).tellRace(r)
	return &f
}
