package cpu

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	procs "hocket.example/hocket/internal/world"
)

// task is an element of a stream's queue.
type task struct {
	kind taskKind
	what string       // for work: its name in messages
	run  func() error // for work: the function that executes it
	mark *mark        // for record and waitMark
	ctrs *counters    // for signal and waitCounter
	elem int          // for signal and waitCounter: the index of the counter
	// for signal: the value to add; for waitCounter: the value to wait for; for begin and end: the mark's id
	n int64
}

type taskKind uint8

const (
	work taskKind = iota
	record
	waitMark
	signal
	waitCounter
	begin
	end
)

// ready reports whether the task can run now. The caller holds the world's mutex.
func (t *task) ready() bool {
	switch t.kind {
	case waitMark:
		return t.mark.done
	case waitCounter:
		return t.ctrs.value(t.elem) >= t.n
	}
	return true
}

// waitsFor describes the event or counter value for which the task waits. The caller holds the world's mutex.
func (t *task) waitsFor() string {
	switch t.kind {
	case waitMark:
		return fmt.Sprintf("an event recorded on rank %d, stream %s", t.mark.on.dev.rank, t.mark.on.name)
	case waitCounter:
		return fmt.Sprintf("counter %d ≥ %d (now %d)", t.elem, t.n, t.ctrs.value(t.elem))
	}
	return "its turn"
}

// settle executes a ready task that is not a piece of work, and wakes the streams that wait for the task. The caller
// holds the world's mutex.
func (t *task) settle() {
	switch t.kind {
	case record:
		t.mark.done = true
		wake(t.mark.waiters)
		t.mark.waiters = nil
	case signal:
		if t.ctrs.shared != nil {
			t.ctrs.shared.Add(t.elem, uint64(t.n))
			return
		}
		t.ctrs.val[t.elem] += t.n
		woken := t.ctrs.waiters[t.elem]
		delete(t.ctrs.waiters, t.elem)
		wake(woken)
	}
}

// park records that the first task t of the stream s is not ready, so that s is woken when t may be ready.
func (t *task) park(s *stream) {
	if t.kind == waitMark {
		t.mark.waiters = append(t.mark.waiters, s)
		return
	}
	if t.ctrs.waiters == nil {
		t.ctrs.waiters = map[int][]*stream{}
	}
	t.ctrs.waiters[t.elem] = append(t.ctrs.waiters[t.elem], s)
}

// queue holds a stream's tasks in FIFO order.
type queue struct {
	tasks []task
	next  int
}

func (q *queue) push(t task) { q.tasks = append(q.tasks, t) }
func (q *queue) empty() bool { return q.next == len(q.tasks) }
func (q *queue) peek() *task { return &q.tasks[q.next] }

func (q *queue) pop() task {
	t := q.tasks[q.next]
	q.tasks[q.next] = task{}
	q.next++
	if q.empty() {
		q.tasks, q.next = q.tasks[:0], 0
	} else if q.next >= 1024 && 2*q.next >= len(q.tasks) {
		n := copy(q.tasks, q.tasks[q.next:])
		clear(q.tasks[n:])
		q.tasks, q.next = q.tasks[:n], 0
	}
	return t
}

// launch is a prepared kernel.
type launch struct {
	dev      *dev
	name     string
	run      func() error
	released bool
}

func (l *launch) Release() { l.released = true }

// event refers to the latest mark that was recorded into it. The world's mutex guards it.
type event struct {
	dev      *dev
	latest   *mark
	released bool
}

func (e *event) Release() {
	e.dev.w.mu.Lock()
	defer e.dev.w.mu.Unlock()
	e.released = true
}

// mark is one recording of an event. A wait for an event refers to the event's latest mark at the time when the wait
// was issued, even if the event is recorded again before the wait executes.
type mark struct {
	on      *stream
	done    bool
	waiters []*stream
}

// counters is an array of a device's counters. The world's mutex guards values and waiters.
type counters struct {
	dev      *dev
	n        int
	val      []int64 // the values; nil if processes share the counters
	waiters  map[int][]*stream
	shared   *procs.Counters // the counters in memory that processes share; nil if all ranks are in this process
	released bool
}

func (c *counters) Len() int { return c.n }

// value returns the value of an element. The caller holds the world's mutex.
func (c *counters) value(elem int) int64 {
	if c.shared != nil {
		return int64(c.shared.Load(elem))
	}
	return c.val[elem]
}

func (c *counters) Release() {
	c.dev.w.mu.Lock()
	defer c.dev.w.mu.Unlock()
	c.released = true
}

var (
	_ device.Event    = (*event)(nil)
	_ device.Counters = (*counters)(nil)
	_ device.Launch   = (*launch)(nil)
)
