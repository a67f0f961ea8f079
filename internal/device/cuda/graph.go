package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// A capture begins on the stream for graphs. Each other stream joins it by
// waiting for that beginning when it is first given work, and is joined at the
// end. Waits for events and counters become edges of the graph, as everything
// that a captured stream is given becomes a node; waits for what was before the
// capture fall away, since the world was at rest.

// capture is a recording under way.
type capture struct {
	begin  nvlib.Event
	joined []*stream
	totals map[*counter]int64 // before
}

// refuses returns why t cannot be recorded.
func (c *capture) refuses(t *task) error {
	if c != nil && (t.kind == uploading || t.kind == downloading || t.kind == calling) {
		return fmt.Errorf("%w: an upload, a download or a call within a graph", device.ErrUnsupported)
	}
	return nil
}

// graphRun is a launch: later work of every stream comes behind it.
type graphRun struct{ mark *mark }

// graph is a recording, ready to launch.
type graph struct {
	w      *world
	exec   nvlib.GraphExec
	nodes  int
	raises map[*counter]int64
	faults []*faults // that its kernels may report to
	closed bool
}

// follow has s join the capture under way, or come behind the graph launched
// last. The context is current.
func (s *stream) follow() error {
	w := s.dev.w
	if c := w.capture; c != nil {
		if s.forked == c || s == w.graphs {
			return nil
		}
		s.forked = c
		c.joined = append(c.joined, s)
		return w.drv.WaitEvent(s.h, c.begin)
	}
	if g := w.latest; g != nil && s.behind != g && s != w.graphs {
		s.behind = g
		return s.waitFor(g.mark)
	}
	return nil
}

// Capture records what issue gives to streams.
func (w *world) Capture(issue func() error) (device.Graph, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.err(); err != nil {
		return nil, err
	}
	if w.capture != nil {
		return nil, errors.New("a graph within a graph")
	}
	if !w.look() || w.calls > 0 || len(w.blocked()) > 0 {
		return nil, errors.New("a graph can be recorded only while the world is at rest; call Sync first")
	}
	w.settle()
	if err := w.beginCapture(); err != nil {
		return nil, w.graphs.failed(err)
	}
	issued := w.unlocked(issue)
	g, err := w.endCapture()
	switch {
	case issued != nil:
		err = issued
	case err == nil && len(w.blocked()) > 0:
		err = fmt.Errorf("the graph would never end: %w", &device.Deadlock{Blocked: w.blocked()})
	}
	if err != nil {
		// Streams hold parts of what was not recorded: nothing fits any more.
		w.end(err)
		return nil, errors.Join(err, g.drop())
	}
	w.recorded = append(w.recorded, g)
	return g, nil
}

// unlocked runs f without the world's mutex, and has it again however f ends.
func (w *world) unlocked(f func() error) error {
	w.mu.Unlock()
	defer w.mu.Lock()
	return f()
}

// beginCapture begins on the stream for graphs, made at the first time.
func (w *world) beginCapture() error {
	if w.graphs == nil {
		w.graphs = &stream{dev: w.devices[0], name: "graphs", index: len(w.streams)}
		if err := w.devices[0].bound(func() (err error) {
			w.graphs.h, err = w.drv.NewStream(0)
			return err
		}); err != nil {
			return err
		}
		w.streams = append(w.streams, w.graphs)
	}
	c := &capture{totals: map[*counter]int64{}}
	for _, d := range w.devices {
		for _, cs := range d.counters {
			for i := range cs.elems {
				c.totals[&cs.elems[i]] = cs.elems[i].total
			}
		}
	}
	return w.devices[0].bound(func() error {
		var err error
		if c.begin, err = w.devices[0].site.newEvent(false); err != nil {
			return err
		}
		if err := w.drv.BeginCapture(w.graphs.h); err != nil {
			return err
		}
		w.capture = c
		return w.drv.Record(c.begin, w.graphs.h)
	})
}

// endCapture joins all streams, ends the capture and makes the graph ready.
func (w *world) endCapture() (*graph, error) {
	c := w.capture
	g := &graph{w: w, raises: map[*counter]int64{}}
	for ctr, before := range c.totals {
		if by := ctr.total - before; by > 0 {
			g.raises[ctr] = by
			ctr.forget(len(ctr.log))
			ctr.total, ctr.base = before, before // nothing ran
		}
	}
	for _, s := range w.sites {
		if s.faults.armed {
			g.faults = append(g.faults, &s.faults)
		}
	}
	var joins []error
	for _, s := range c.joined {
		joins = append(joins, s.dev.bound(func() error {
			m, err := s.here()
			if err != nil {
				return err
			}
			defer m.release()
			return w.drv.WaitEvent(w.graphs.h, m.ev)
		}))
	}
	return g, w.devices[0].bound(func() error {
		raw, err := w.drv.EndCapture(w.graphs.h)
		w.capture = nil
		site := w.devices[0].site
		site.events = append(site.events, c.begin)
		for _, s := range c.joined {
			s.dirty = false // it was given nothing to run
		}
		if err = errors.Join(append(joins, err)...); err != nil {
			return err
		}
		if g.nodes, err = w.drv.GraphNodes(raw); err == nil {
			g.exec, err = w.drv.Instantiate(raw)
		}
		err = errors.Join(err, w.drv.DestroyGraph(raw))
		if err == nil {
			w.graphs.worked()
			err = w.drv.UploadGraph(g.exec, w.graphs.h)
		}
		return err
	})
}

// Launch runs the graph behind all that was issued.
func (g *graph) Launch(ctx context.Context) error {
	w := g.w
	if err := ctx.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.err(); err != nil {
		return err
	}
	if g.closed || w.capture != nil {
		return errors.New("a graph that was closed, or that is within another, cannot be launched")
	}
	if b := w.blocked(); len(b) > 0 || w.calls > 0 {
		return fmt.Errorf("a graph is launched while work is held back: %w", &device.Deadlock{Blocked: b})
	}
	for _, s := range w.streams {
		if err := w.behind(s); err != nil {
			return s.failed(err)
		}
	}
	if err := w.devices[0].bound(g.launch); err != nil {
		return w.graphs.failed(err)
	}
	for c, by := range g.raises {
		c.forget(len(c.log))
		c.total += by
		c.base = c.total
	}
	return nil
}

// behind has the stream for graphs wait for all that s was given.
func (w *world) behind(s *stream) error {
	if s == w.graphs || !s.dirty {
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
	defer m.release()
	return w.devices[0].bound(func() error { return w.graphs.waitFor(m) })
}

// launch launches the graph, and marks its end for what comes later.
func (g *graph) launch() error {
	w := g.w
	w.graphs.worked()
	for _, f := range g.faults {
		f.armed = true
	}
	if err := w.drv.LaunchGraph(g.exec, w.graphs.h); err != nil {
		return err
	}
	m, err := w.graphs.here()
	if err != nil {
		return err
	}
	if w.latest != nil {
		w.latest.mark.release()
	}
	w.latest = &graphRun{m}
	return nil
}

func (g *graph) Close() error {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.w.recorded = slices.DeleteFunc(g.w.recorded, func(o *graph) bool { return o == g })
	return g.drop()
}

// drop frees the graph, once.
func (g *graph) drop() error {
	if g.closed || g.exec == 0 || g.w.devices[0].site.lost() {
		return nil
	}
	g.closed = true
	return g.w.excuse(g.w.devices[0].bound(func() error { return g.w.drv.DestroyGraphExec(g.exec) }))
}

var _ device.Capturer = (*world)(nil)
