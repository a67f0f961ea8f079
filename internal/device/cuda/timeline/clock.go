// Package timeline measures when work on devices began and ended. A Clock is for one GPU: it has driver events, and
// gives the time of those that were recorded. A Track has the begins and ends on a stream that the device is not yet
// known to have reached, a Replay those within a graph. Package cuda records the events.
package timeline

import (
	"errors"
	"time"

	"hocket.example/hocket/internal/nvlib"
)

// Clock has a GPU's events, and ties its clock to the host's. The world's mutex guards it.
type Clock struct {
	drv    *nvlib.Driver
	events []nvlib.Event // free, without a time
	timed  []nvlib.Event // free, with one
	made   []nvlib.Event // all
	base   nvlib.Event   // was over at ns
	ns     int64
}

// NewClock returns one without events.
func NewClock(drv *nvlib.Driver) *Clock { return &Clock{drv: drv} }

// Event takes an event, with a time or without. The GPU's context is current.
func (c *Clock) Event(timed bool) (nvlib.Event, error) {
	pool := &c.events
	if timed {
		pool = &c.timed
	}
	if n := len(*pool); n > 0 {
		e := (*pool)[n-1]
		*pool = (*pool)[:n-1]
		return e, nil
	}
	e, err := c.drv.NewEvent(timed)
	if err == nil {
		c.made = append(c.made, e)
	}
	return e, err
}

// Free gives events without a time back, FreeTimed those with one.
func (c *Clock) Free(list ...nvlib.Event)      { c.events = append(c.events, list...) }
func (c *Clock) FreeTimed(list ...nvlib.Event) { c.timed = append(c.timed, list...) }

// Idle is how many events with a time are free.
func (c *Clock) Idle() int { return len(c.timed) }

// Destroy destroys all events. The GPU's context is current.
func (c *Clock) Destroy() error {
	var errs []error
	for _, e := range c.made {
		errs = append(errs, c.drv.DestroyEvent(e))
	}
	return errors.Join(errs...)
}

// baseLife is how long a base serves: what the driver tells of the time since
// loses precision as it grows.
const baseLife = 4 * time.Second

// Reset has the clock want a new base.
func (c *Clock) Reset() { c.ns = -int64(baseLife) }

// Stale reports whether the base is too old for times now, since the world was opened.
func (c *Clock) Stale(now time.Duration) bool { return now-time.Duration(c.ns) >= baseLife }

// trials is how many events a base is chosen from.
const trials = 8

// Rebase makes a new base. Times are measured since opened. The device must be idle, and its context current.
//
// The device reaches an event between the call that records it and the end of the wait for it. The base is the event
// for which that took the shortest time, and counts as reached in the middle (Cristian's algorithm).
func (c *Clock) Rebase(opened time.Time) {
	shortest := time.Duration(-1)
	for range trials {
		ev, err := c.Event(true)
		if err != nil {
			return // what comes next meets the same error
		}
		began := time.Since(opened)
		if c.drv.Record(ev, 0) != nil || c.drv.SyncStream(0) != nil {
			c.FreeTimed(ev)
			return
		}
		ended := time.Since(opened)
		worse := ev
		if took := ended - began; shortest < 0 || took < shortest {
			shortest, worse = took, c.base
			c.base, c.ns = ev, int64(began+ended)/2
		}
		if worse != 0 {
			c.FreeTimed(worse)
		}
	}
}

// at is when an event was reached, in nanoseconds.
func (c *Clock) at(ev nvlib.Event) (int64, error) {
	ms, err := c.drv.Elapsed(c.base, ev)
	return c.ns + int64(float64(ms)*1e6), err
}
