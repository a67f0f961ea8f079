package cuda

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Capture records the work that issue enqueues on streams as a graph. It calls issue once for each form of the graph.
func (w *world) Capture(issue func() error) (device.Graph, error) {
	defer w.guard.Exclusive()()
	if err := admitCapture(w); err != nil {
		return nil, err
	}
	g := &graph{w: w, raises: map[*counter]int64{}}
	for _, name := range formsWanted(w) {
		bound, err := g.record(name, issue)
		if err != nil {
			// After a failure, streams still refer to the incomplete recording, so the world cannot continue.
			w.end(err)
			return nil, errors.Join(err, g.drop())
		}
		if bound {
			break
		}
	}
	w.recorded = append(w.recorded, g)
	return g, nil
}

// admitCapture returns an error if no graph can be recorded now. All processes call admitCapture at the same position
// of the program. The caller holds the world exclusively.
func admitCapture(w *world) error {
	if w.Transport() != "" {
		return fmt.Errorf("%w: graphs are not possible with processes on several nodes; run without graphs", device.ErrUnsupported)
	}
	if err := w.err(); err != nil {
		return err
	}
	if w.capture != nil {
		return errors.New("a graph within a graph")
	}
	if !w.flight.look() || w.flight.calls > 0 || len(w.flight.blocked()) > 0 {
		return errors.New("a graph can be recorded only while no work is in flight; call Sync first")
	}
	forgetFinished(w)
	if err := w.wired.restTogether(); err != nil {
		w.end(err)
		return err
	}
	return nil
}

// formsWanted returns the names of the forms in which graphs are recorded. The form with one graph for each GPU uses
// flags. Flags need peer access between all GPUs and at most one rank on each GPU. In a test with two ranks on one GPU,
// while other programs used that GPU, a rank waited for a flag that was never raised. The cause is not known.
func formsWanted(w *world) []string {
	switch {
	case len(w.sites) == 1, w.peers != nil:
		return []string{formOne}
	case w.m.opts.Graphs != "":
		return []string{w.m.opts.Graphs}
	case !w.whole(), len(w.devices) > len(w.sites):
		return []string{formOne}
	}
	return []string{formOne, formEach}
}

// record records the graph in one more form. The result bound is true if no other form is possible. The caller holds
// mu, which record unlocks while issue runs.
func (g *graph) record(name string, issue func() error) (bound bool, err error) {
	w := g.w
	if err := beginCapture(w, name); err != nil {
		return false, err
	}
	issued := w.guard.Issue(issue)
	c := w.capture
	f, err := g.endCapture(name)
	g.forms = append(g.forms, f)
	switch {
	case issued != nil:
		return c.bound, issued
	case err == nil && len(w.flight.blocked()) > 0:
		err = fmt.Errorf("the graph would deadlock: %w", &device.Deadlock{Blocked: w.flight.blocked()})
	case err == nil:
		why := c.crowded()
		if why != nil && len(g.forms) == 1 {
			return c.bound, why
		}
		if why != nil {
			g.forms = g.forms[:len(g.forms)-1]
			err = dropForm(w, f)
		}
	}
	return c.bound, err
}

// roomForFlags is the number of multiprocessors of a device that kernels of teams must leave free for flags, in
// addition to those that they leave free for all other kernels. These multiprocessors are additional because other GPUs
// wait for the flags.
const roomForFlags = 2 * roomForOthers

