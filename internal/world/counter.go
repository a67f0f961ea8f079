package world

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Counters are counters on which one process waits, and that any process that has mapped them
// raises. They never sink.
type Counters struct {
	w       *World
	owner   int
	segment *Segment
}

// A counter has a cache line to itself: its value, and, if somebody sleeps until it has a
// value, the least such value.
const (
	counterBytes = 64
	atValue      = 0
	atWanted     = 8
)

// NewCounters makes n counters on which this process waits, and lets the processes to, or all
// others, map them by key.
func (w *World) NewCounters(key string, n int, to ...int) (*Counters, error) {
	s, err := NewSegment(max(n, 1) * counterBytes)
	if err != nil {
		return nil, err
	}
	if err := w.Share(key, s, to...); err != nil {
		s.Close()
		return nil, err
	}
	return &Counters{w, w.o.Rank, s}, nil
}

// MapCounters maps the counters on which a process waits. It waits for them at most T.
func (w *World) MapCounters(ctx context.Context, process int, key string) (*Counters, error) {
	s, err := w.Map(ctx, process, key)
	if err != nil {
		return nil, err
	}
	return &Counters{w, process, s}, nil
}

// Close unmaps the counters from this process. None of its goroutines may use them any more.
func (c *Counters) Close() error { return c.segment.Close() }

func (c *Counters) value(i int) *atomic.Uint64 { return word(c.segment.mem, i*counterBytes+atValue) }

func (c *Counters) wanted(i int) *atomic.Uint64 { return word(c.segment.mem, i*counterBytes+atWanted) }

// Load returns the value of a counter.
func (c *Counters) Load(i int) uint64 { return c.value(i).Load() }

// Add raises a counter by n. What this process wrote to shared memory before is seen by who
// waits for the counter.
func (c *Counters) Add(i int, n uint64) { c.wake(i, c.value(i).Add(n)) }

// Set raises a counter to n; others must not raise it at the same time.
func (c *Counters) Set(i int, n uint64) {
	c.value(i).Store(n)
	c.wake(i, n)
}

// wake rings for whoever sleeps until a counter has the value now.
func (c *Counters) wake(i int, now uint64) {
	if wanted := c.wanted(i).Load(); wanted == 0 || now < wanted {
		return
	}
	if c.owner == c.w.o.Rank {
		c.w.bell.answer()
		return
	}
	c.w.mu.Lock()
	ring(c.w.peers[c.owner].doorbell)
	c.w.mu.Unlock()
}

// spin is how long Wait looks at a counter before it sleeps.
const spin = 10 * time.Microsecond

// Any stands for all other processes where Wait is not told who raises a counter.
const Any = -1

// Wait waits until a counter is at least atLeast. The process from is to raise it: Wait fails if
// that leaves the world, and ends the world if it does not begin, within T, the step that this
// process is in (see Step). A process in that step may take its time, as long as it lives; bound
// that by ctx.
func (c *Counters) Wait(ctx context.Context, i int, atLeast uint64, from int) error {
	v := c.value(i)
	if v.Load() >= atLeast {
		return nil
	}
	if c.owner != c.w.o.Rank {
		return fmt.Errorf("a wait for a counter of rank %d in rank %d", c.owner, c.w.o.Rank)
	}
	for start := time.Now(); time.Since(start) < spin; {
		for range 50 {
			if v.Load() >= atLeast {
				return nil
			}
		}
	}
	return c.w.bell.sleep(ctx, &waiter{c: c, i: i, atLeast: atLeast, from: from, woken: make(chan error, 1)})
}

// bell wakes the waiters of a process. Other processes ring it when a counter has a value that
// somebody sleeps for.
type bell struct {
	file *os.File // nil in a world of one

	mu      sync.Mutex
	waiters []*waiter
}

// waiter is a goroutine that sleeps until a counter has a value.
type waiter struct {
	c       *Counters
	i       int
	atLeast uint64
	from    int // who is to raise the counter
	beats   int // how long it has waited for that process to begin this step
	woken   chan error
}

