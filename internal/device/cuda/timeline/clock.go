// Package timeline measures when work on devices began and ended. A Clock creates the events of one GPU and converts
// the times of recorded events. A Track holds the begins and ends of commands on a stream that the device is not yet
// known to have reached. A Replay holds the begins and ends of commands within a graph. Package cuda records the
// events.
package timeline

import (
	"errors"
	"time"

	"hocket.example/hocket/internal/nvlib"
)

// Clock holds a GPU's events, and converts times on the GPU's clock to times on the host's. The world's mutex guards
// it.
type Clock struct {
	drv    *nvlib.Driver
	events []nvlib.Event // free events without timing
	timed  []nvlib.Event // free events with timing
	made   []nvlib.Event // all events, free or not
	base   nvlib.Event   // the base: an event that the device reached at time ns
	ns     int64
}

// NewClock returns a clock without events.
func NewClock(drv *nvlib.Driver) *Clock { return &Clock{drv: drv} }

// Event returns an unused event, with timing or without. The GPU's context is current.
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

// Free returns an event without timing to the clock's pool, and FreeTimed one with timing.
func (c *Clock) Free(list ...nvlib.Event)      { c.events = append(c.events, list...) }
func (c *Clock) FreeTimed(list ...nvlib.Event) { c.timed = append(c.timed, list...) }

// Idle returns the number of free events with timing.
func (c *Clock) Idle() int { return len(c.timed) }

// Destroy destroys all events. The GPU's context is current.
func (c *Clock) Destroy() error {
	var errs []error
	for _, e := range c.made {
		errs = append(errs, c.drv.DestroyEvent(e))
	}
	return errors.Join(errs...)
}

// baseLife is how long a base event is used. The driver returns the time between the base and another event as a
// float32, whose precision decreases as the time grows.
const baseLife = 4 * time.Second

// Reset makes Stale return true, so that the caller selects a new base event.
func (c *Clock) Reset() { c.ns = -int64(baseLife) }

// Stale reports whether the base is too old at time now, which is measured since the world was opened.
func (c *Clock) Stale(now time.Duration) bool { return now-time.Duration(c.ns) >= baseLife }

// trials is the number of events from which Rebase selects the base.
const trials = 8

// Rebase makes a new base. Times are measured since opened. The device must be idle, and its context current.
//
// Rebase records several events, and waits for each. The device reaches an event at some time between the call that
// records it and the end of the wait. The base is that event for which this interval is shortest. The base's time is
// assumed to be the middle of the interval (Cristian's algorithm).
func (c *Clock) Rebase(opened time.Time) {
	shortest := time.Duration(-1)
	for range trials {
		ev, err := c.Event(true)
		if err != nil {
			return // the next driver call will return the same error
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

// at returns the time at which the device reached ev, in nanoseconds.
func (c *Clock) at(ev nvlib.Event) (int64, error) {
	ms, err := c.drv.Elapsed(c.base, ev)
	return c.ns + int64(float64(ms)*1e6), err
}