// crowded returns an error if, on some device, kernels that raise flags may find no free multiprocessor. Kernels of
// teams may occupy all multiprocessors and wait there for kernels that themselves wait for a flag. A single graph needs
// no flags, and its edges occupy no multiprocessor. A device also limits the number of kernels that run at once, and
// all of these may be kernels that wait.
func (c *capture) crowded() error {
	if c.flags == nil || len(c.flags.raises) == 0 {
		return nil
	}
	blocks, waits := map[*site]int{}, map[*site]int{}
	for s, n := range c.teams {
		blocks[s.dev.site] += n
		waits[s.dev.site]++
	}
	for s := range c.waits {
		if c.teams[s] == 0 {
			waits[s.dev.site]++
		}
	}
	for _, p := range c.sections {
		s := p.origin.dev.site
		switch {
		case blocks[s] > max(0, s.gpu.SMs-roomForFlags):
			return fmt.Errorf("%w: one graph for each GPU, because kernels that wait for other GPUs may occupy a GPU so that the kernels that raise their flags cannot start; record one graph over all GPUs",
				device.ErrUnsupported)
		case waits[s] > mostWaits:
			return fmt.Errorf("%w: one graph for each GPU, because %d streams of GPU %d wait for other GPUs and only %d are certain to run concurrently; record one graph over all GPUs, or put fewer ranks on a GPU",
				device.ErrUnsupported, waits[s], s.gpu.Device, mostWaits)
		}
	}
	return nil
}

// mostWaits is the largest number of streams of one device on which kernels may wait for flags. A device of compute
// capability 7.0 or higher runs 128 kernels concurrently, and kernels that do not wait need some of these 128 slots.
// The number of hardware queues is no limit (see TestQueuesReal): branches of one device's graph do not share a queue,
// and the work of streams is issued in an order in which no queue can cause a deadlock (see together).
const mostWaits = 96

// meets records in the capture that a team's kernel is launched on stream s.
func (c *capture) meets(l *launch, s *stream) {
	if c == nil {
		return
	}
	if c.teams == nil {
		c.teams = map[*stream]int{}
	}
	c.teams[s] = max(c.teams[s], mostBlocks(l.steps))
}

// mostBlocks returns the number of thread blocks of the largest kernel in steps, the steps of a member's launch. It
// does not count kernels of vendor libraries, because their sizes are not known.
func mostBlocks(steps []step) int {
	most := 0
	for _, st := range steps {
		switch st := st.(type) {
		case *kernelStep:
			most = max(most, st.l.Blocks())
		case *attendee:
			if st.meeting.call == nil {
				most = max(most, mostBlocks(st.before))
			}
		}
	}
	return most
}

// openOrigin creates the stream on which the graphs of a GPU are recorded and launched.
func (s *site) openOrigin() error {
	if s.origin != nil {
		return nil
	}
	for _, d := range s.w.devices {
		if d.site == s {
			var err error
			s.origin, err = d.newStream("graphs", 0)
			return err
		}
	}
	return nil // no rank uses this GPU
}

// beginCapture begins to capture each section on its origin stream.
func beginCapture(w *world, name string) error {
	c := &capture{totals: map[*counter]int64{}}
	sites := w.sites
	if name == formOne {
		sites = w.sites[:1]
	}
	for _, s := range sites {
		if err := s.openOrigin(); err != nil {
			return err
		}
		c.sections = append(c.sections, &section{origin: s.origin})
	}
	if len(c.sections) > 1 {
		var err error
		if c.flags, err = newFlags(w, c.sections); err != nil {
			return w.sites[0].origin.failed(errors.Join(err, c.flags.free()))
		}
	}
	for _, d := range w.devices {
		for _, cs := range d.counters {
			for i := range cs.elems {
				c.totals[&cs.elems[i]] = cs.elems[i].total
			}
		}
	}
	w.capture = c
	for i, p := range c.sections {
		if err := p.beginOn(c); err != nil {
			return p.origin.failed(errors.Join(err, c.abandon(i+1)))
		}
	}
	return nil
}

// abandon ends a failed capture. Of its sections, captures of the first begun ones had been started, the last of them
// perhaps only in part. abandon also destroys the nodes that the driver has recorded for the captured streams.
func (c *capture) abandon(begun int) error {
	w := c.sections[0].origin.dev.w
	c.sections = c.sections[:begun]
	if last := c.sections[begun-1]; !last.begun {
		c.sections = c.sections[:begun-1]
		if last.begin != 0 {
			site := last.origin.dev.site
			site.clock.Free(last.begin)
		}
	}
	raws, err := c.end()
	w.capture = nil
	for _, raw := range raws {
		err = errors.Join(err, destroyGraph(w, raw))
	}
	return errors.Join(err, c.flags.free())
}

