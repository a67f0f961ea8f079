package cuda

import (
	"slices"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// flight tracks the work that the world's streams have issued and that is not known to have ended. The world's mutex
// guards it.
type flight struct {
	w       *world
	streams []*stream
	woken   []*stream // streams to be flushed
	asked   int       // index of the stream that poll queries next
	calls   int       // number of host functions (Stream.Call) that run or wait to run
}

// look checks which work the devices have completed since the last call. It reports whether all issued work is
// completed. The caller holds mu.
func (f *flight) look() (idle bool) {
	f.asking(func() {
		idle = f.poll()
		f.w.staging.Land()
		tellMarks(f.w)
	})
	return idle
}

// asking calls the function ask while some context is current. The driver requires a current context for queries about
// streams and events, but any context will do.
func (f *flight) asking(ask func()) {
	if err := f.w.drv.Bind(f.w.sites[0].ctx); err == nil {
		defer f.w.drv.Unbind()
	}
	ask()
}

// poll reports whether the devices have completed all work. It records errors. The caller holds mu.
func (f *flight) poll() bool {
	if f.w.capture != nil {
		return false // the driver refuses queries about captured streams; so callers wait for the end of the capture
	}
	for range f.streams {
		s := f.streams[f.asked%len(f.streams)]
		// The next poll starts at the next stream, even if this stream is busy. This stream s may be waiting for a
		// stream that has failed, and would then stay busy forever.
		f.asked = s.index + 1
		if !s.dirty {
			continue
		}
		idle, err := s.idle()
		if err != nil {
			f.w.fault(s, err)
			return false
		}
		if !idle {
			return false
		}
		s.rested()
	}
	return true
}

// rested records that the stream s has completed all work that it has received.
func (s *stream) rested() {
	s.dirty, s.reached = false, s.pos
	s.track.Rested()
}

// wake schedules the streams in held, whose work was held back, to be flushed. The flush runs once the current context
// is no longer needed.
func (f *flight) wake(held *[]*stream) {
	f.woken = append(f.woken, *held...)
	*held = (*held)[:0]
}

// flushWoken flushes the streams that wake has scheduled, and those that are scheduled meanwhile.
func (f *flight) flushWoken() {
	for len(f.woken) > 0 {
		s := f.woken[len(f.woken)-1]
		f.woken = f.woken[:len(f.woken)-1]
		s.flush()
	}
}

// busy reports whether any stream has received work that may not have ended. The caller holds mu.
func (f *flight) busy() bool {
	return f.calls > 0 || f.w.called || slices.ContainsFunc(f.streams,
		func(s *stream) bool { return s.dirty || len(s.queue) > 0 })
}

// blocked returns the streams whose work is held back. The caller holds mu.
func (f *flight) blocked() []device.Blocked {
	var list []device.Blocked
	for _, s := range f.streams {
		if len(s.queue) > 0 {
			list = append(list, device.Blocked{Rank: s.dev.rank, Stream: s.name, ID: s.headMark(), On: s.queue[0].waitsFor()})
		}
	}
	return list
}

// Standings implements device.Status.
func (w *world) Standings() []device.Standing {
	return w.guard.Standings(func() (list []device.Standing) {
		if w.err() == nil && len(w.sites) > 0 && w.capture == nil {
			w.flight.asking(func() { list = w.flight.standings() })
		}
		return list
	})
}

// standings describes, for each stream that has work, its current work. The caller holds mu.
func (f *flight) standings() []device.Standing {
	var list []device.Standing
	for _, s := range f.streams {
		at := device.Standing{Rank: s.dev.rank, Stream: s.name, Since: s.since}
		at.ID, at.Last = s.within()
		switch {
		case len(s.queue) > 0:
			at.ID, at.Last, at.Does = s.headMark(), 0, "waits for "+s.queue[0].waitsFor()
		case s.calling:
			at.Does = "runs a call"
		case isUnfinished(s):
			at.Does = "still runs"
		default:
			continue
		}
		list = append(list, at)
	}
	return list
}

// isUnfinished reports whether the device is known to have unfinished work of s.
func isUnfinished(s *stream) bool {
	if !s.dirty {
		return false
	}
	idle, err := s.dev.w.drv.StreamIdle(s.h)
	return err == nil && !idle
}

// drain waits until all devices are idle and no host function runs. The caller holds mu, but not while drain waits.
func (f *flight) drain() (errs []error) {
	began := time.Now()
	for {
		busy := f.calls > 0
		for _, s := range f.streams {
			if s.dev.site.lost() || !s.dirty {
				continue
			}
			g, patience := s.dev.site.gpu, f.w.m.sys.Patience
			idle, err := s.idle()
			switch {
			case g.Lose(err, s.where()):
			case err != nil:
				errs = append(errs, err)
				s.dirty = false // the driver cannot return the stream's state
			case idle:
				s.dirty, s.led = false, false
			case time.Since(began) > patience:
				errs = append(errs, g.Hang(patience, s.where()))
			case time.Since(began) > ncclPatience:
				abortNCCL(f.w)
				busy = true
			default:
				busy = true
			}
		}
		if !busy {
			return errs
		}
		f.w.mu.Unlock()
		gpu.Pause(time.Since(began))
		f.w.mu.Lock()
	}
}
