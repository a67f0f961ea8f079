package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/laps"
	"hocket.example/hocket/internal/nvlib"
)

// The methods of callers order the world's work with the caller's own streams. Before the world's work, the origin
// stream of each GPU waits for the caller's streams. A stream of the world waits for the origin stream when the stream
// next receives work, as after a graph launch (see stream.follow). After the world's work, the origin stream waits for
// all streams of the world on its GPU, and the caller's streams wait for the origin stream. If the caller's stream is
// being captured, the world records its own graph, which becomes one node of the caller's graph. Streams of the world
// therefore never become part of the caller's capture.

// callers implements device.Callers.
type callers struct{ w *world }

// Callers implements device.World.
func (w *world) Callers() (device.Callers, error) {
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return nil, err
	}
	for _, s := range w.sites {
		if err := s.openOrigin(); err != nil {
			return nil, err
		}
	}
	return callers{w}, nil
}

// At implements device.Callers.
func (c callers) At(rank int, address uintptr, bytes int64) (device.Memory, error) {
	if rank < 0 || rank >= len(c.w.devices) || !c.w.Local(rank) || address == 0 || bytes < 0 {
		return nil, fmt.Errorf("%d bytes at address %#x are not in the memory of rank %d", bytes, address, rank)
	}
	if gpu := c.w.devices[rank].site.gpu.Device; c.w.drv.KnowsDevices() {
		var at nvlib.Device
		err := c.w.devices[rank].bound(func() (err error) {
			at, err = c.w.drv.DeviceOf(nvlib.Ptr(address))
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%w: address %#x is not memory of a GPU: %w", device.ErrAddress, address, err)
		}
		if at != gpu {
			return nil, fmt.Errorf("%w: the memory at %#x is on GPU %d, but rank %d is on GPU %d", device.ErrAddress,
				address, at,
				rank, gpu)
		}
	}
	return &memory{dev: c.w.devices[rank], kind: device.Private, addr: nvlib.Ptr(address), bytes: bytes, lent: true},
		nil
}

// Capturing implements device.Machine. The default stream is never captured, so it is not queried. Each GPU has a
// separate default stream.
func (m *machine) Capturing(stream uintptr) (is bool, err error) {
	if stream == 0 {
		return false, nil
	}
	err = m.sys.GPUs[0].Bound(func() error {
		is, err = m.sys.Driver.Capturing(nvlib.Stream(stream))
		return err
	})
	return is, err
}

// Between implements device.Callers.
func (c callers) Between(streams []uintptr, issue func() error) error {
	if len(streams) != len(c.w.devices) {
		return fmt.Errorf("%d streams were passed for %d ranks: pass one for each rank", len(streams), len(c.w.devices))
	}
	return c.w.guard.Batch(streams, func() bool { return waitsOnDevices(c.w) }, func() error {
		laps.Lap("locks")
		if err := c.follow(streams); err != nil {
			return err
		}
		laps.Lap("wait for the caller's streams")
		if err := issue(); err != nil {
			return err
		}
		err := c.lead(streams)
		laps.Lap("wait of the caller's streams")
		return err
	})
}

// each calls its argument f for every GPU of this process while that GPU's context is current. An error ends the world.
func (c callers) each(f func(s *site) error) error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if err := c.w.err(); err != nil {
		return err
	}
	for _, s := range c.w.sites {
		if err := s.bound(func() error { return f(s) }); err != nil {
			return s.origin.failed(err)
		}
	}
	return nil
}

// follow makes all later work of the world wait for the work that is already on the caller's streams.
func (c callers) follow(streams []uintptr) error {
	next := &graphRun{}
	err := c.each(func(s *site) error {
		o := s.origin
		if err := o.follow(); err != nil {
			return err
		}
		for _, d := range c.w.devices {
			if d.site != s {
				continue
			}
			if err := c.waitFor(o.h, nvlib.Stream(streams[d.rank]), s); err != nil {
				return err
			}
		}
		o.worked()
		m, err := o.here()
		if err == nil {
			next.ends = append(next.ends, m)
		}
		return err
	})
	if err != nil {
		return err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	forgetLatest(c.w)
	c.w.latest = next
	return nil
}

// waitFor makes the stream s wait for work that the stream other has already received.
func (c callers) waitFor(s, other nvlib.Stream, at *site) error {
	ev, err := at.clock.Event(false)
	if err != nil {
		return err
	}
	defer func() { at.clock.Free(ev) }()
	return errors.Join(c.w.drv.Record(ev, other), c.w.drv.WaitEvent(s, ev))
}

// lead issues waits: later work on the caller's streams waits for all work that the world has issued.
func (c callers) lead(streams []uintptr) error {
	return c.each(func(s *site) error {
		if b := c.w.flight.blocked(); len(b) > 0 || c.w.flight.calls > 0 {
			return fmt.Errorf("the caller's streams cannot wait for work that is not issued yet: %w",
				&device.Deadlock{Blocked: b})
		}
		for _, o := range c.w.flight.streams {
			if o.dev.site != s {
				continue
			}
			if err := s.origin.comeBehind(o); err != nil {
				return err
			}
		}
		m, err := s.origin.here()
		if err != nil {
			return err
		}
		defer m.Release()
		for _, d := range c.w.devices {
			if d.site == s {
				err = errors.Join(err, c.w.drv.WaitEvent(nvlib.Stream(streams[d.rank]), m.ev))
			}
		}
		return err
	})
}

// CaptureInto implements device.Callers.
func (c callers) CaptureInto(ctx context.Context, streams []uintptr, prepare func(), issue func() error) error {
	w := c.w
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	restore, err := w.drv.RelaxCaptures()
	if err != nil {
		return err
	}
	defer restore()
	prepare()
	if err := w.Sync(ctx); err != nil {
		return err
	}
	defer w.guard.Exclusive()()
	if err := admitCapture(w); err != nil {
		return err
	}
	g := &graph{w: w, raises: map[*counter]int64{}}
	if err := beginCapture(w, formOne); err != nil {
		w.end(err)
		return err
	}
	issued := w.guard.Issue(issue)
	f, raws, err := g.finishCapture(formOne)
	if err = errors.Join(issued, err); err == nil && len(w.flight.blocked()) > 0 {
		err = fmt.Errorf("the graph would deadlock: %w", &device.Deadlock{Blocked: w.flight.blocked()})
	}
	s := w.sites[0]
	if err == nil {
		err = s.bound(func() error { return w.drv.AddToCapture(nvlib.Stream(streams[w.first().rank]), raws[0]) })
	}
	err = errors.Join(err, destroyGraph(w, raws[0]))
	if err != nil {
		w.end(err)
		return err
	}
	forgetReplay(w, f)
	for _, x := range g.faults {
		x.Always = true // the world does not see when the caller launches the graph
	}
	return nil
}

// Err implements device.Callers.
func (c callers) Err() error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.w.told()
}

// told reads the faults that kernels of teams have reported so far, and returns the world's error. It makes no device
// call. The caller holds mu.
func (w *world) told() error {
	if w.cause == nil {
		readTeams(w)
	}
	return w.err()
}

var _ device.Callers = callers{}