func (p *section) beginOn(c *capture) error {
	drv, site := p.origin.dev.w.drv, p.origin.dev.site
	return p.origin.dev.bound(func() error {
		var err error
		if p.begin, err = site.clock.Event(false); err != nil {
			return err
		}
		if err := drv.BeginCapture(p.origin.h); err != nil {
			return err
		}
		p.begun = true
		if c.flags != nil {
			if err := c.flags.meet(p, c.flags.entries); err != nil {
				return err
			}
		}
		if err := p.origin.dev.w.wired.meet(p.origin, graphBegins); err != nil {
			return err
		}
		return drv.Record(p.begin, p.origin.h)
	})
}

// endCapture ends the captures and instantiates the graphs of the sections.
func (g *graph) endCapture(name string) (*form, error) {
	c := g.w.capture
	f, raws, err := g.finishCapture(name)
	for i, p := range c.sections {
		r := ready{origin: p.origin}
		if err == nil {
			err = p.origin.dev.bound(func() error { return r.make(raws[i]) })
		}
		f.sections = append(f.sections, r)
		err = errors.Join(err, destroyGraph(g.w, raws[i]))
	}
	return f, err
}

// finishCapture lets the origin streams wait for all captured streams, and ends the captures. It returns the captured
// graph of each section, which the caller must destroy.
func (g *graph) finishCapture(name string) (*form, []nvlib.Graph, error) {
	w := g.w
	c := w.capture
	for ctr, before := range c.totals {
		if by := ctr.total - before; by > 0 {
			g.raises[ctr] = by
			ctr.forget(len(ctr.log))
			ctr.total, ctr.base = before, before // captured work has not been executed
		}
	}
	for _, s := range w.sites {
		if s.report.Armed && !slices.Contains(g.faults, s.report) {
			g.faults = append(g.faults, s.report)
		}
	}
	f := &form{name: name, flags: c.flags, replay: c.replay}
	raws, err := c.end()
	w.capture = nil
	if err == nil && f.flags != nil {
		err = f.flags.board.Fill()
	}
	return f, raws, err
}

// destroyGraph destroys g unless it is null. No context need be current.
func destroyGraph(w *world, g nvlib.Graph) error {
	if g == 0 {
		return nil
	}
	return w.drv.DestroyGraph(g)
}

// end lets the origin streams wait for all captured streams, and ends the captures of all sections.
func (c *capture) end() (raws []nvlib.Graph, err error) {
	raws = make([]nvlib.Graph, len(c.sections))
	for i, p := range c.sections {
		joined := p.joinAll()
		if joined == nil {
			joined = p.origin.dev.bound(func() error { return p.origin.dev.w.wired.meet(p.origin, graphEnds) })
		}
		if c.flags != nil && joined == nil {
			joined = p.origin.dev.bound(func() error { return c.flags.meet(p, c.flags.exits) })
		}
		err = errors.Join(err, joined, p.origin.dev.bound(func() (err error) {
			raws[i], err = p.origin.dev.w.drv.EndCapture(p.origin.h)
			return err
		}))
		site := p.origin.dev.site
		site.clock.Free(p.begin)
		for _, s := range p.joined {
			s.dirty, s.led = false, false // the captured work was not executed, so the stream has no work
		}
	}
	return raws, err
}

func (p *section) joinAll() error {
	var errs []error
	for _, s := range p.joined {
		errs = append(errs, s.dev.bound(func() error {
			m, err := s.here()
			if err != nil {
				return err
			}
			defer m.Release()
			return s.dev.w.drv.WaitEvent(p.origin.h, m.ev)
		}))
	}
	return errors.Join(errs...)
}

// make instantiates the section's captured graph, so that it can be launched. The context is current.
func (r *ready) make(raw nvlib.Graph) (err error) {
	drv := r.origin.dev.w.drv
	if r.nodes, err = drv.GraphNodes(raw); err != nil {
		return err
	}
	if r.exec, err = drv.Instantiate(raw); err != nil {
		return err
	}
	r.origin.worked()
	return drv.UploadGraph(r.exec, r.origin.h)
}
