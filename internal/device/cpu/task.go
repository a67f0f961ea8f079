package cpu

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	procs "hocket.example/hocket/internal/world"
)

// task is one thing in a stream's queue.
type task struct {
	kind taskKind
	what string       // work: its name in messages
	run  func() error // work
	mark *mark        // record, waitMark
	ctrs *counters    // signal, waitCounter
	elem int          // signal, waitCounter
	n    int64        // signal: by; waitCounter: least; begin, end: id
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

// waitsFor says what the task needs. The caller holds the world's mutex.
func (t *task) waitsFor() string {
	switch t.kind {
	case waitMark:
		return fmt.Sprintf("an event recorded on rank %d, stream %s", t.mark.on.dev.rank, t.mark.on.name)
	case waitCounter:
		return fmt.Sprintf("counter %d ≥ %d (now %d)", t.elem, t.n, t.ctrs.value(t.elem))
	}
	return "its turn"
}

// settle does what a ready task other than work does, and wakes who waited for
// it. The caller holds the world's mutex.
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

// park leaves word to wake s, whose head t is not ready.
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

// queue is a stream's tasks, first in, first out.
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

// event names the latest mark recorded into it. The world's mutex guards it.
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

// mark is one recording of an event: a wait holds on to the mark that was the
// latest when it was issued, whatever is recorded later.
type mark struct {
	on      *stream
	done    bool
	waiters []*stream
}

// counters are a device's counters. The world's mutex guards values and waiters.
type counters struct {
	dev      *dev
	n        int
	val      []int64 // nil where peers share them
	waiters  map[int][]*stream
	shared   *procs.Counters // nil where all ranks are this process's
	released bool
}

func (c *counters) Len() int { return c.n }

// value is that of an element. The caller holds the world's mutex.
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
