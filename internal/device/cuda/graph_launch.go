package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"hocket.example/hocket/internal/device"
)

// Forms returns the names of the forms in which the graph was recorded.
func (g *graph) Forms() []string {
	var names []string
	for _, f := range g.forms {
		names = append(names, f.name)
	}
	return names
}

// Choose selects the form of the graph with index i for later launches.
func (g *graph) Choose(i int) {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.use = i
}

// Keep selects the form of the graph with index i and frees the other forms.
func (g *graph) Keep(i int) error {
	defer g.w.guard.Exclusive()()
	var errs []error
	for k, f := range g.forms {
		if k != i {
			errs = append(errs, dropForm(g.w, f))
		}
	}
	g.forms, g.use = g.forms[i:i+1:i+1], 0
	return errors.Join(errs...)
}

// Launch runs the graph after all work that has been issued to the world.
func (g *graph) Launch(ctx context.Context) error {
	w := g.w
	if err := ctx.Err(); err != nil {
		return err
	}
	if !w.guard.Issuing() {
		return w.Batch(func() error { return g.enqueue() })
	}
	return g.enqueue()
}

// enqueue does the work of Launch within World.Batch. The sections of the graph wait for each other.
func (g *graph) enqueue() error {
	w := g.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.err(); err != nil {
		return err
	}
	if g.closed || w.capture != nil {
		return errors.New("a graph cannot be launched if it was closed, or while another graph is recorded")
	}
	if b := w.flight.blocked(); len(b) > 0 || w.flight.calls > 0 {
		return fmt.Errorf("a graph cannot be launched while work that was enqueued before is not issued: %w", &device.Deadlock{Blocked: b})
	}
	f := g.forms[g.use]
	for _, s := range w.flight.streams {
		if err := f.joinOrigin(s); err != nil {
			return s.failed(err)
		}
	}
	for _, armed := range g.faults {
		armed.Armed = true
	}
	if n := w.naming; n != nil {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer n.begin(-1)()
	}
	if err := f.launch(w); err != nil {
		return f.sections[0].origin.failed(err)
	}
	for c, by := range g.raises {
		c.forget(len(c.log))
		c.total += by
		c.base = c.total
	}
	return nil
}

// joinOrigin makes the origin stream of s's GPU wait for all work that the stream s has received. Work on other GPUs
// needs no wait, because the sections wait for each other at their beginnings.
func (f *form) joinOrigin(s *stream) error {
	origin := f.originOf(s.dev.site)
	if origin.dev.site == s.dev.site {
		return s.dev.bound(func() error { return origin.comeBehind(s) })
	}
	if !s.dirty {
		return nil
	}
	var m *mark
	err := s.dev.bound(func() (err error) {
		if err = s.follow(); err == nil {
			m, err = s.here()
		}
		return err
	})
	if err != nil {
		return err
	}
	defer m.Release()
	return origin.dev.bound(func() error { return origin.waitFor(m) })
}

// launch launches the sections and records a mark at the end of each one for later work. If a launch fails, the world
// ends. Sections that are already launched wait for the missing sections until the end of the world stops them.
func (f *form) launch(w *world) error {
	next := &graphRun{}
	for i := range f.sections {
		r := &f.sections[i]
		err := r.origin.dev.bound(func() error {
			if err := r.origin.follow(); err != nil {
				return err
			}
			r.origin.worked()
			return w.drv.LaunchGraph(r.exec, r.origin.h)
		})
		if err != nil {
			return err
		}
	}
	for i := range f.sections {
		o := f.sections[i].origin
		if err := o.dev.bound(func() error {
			m, err := o.here()
			if err == nil {
				next.ends = append(next.ends, m)
			}
			return err
		}); err != nil {
			return err
		}
	}
	if f.flags != nil {
		f.flags.launched()
	}
	forgetLatest(w)
	w.latest, w.marked = next, f
	return nil
}

// flagged reports whether any form of g that can still be launched uses flags.
func (g *graph) flagged() bool {
	return slices.ContainsFunc(g.forms, func(f *form) bool { return f.flags != nil })
}

func (g *graph) Close() error {
	defer g.w.guard.Exclusive()()
	g.w.recorded = slices.DeleteFunc(g.w.recorded, func(o *graph) bool { return o == g })
	return g.drop()
}

// drop frees the resources of the graph g. It does so only once.
func (g *graph) drop() error {
	if g.closed {
		return nil
	}
	g.closed = true
	var errs []error
	for _, f := range g.forms {
		errs = append(errs, dropForm(g.w, f))
	}
	return errors.Join(errs...)
}

// forgetReplay returns the timing events of the form f to their pools.
func forgetReplay(w *world, f *form) {
	if w.marked == f {
		w.marked = nil
	}
	f.replay.Free()
}

func dropForm(w *world, f *form) error {
	forgetReplay(w, f)
	var errs []error
	for i := range f.sections {
		r := &f.sections[i]
		if r.exec == 0 || r.origin.dev.site.lost() {
			continue
		}
		errs = append(errs, w.excuse(r.origin.dev.bound(func() error { return w.drv.DestroyGraphExec(r.exec) })))
	}
	return errors.Join(append(errs, f.flags.free())...)
}

var (
	_ device.Graph = (*graph)(nil)
)
