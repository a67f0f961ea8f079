package world

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
)

// Processes that use several groups in different orders can wait for each other in a circle. With every beat, each
// process writes a description of its wait on the page of the outer world. If a process is part of a circle, it ends
// the world with a DisagreeError that contains the call of each process.

// threads records which threads have called methods of this process's worlds.
var threads struct {
	sync.Mutex
	known   bool
	first   uintptr
	several bool
}

// CalledBy records the thread that calls methods of a world. If all calls come from one thread, a waiting process makes
// no other call, so a circle of such processes is detected immediately. If several threads call, or if the calling
// thread is unknown, a circle is reported only after StallTimeout.
func CalledBy(thread uintptr) {
	threads.Lock()
	defer threads.Unlock()
	if threads.known && threads.first != thread {
		threads.several = true
	}
	threads.known, threads.first = true, thread
}

// oneThread reports whether all calls of this process came from one thread.
func oneThread() bool {
	threads.Lock()
	defer threads.Unlock()
	return threads.known && !threads.several
}

// waits holds the waits of this process for others, in a world and its groups.
type waits struct {
	mu    sync.Mutex
	open  map[openWait]int // number of unfinished waits of each kind
	ended uint64           // number of waits that have ended
}

// openWait is a kind of unfinished wait: in a *World, or in a *group that is being joined, for one process, for all
// other processes, or for Any.
type openWait struct {
	in   any
	from int
}

// everyOther means all other processes: the wait ends only when each of them has arrived.
const everyOther = -2

// begin records a wait. The returned function ends the wait.
func (w *waits) begin(x openWait) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[openWait]int{}
	}
	w.open[x]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.ended++
		if w.open[x]--; w.open[x] == 0 {
			delete(w.open, x)
		}
	}
}

// waits records a wait of this process in the detector's world.
func (d *detector) waits(from int) (end func()) {
	w := d.world
	if w.mesh.page == nil { // the world is still being joined; JoinGroup has recorded this wait
		return func() {}
	}
	return outermost(w).waits.begin(openWait{w, from})
}

// outermost returns the world that a group belongs to, or w if it is not a group.
func outermost(w *World) *World {
	if w.mesh.o.group != nil {
		return w.mesh.o.group.of
	}
	return w
}

// wait describes a wait of a process: the other processes that have not begun its step of a world or group.
type wait struct {
	in    uint64 // identifies the world or group; 0 if the process does not wait, or waits in several of them
	step  uint64 // the step that the process is in; 0 while it joins
	ended uint64
	late  [MaxProcesses / 64]uint64 // the processes for which it waits: a bit for each process of the outermost world
	sure  bool                      // whether the process calls from one thread only, and waits for each process in late
	name  string                    // name of the group
	call  entry                     // the call that waits
}

func (w *wait) add(rank int)      { w.late[rank/64] |= 1 << (rank % 64) }
func (w *wait) has(rank int) bool { return w.late[rank/64]&(1<<(rank%64)) != 0 }

// This is the layout of a wait in a slot. The layout begins with a sequence number, which is odd while the wait is
// being written. Then follow the number of times that the wait has been written, its fields as words, the lengths of
// its texts, and the texts.
const (
	waitBeats = 8
	waitWords = 16 // in, step, ended, sure, late
	waitTexts = waitWords + (4+MaxProcesses/64)*8
	waitName  = 64
	waitText  = waitTexts + 3*8
)

// writeWait publishes the wait of a process in the process's slot.
func (p *page) writeWait(rank int, x wait) {
	s := p.slot(rank)[slotWait:]
	word(s, 0).Add(1)
	words := append([]uint64{x.in, x.step, x.ended, 0}, x.late[:]...)
	if x.sure {
		words[3] = 1
	}
	for i, v := range words {
		word(s, waitWords+8*i).Store(v)
	}
	at := waitText
	for i, t := range []string{cutText(x.name, waitName), cutText(x.call.text(), callText), lastOf(x.call.place, stepText)} {
		word(s, waitTexts+8*i).Store(uint64(len(t)))
		copyIn(s[at:], t)
		at += []int{waitName, callText, stepText}[i]
	}
	word(s, waitBeats).Add(1)
	word(s, 0).Add(1)
}

// readWait returns the wait in the slot of a process, and how often the slot's wait has been written. ok is false if it
// was just being written.
func (p *page) readWait(rank int) (x wait, beats uint64, ok bool) {
	s := p.slot(rank)[slotWait:]
	before := word(s, 0).Load()
	get := func(i int) uint64 { return word(s, waitWords+8*i).Load() }
	x.in, x.step, x.ended, x.sure = get(0), get(1), get(2), get(3) != 0
	for i := range x.late {
		x.late[i] = get(4 + i)
	}
	at, texts := waitText, [3]string{}
	for i, most := range []int{waitName, callText, stepText} {
		n := min(word(s, waitTexts+8*i).Load(), uint64(most))
		texts[i] = strings.ToValidUTF8(string(copyOut(s[at:], int(n))), "")
		at += most
	}
	x.name, x.call = texts[0], entry{what: texts[1], place: texts[2]}
	beats = word(s, waitBeats).Load()
	return x, beats, before%2 == 0 && word(s, 0).Load() == before
}

