package cuda

import (
	"slices"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// flight is what the world's streams were given, and are not known to have done. The world's mutex guards it.
type flight struct {
	w       *world
	streams []*stream
	woken   []*stream // to be flushed
	asked   int       // the stream that is asked next whether it is idle; see poll
	calls   int       // host functions (Stream.Call) that run or are waited for
}

// look finds out what the devices have done since the last look, and whether
// they have done all. The caller holds mu.
func (f *flight) look() (idle bool) {
	f.asking(func() {
		idle = f.poll()
		f.w.staging.Land()
		tellMarks(f.w)
	})
	return idle
}

// asking runs f with some context current, which questions about streams and
// events need; which one does not matter to them.
func (f *flight) asking(ask func()) {
	if err := f.w.drv.Bind(f.w.sites[0].ctx); err == nil {
		defer f.w.drv.Unbind()
	}
	ask()
}

// poll reports whether the devices have done all they were given. It notes
// errors. The caller holds mu.
func (f *flight) poll() bool {
	if f.w.capture != nil {
		return false // the driver refuses questions for streams that record; others wait for the end
	}
	for range f.streams {
		s := f.streams[f.asked%len(f.streams)]
		// The next question is for the next stream, also where this one is busy: it may
		// wait for one that has failed, and would for ever.
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

// rested notes that s has done all it was given.
func (s *stream) rested() {
	s.dirty, s.reached = false, s.pos
	s.track.Rested()
}

// wake schedules streams that were held back to be flushed once the current context is no longer needed.
func (f *flight) wake(held *[]*stream) {
	f.woken = append(f.woken, *held...)
	*held = (*held)[:0]
}

// flushWoken flushes the woken streams, and the streams that this wakes.
func (f *flight) flushWoken() {
	for len(f.woken) > 0 {
		s := f.woken[len(f.woken)-1]
		f.woken = f.woken[:len(f.woken)-1]
		s.flush()
	}
}

// busy reports whether anything was given to a stream that may not be over. The caller holds mu.
func (f *flight) busy() bool {
	return f.calls > 0 || f.w.called || slices.ContainsFunc(f.streams,
		func(s *stream) bool { return s.dirty || len(s.queue) > 0 })
}

// blocked lists the streams whose work is held back. The caller holds mu.
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

// standings says what each stream with work does. The caller holds mu.
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

// isUnfinished reports whether the device is known to work for s.
func isUnfinished(s *stream) bool {
	if !s.dirty {
		return false
	}
	idle, err := s.dev.w.drv.StreamIdle(s.h)
	return err == nil && !idle
}

// drain waits until the devices rest and no host function runs. The caller
// holds mu, which is free meanwhile.
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
				s.dirty = false // its state cannot be read
			case idle:
				s.dirty = false
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
