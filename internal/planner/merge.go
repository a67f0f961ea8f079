package planner

import "hocket.example/hocket/internal/plan"

// merger creates the plan's list of commands from the lists of the ranks. The ranks alternate, one command each. A rank
// stops at a collective until all members have arrived, so that the commands of the collective are adjacent in the
// list. A rank also stops at a wait for a counter until the signals are in the list. If all ranks have stopped, the
// rank that stopped first continues. If that rank had stopped at a wait, the wait is marked Late. If it had stopped at
// a collective, the commands of the collective are not adjacent in the list. The function simulate decides later
// whether the program deadlocks.
type merger struct {
	w     *world
	out   []plan.Cmd
	next  []int
	queue []int32 // ranks that may continue, in order
	stuck []int32 // ranks that have stopped, in that order
	still []bool

	arrived []int32          // for each collective: number of members that have arrived
	waiting [][]int32        // for each collective: the ranks that have arrived and stopped
	opened  []bool           // for each collective: whether all members may issue it
	signals map[elemOf]int64 // number of signals in the list
	watch   map[elemOf][]int32
	forced  []bool // for each rank: whether its next command is appended without a check
}

// elemOf identifies one rank's element of a counter.
type elemOf struct{ counter, rank, elem int32 }

func (w *world) merge() error {
	total := 0
	for _, cs := range w.cmds {
		total += len(cs)
	}
	m := &merger{
		w: w, out: make([]plan.Cmd, 0, total),
		next: make([]int, len(w.cmds)), still: make([]bool, len(w.cmds)), forced: make([]bool, len(w.cmds)),
		arrived: make([]int32, len(w.p.Colls)), waiting: make([][]int32, len(w.p.Colls)), opened: make([]bool, len(w.p.Colls)),
		signals: map[elemOf]int64{}, watch: map[elemOf][]int32{},
	}
	for r := range w.cmds {
		m.queue = append(m.queue, int32(r))
	}
	if err := m.run(); err != nil {
		return err
	}
	w.p.Cmds = m.out
	w.cmds = nil
	renumber(w.p)
	return nil
}

func (m *merger) run() error {
	for {
		for len(m.queue) > 0 {
			if err := m.w.goOn(); err != nil {
				return err
			}
			r := m.queue[0]
			m.queue = m.queue[1:]
			m.step(r)
		}
		if !m.force() {
			return nil
		}
	}
}

// force makes the first stopped rank continue.
func (m *merger) force() bool {
	for len(m.stuck) > 0 {
		r := m.stuck[0]
		m.stuck = m.stuck[1:]
		if m.still[r] {
			m.forced[r] = true
			m.wake(r)
			return true
		}
	}
	return false
}

func (m *merger) wake(r int32) {
	if m.still[r] {
		m.still[r] = false
		m.queue = append(m.queue, r)
	}
}

func (m *merger) stop(r int32) {
	m.still[r] = true
	m.stuck = append(m.stuck, r)
}

// step appends the next command of rank r to the list, or records why the rank stops.
func (m *merger) step(r int32) {
	if m.next[r] == len(m.w.cmds[r]) {
		return
	}
	c := m.w.cmds[r][m.next[r]]
	switch c.Kind {
	case plan.Collective:
		if !m.open(r, c.Coll) {
			return
		}
	case plan.WaitCounter:
		k := elemOf{c.Counter, r, c.Elem}
		c.Late = m.signals[k] < c.Value
		if c.Late && !m.forced[r] {
			m.watch[k] = append(m.watch[k], r)
			m.stop(r)
			return
		}
	case plan.Signal:
		k := elemOf{c.Counter, c.Peer, c.Elem}
		m.signals[k]++
		for _, s := range m.watch[k] {
			m.wake(s)
		}
		delete(m.watch, k)
	}
	m.forced[r] = false
	m.out = append(m.out, c)
	m.next[r]++
	m.queue = append(m.queue, r)
}

// open reports whether rank r may issue its part of a collective now. When the last member arrives, all members may
// continue.
func (m *merger) open(r, coll int32) bool {
	if m.opened[coll] {
		return true
	}
	last := int(m.arrived[coll])+1 == len(m.w.p.Colls[coll].Parts)
	if !last && !m.forced[r] {
		m.arrived[coll]++
		m.waiting[coll] = append(m.waiting[coll], r)
		m.stop(r)
		return false
	}
	m.opened[coll] = true
	for _, s := range m.waiting[coll] {
		m.wake(s)
	}
	m.waiting[coll] = nil
	if m.forced[r] {
		return true
	}
	m.queue = append(m.queue, r) // r continues last, so that the commands of all members are adjacent in the list
	return false
}

// renumber renumbers collectives, channels and pairs in the order in which they are first issued.
func renumber(p *plan.Plan) {
	colls, channels, pairs := newOrder(len(p.Colls)), newOrder(len(p.Channels)), newOrder(len(p.Pairs))
	for i := range p.Cmds {
		c := &p.Cmds[i]
		switch c.Kind {
		case plan.Collective:
			ch := &p.Colls[c.Coll].Channel
			if _, seen := colls.at(c.Coll); !seen {
				*ch = channels.id(*ch)
			}
			c.Coll = colls.id(c.Coll)
		case plan.Group:
			for k := range c.Group {
				c.Group[k].Pair = pairs.id(c.Group[k].Pair)
			}
		}
	}
	p.Colls, p.Channels, p.Pairs = reorder(p.Colls, colls), reorder(p.Channels, channels), reorder(p.Pairs, pairs)
}

// newIDs maps old ids to new ids, which are numbered in the order in which they are first requested.
type newIDs struct {
	to   []int32 // new id of each old id, or -1 if none is assigned yet
	next int32
}

func newOrder(n int) *newIDs {
	ids := &newIDs{to: make([]int32, n)}
	for i := range ids.to {
		ids.to[i] = -1
	}
	return ids
}

func (ids *newIDs) at(old int32) (int32, bool) { return ids.to[old], ids.to[old] >= 0 }

func (ids *newIDs) id(old int32) int32 {
	if ids.to[old] < 0 {
		ids.to[old] = ids.next
		ids.next++
	}
	return ids.to[old]
}

func reorder[T any](old []T, ids *newIDs) []T {
	if len(old) == 0 {
		return nil
	}
	out := make([]T, len(old))
	for i := range old {
		out[ids.to[i]] = old[i]
	}
	return out
}