// now returns the current wait of this process. The caller holds mu.
func (w *waits) now(of *World) wait {
	x := wait{ended: w.ended, sure: oneThread()}
	var in any
	for o := range w.open {
		if in != nil && in != o.in {
			return wait{}
		}
		in = o.in
		switch g := o.in.(type) {
		case *group:
			x.in, x.name, x.call = nameOf(g), g.name, entry{what: "the first call"}
			m := g.mesh.Load()
			if m == nil {
				return wait{}
			}
			m.mu.Lock()
			for r, p := range m.peers {
				if r != m.o.Rank && p == nil {
					x.add(g.members[r])
				}
			}
			m.mu.Unlock()
		case *World:
			m := g.mesh
			x.in, x.step = 1, m.page.steps(m.o.Rank)
			if m.o.group != nil {
				x.in, x.name = nameOf(m.o.group), m.o.group.name
			}
			x.call, _ = m.page.recorded(m.o.Rank, x.step)
			x.sure = x.sure && (o.from != Any || m.o.Size == 2)
			for r := range m.o.Size {
				if (o.from == r || o.from < 0) && r != m.o.Rank && m.page.steps(r) < x.step && !m.hasLeft(r) {
					x.add(m.o.outer(r))
				}
			}
		}
	}
	return x
}

// nameOf returns a number for a group that is the same in all its processes.
func nameOf(g *group) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, g.name, g.members)
	return h.Sum64() | 2 // the number is neither 0 nor 1
}

// circleLink is a process of a circle: its wait, and how often the wait had been written when the
// circle was first seen.
type circleLink struct {
	rank  int
	wait  wait
	beats uint64
}

// findCircle publishes a description of this process's wait, and ends the world if the process is part of a circle.
// findCircle is called with every beat.
//
// A circle is reported only if it was seen twice, and each of its processes has written its wait at least three times
// in between. Between the two times no wait has ended, and each process has found that the next process has not
// arrived. There was therefore a time when all of them waited.
func (d *detector) findCircle() {
	w, p, self := d.world, d.mesh.page, d.mesh.o.Rank
	w.waits.mu.Lock()
	mine := w.waits.now(w)
	w.waits.mu.Unlock()
	p.writeWait(self, mine)
	path := d.circle(nil, map[int]bool{}, self, self)
	same := slices.EqualFunc(path, d.seen, func(a, b circleLink) bool {
		return a.rank == b.rank && a.wait.in == b.wait.in && a.wait.step == b.wait.step && a.wait.ended == b.wait.ended
	})
	if !same {
		d.seen, d.circled = path, 0
		return
	}
	if len(path) == 0 {
		return
	}
	d.circled++
	sure := true
	for i, l := range path {
		if l.beats < d.seen[i].beats+3 {
			return
		}
		sure = sure && l.wait.sure
	}
	if !sure && d.circled < d.patience()-3 {
		return
	}
	e := &DisagreeError{What: "the order in which groups are called"}
	for i, l := range path {
		in := "of all ranks"
		if l.wait.name != "" {
			in = "of group " + l.wait.name
		}
		e.Values = append(e.Values, Value{Rank: l.rank, At: l.wait.call.place,
			Value: fmt.Sprintf("%s %s, which waits for rank %d", l.wait.call.what, in, path[(i+1)%len(path)].rank)})
	}
	slices.SortFunc(e.Values, func(a, b Value) int { return a.Rank - b.Rank })
	d.mesh.abort(e)
}

// circle searches for a circle of waits through self. path is a list of processes, each of which waits for the next,
// and the last waits for the process from. circle extends path until it reaches self. seen has the processes from which
// self cannot be reached.
func (d *detector) circle(path []circleLink, seen map[int]bool, from, self int) []circleLink {
	seen[from] = true
	x, beats, ok := d.mesh.page.readWait(from)
	if !ok || x.in == 0 {
		return nil
	}
	path = append(path, circleLink{from, x, beats})
	for next := range d.mesh.o.Size {
		if !x.has(next) || !d.mesh.near(next) {
			continue
		}
		y, _, ok := d.mesh.page.readWait(next)
		if !ok || y.in == 0 || y.in == x.in && y.step >= x.step { // next has begun the step
			continue
		}
		if next == self {
			return path
		}
		if seen[next] {
			continue
		}
		if full := d.circle(path, seen, next, self); full != nil {
			return full
		}
	}
	return nil
}
