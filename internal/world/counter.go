package world

import (
	"context"
	"runtime"
	"time"
)

// Counters holds numbers in shared memory that processes raise and wait for. Their values never decrease.
type Counters struct {
	detector *detector
	segment  *Segment
}

// These are the offsets in a counter's memory. Each counter has a separate cache line.
const (
	counterBytes = 64

	counterValue    = 0  // 64 bits
	counterSleepers = 8  // 32 bits: number of waits that sleep or are about to sleep
	counterTurn     = 12 // 32 bits: the futex on which waits sleep; it changes with the value if there are sleepers
)

// NewCounters makes n counters. The processes listed in to, or all other processes if the list is empty, can map them
// by key.
func (w *World) NewCounters(key string, n int, to ...int) (*Counters, error) {
	s, err := NewSegment(max(n, 1) * counterBytes)
	if err != nil {
		return nil, err
	}
	if err := w.Share(key, s, to...); err != nil {
		s.Close()
		return nil, err
	}
	return &Counters{w.detector, s}, nil
}

// MapCounters maps the counters that another process made. MapCounters waits in the same way as Map.
func (w *World) MapCounters(ctx context.Context, process int, key string) (*Counters, error) {
	s, err := w.Map(ctx, process, key)
	if err != nil {
		return nil, err
	}
	return &Counters{w.detector, s}, nil
}

// Close unmaps the counters from this process. The goroutines of this process must no longer use the counters.
func (c *Counters) Close() error { return c.segment.Close() }

// line returns the memory of a counter.
func (c *Counters) line(i int) []byte { return c.segment.mem[i*counterBytes:][:counterBytes] }

// Load returns the value of a counter.
func (c *Counters) Load(i int) uint64 { return word(c.line(i), counterValue).Load() }

// Add raises a counter by n. A process that reads the new value also sees all earlier writes of this process to shared
// memory.
func (c *Counters) Add(i int, n uint64) {
	line := c.line(i)
	word(line, counterValue).Add(n)
	wake(line)
}

// Set raises a counter to n. No other process may raise it at the same time.
func (c *Counters) Set(i int, n uint64) {
	line := c.line(i)
	word(line, counterValue).Store(n)
	wake(line)
}

// wake wakes all goroutines and processes that sleep until a counter changes. A wait that begins during the call either
// reads the new value or is woken.
func wake(line []byte) {
	if word32(line, counterSleepers).Load() > 0 {
		turn := word32(line, counterTurn)
		turn.Add(1)
		futexWake(turn)
	}
}

// spin limits how long Wait polls a counter before it sleeps. The limit is about the time that waking a sleeper takes.
const spin = 50 * time.Microsecond

// Wait waits until a counter is at least atLeast. The argument from is the process that will raise it, or Any. Wait
// fails if that process leaves the world. If the process from has not begun this process's step, and makes no progress
// for StallTimeout (see Step, At), Wait ends the world. Within the same step there is no time limit as long as the
// process lives; use ctx to set one. A waiting goroutine occupies a thread.
func (c *Counters) Wait(ctx context.Context, i int, atLeast uint64, from int) error {
	line := c.line(i)
	value := word(line, counterValue)
	if value.Load() >= atLeast {
		return nil
	}
	for start := time.Now(); time.Since(start) < spin; {
		for range 50 {
			if value.Load() >= atLeast {
				return nil
			}
		}
		runtime.Gosched() // let other goroutines run before polling again
	}
	sleepers, turn := word32(line, counterSleepers), word32(line, counterTurn)
	sleepers.Add(1)
	defer sleepers.Add(^uint32(0))
	defer c.detector.waits(from)()
	for v := (vigil{}); ; {
		now := turn.Load()
		err := c.detector.check(ctx, from, &v)
		switch {
		case value.Load() >= atLeast: // read again after check, because a process raises counters before it leaves
			return nil
		case err != nil:
			return err
		}
		if futexWait(turn, now, beat) {
			v.beats++
		}
	}
}