func (b *bell) sleep(ctx context.Context, r *waiter) error {
	w := r.c.w
	b.mu.Lock()
	b.waiters = append(b.waiters, r)
	b.want(r)
	b.mu.Unlock()
	// The counter may have been raised before it was wanted, its raiser may have left.
	b.answer()
	b.forsaken(w)
	var err error
	select {
	case err := <-r.woken:
		return err
	case <-ctx.Done():
		err = ctx.Err()
		if r.from != Any {
			err = fmt.Errorf("waiting for rank %d, %s: %w", r.from, w.page.last(r.from), err)
		}
	case <-w.done:
		err = w.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remove(func(other *waiter) bool { return other == r })
	if r.c.Load(r.i) >= r.atLeast {
		return nil
	}
	return err
}

// want writes the least value that somebody sleeps for beside a counter. It is called with mu
// locked, as remove is.
func (b *bell) want(r *waiter) {
	least := uint64(0)
	for _, other := range b.waiters {
		if other.c == r.c && other.i == r.i && (least == 0 || other.atLeast < least) {
			least = other.atLeast
		}
	}
	r.c.wanted(r.i).Store(least)
}

// remove removes the waiters for which gone holds, and returns them. Whoever is woken may unmap
// the counters, so remove comes first.
func (b *bell) remove(gone func(*waiter) bool) (out []*waiter) {
	kept := b.waiters[:0]
	for _, r := range b.waiters {
		if gone(r) {
			out = append(out, r)
		} else {
			kept = append(kept, r)
		}
	}
	clear(b.waiters[len(kept):])
	b.waiters = kept
	for _, r := range out {
		b.want(r)
	}
	return out
}

// answer wakes whose counters have the values that they wait for.
func (b *bell) answer() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.remove(func(r *waiter) bool { return r.c.Load(r.i) >= r.atLeast }) {
		r.woken <- nil
	}
}

// forsaken fails waits for processes that have left or died.
func (b *bell) forsaken(w *World) {
	b.answer()
	gone, all := w.gone()
	if len(gone) == 0 {
		return
	}
	mine := w.page.steps(w.o.Rank)
	b.mu.Lock()
	defer b.mu.Unlock()
	// One that left in this step, or later, had done its part in it.
	culprit := func(r *waiter) int {
		return slices.IndexFunc(gone, func(rank int) bool {
			return r.from == rank || r.from == Any && (all || w.page.steps(rank) < mine)
		})
	}
	for _, r := range b.remove(func(r *waiter) bool { return culprit(r) >= 0 }) {
		err := w.Err()
		if err == nil {
			err = w.member(gone[culprit(r)]).failed("left the world, but is waited for")
		}
		r.woken <- err
	}
}

// gone returns the processes that have left, and whether these are all others.
func (w *World) gone() (ranks []int, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r, p := range w.peers {
		if p != nil && p.left {
			ranks = append(ranks, r)
		}
	}
	return ranks, len(ranks) == w.o.Size-1
}

// late returns a process that has not begun a step, of those that a wait is for; -1 for none.
func (w *World) late(from int, step uint64) int {
	for r := range w.o.Size {
		if r != w.o.Rank && (from == r || from == Any) && w.page.steps(r) < step {
			return r
		}
	}
	return -1
}

// overdue ends the world if somebody has waited for T for a process that has not begun the step
// that this process is in. It is called once a beat.
func (b *bell) overdue(w *World) {
	mine := w.page.steps(w.o.Rank)
	patience := int(max(w.o.StallTimeout/beat, 1))
	late := -1
	b.mu.Lock()
	for _, r := range b.waiters {
		r.beats++
		behind := w.late(r.from, mine)
		if behind < 0 {
			r.beats = 0
		}
		if r.beats > patience {
			late = behind
		}
	}
	b.mu.Unlock()
	if late < 0 {
		return
	}
	text, _ := w.page.recorded(w.o.Rank, mine)
	err := w.member(late).failed("did not begin step %d (%s) within %v, %s", mine, text, w.o.StallTimeout, w.page.last(late))
	w.end(cause{Peer: err}, err)
}

// listen answers the bell until it is closed.
func (b *bell) listen() {
	var count [8]byte
	for {
		if _, err := b.file.Read(count[:]); err != nil {
			return
		}
		b.answer()
	}
}

func (b *bell) close() {
	if b.file != nil {
		b.file.Close()
	}
}
