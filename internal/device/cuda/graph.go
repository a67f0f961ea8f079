package cuda

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// A graph is recorded in one section over all GPUs, or in one section for each GPU. A
// section's capture begins on its origin, a stream for that. Each other stream
// joins the section by waiting for that beginning when it is first given work, and
// is joined at the end. Waits for events and counters become edges of the graph,
// as everything that a captured stream is given becomes a node; between sections
// they become flags (see join.go). Waits for what was before the capture fall
// away, since the world was at rest.

// The forms of a graph. The driver takes long to launch a graph with edges
// between GPUs, and such an edge longer than a flag; a graph for each GPU needs
// to be launched several times, and waits on the devices.
const (
	formOne  = "one"  // one graph over all GPUs
	formEach = "each" // one graph for each GPU, joined by flags
)

// capture is a recording under way.
type capture struct {
	sections []*section
	totals   map[*counter]int64 // before
	flags    *flags             // between sections; nil for one section
	bound    bool               // a call for several GPUs keeps them in one section
	teams    map[*stream]int    // the most blocks that a kernel of a team has, by stream
}

// section is what is recorded from one origin.
type section struct {
	origin *stream
	begin  nvlib.Event
	joined []*stream
}

// of returns the section that streams of a GPU belong to.
func (c *capture) of(s *site) *section {
	for _, p := range c.sections {
		if p.origin.dev.site == s {
			return p
		}
	}
	return c.sections[0]
}

// refuses returns why t cannot be recorded.
func (c *capture) refuses(t *task) error {
	if c != nil && (t.kind == uploading || t.kind == downloading || t.kind == calling) {
		return fmt.Errorf("%w: an upload, a download or a call within a graph", device.ErrUnsupported)
	}
	return nil
}

// bind notes that a call is for several GPUs, which is an error where each has a
// section of its own.
func (c *capture) bind(what string) error {
	if c == nil {
		return nil
	}
	c.bound = true
	if len(c.sections) > 1 {
		return fmt.Errorf("%w: a graph for each GPU, where %s is a call for several; record one graph over all", device.ErrUnsupported, what)
	}
	return nil
}

// graphRun is a launch: later work of every stream comes behind the end of the
// section on its GPU, which comes behind the ends of all others.
type graphRun struct{ ends []*mark }

// of returns the end that streams of a GPU come behind.
func (g *graphRun) of(s *site) *mark {
	for _, m := range g.ends {
		if m.stream.dev.site == s {
			return m
		}
	}
	return g.ends[0]
}

// forgetLatest lets go of the launch that later work must come behind.
func (w *world) forgetLatest() {
	if w.latest != nil {
		for _, m := range w.latest.ends {
			m.release()
		}
	}
	w.latest = nil
}

// graph is a recording, ready to launch in one of its forms.
type graph struct {
	w      *world
	forms  []*form
	use    int // the form that is launched
	raises map[*counter]int64
	faults []*faults // that its kernels may report to
	closed bool
}

// form is a recording in one form.
type form struct {
	name     string
	sections []ready
	flags    *flags
}

// ready is a section that can be launched.
type ready struct {
	origin *stream
	exec   nvlib.GraphExec
	nodes  int
}

func (f *form) originOf(s *site) *stream {
	for i := range f.sections {
		if f.sections[i].origin.dev.site == s {
			return f.sections[i].origin
		}
	}
	return f.sections[0].origin
}

// follow has s join the capture under way, or come behind the graph launched
// last. The context is current.
func (s *stream) follow() error {
	w := s.dev.w
	if c := w.capture; c != nil {
		p := c.of(s.dev.site)
		if s.forked == c || s == p.origin {
			return nil
		}
		s.forked = c
		p.joined = append(p.joined, s)
		return w.drv.WaitEvent(s.h, p.begin)
	}
	if g := w.latest; g != nil && s.behind != g {
		s.behind = g
		return s.waitFor(g.of(s.dev.site))
	}
	return nil
}

// Capture records what issue gives to streams, once for each form.
func (w *world) Capture(issue func() error) (device.Graph, error) {
	defer w.alone()()
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
	g := &graph{w: w, raises: map[*counter]int64{}}
	for _, name := range w.formsWanted() {
		bound, err := g.record(name, issue)
		if err != nil {
			// Streams hold parts of what was not recorded: nothing fits any more.
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

// formsWanted lists the forms that graphs are recorded in.
func (w *world) formsWanted() []string {
	switch {
	case len(w.sites) == 1:
		return []string{formOne}
	case w.m.opts.Graphs != "":
		return []string{w.m.opts.Graphs}
	}
	return []string{formOne, formEach}
}

// record records one form more, and reports whether there can be no other. The
// caller holds mu, which is free while issue runs.
func (g *graph) record(name string, issue func() error) (bound bool, err error) {
	w := g.w
	if err := w.beginCapture(name); err != nil {
		return false, w.sites[0].origin.failed(err)
	}
	issued := w.unlocked(issue)
	c := w.capture
	f, err := g.endCapture(name)
	g.forms = append(g.forms, f)
	switch {
	case issued != nil:
		return c.bound, issued
	case err == nil && len(w.blocked()) > 0:
		err = fmt.Errorf("the graph would never end: %w", &device.Deadlock{Blocked: w.blocked()})
	case err == nil && c.crowded():
		if len(g.forms) == 1 {
			return c.bound, fmt.Errorf("%w: a graph for each GPU, with kernels that wait for those of other GPUs beside flags, which then may find no room on a device; record one graph over all",
				device.ErrUnsupported)
		}
		g.forms = g.forms[:len(g.forms)-1]
		err = w.dropForm(f)
	}
	return c.bound, err
}

// roomForFlags is how many multiprocessors of a device kernels of teams must leave
// to flags, beyond what they leave to all others anyway: flags are in a hurry.
const roomForFlags = 2 * roomForOthers

// crowded reports whether flags may find no multiprocessor with room for their
// kernels: those of teams may take all of a device, and wait there for kernels that
// wait for a flag. Edges of one graph need no room.
func (c *capture) crowded() bool {
	if c.flags == nil || len(c.flags.raises) == 0 {
		return false
	}
	blocks := map[*site]int{}
	for s, n := range c.teams {
		blocks[s.dev.site] += n
	}
	for s, n := range blocks {
		if n > s.gpu.sms-roomForFlags {
			return true
		}
	}
	return false
}

// meets notes that a kernel of a team is launched.
func (c *capture) meets(l *launch, s *stream) {
	if c == nil {
		return
	}
	if c.teams == nil {
		c.teams = map[*stream]int{}
	}
	for _, st := range l.steps {
		if k, ok := st.(*kernelStep); ok {
			c.teams[s] = max(c.teams[s], k.l.Blocks())
		}
	}
}

// unlocked runs f without the world's mutex, and has it again however f ends. The
// gate, which the caller has, f has too.
func (w *world) unlocked(f func() error) error {
	gated := w.gated
	w.gated = false
	w.issuing.Add(1)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.issuing.Add(-1)
		w.gated = gated
	}()
	return f()
}

// openOrigin makes the stream of a GPU that graphs are recorded from and
// launched on.
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
	return nil // no rank is here
}

// beginCapture begins on the origins.
func (w *world) beginCapture(name string) error {
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
		if c.flags, err = w.newFlags(c.sections); err != nil {
			return errors.Join(err, c.flags.free())
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
			c.sections = c.sections[:i]
			_, errs := c.end()
			w.capture = nil
			return errors.Join(err, errs, c.flags.free())
		}
	}
	return nil
}

func (p *section) beginOn(c *capture) error {
	drv, site := p.origin.dev.w.drv, p.origin.dev.site
	return p.origin.dev.bound(func() error {
		var err error
		if p.begin, err = site.newEvent(false); err != nil {
			return err
		}
		if err := drv.BeginCapture(p.origin.h); err != nil {
			return err
		}
		if c.flags != nil {
			if err := c.flags.meet(p, c.flags.entries); err != nil {
				return err
			}
		}
		return drv.Record(p.begin, p.origin.h)
	})
}

// endCapture joins all streams, ends the capture and makes the graphs ready.
func (g *graph) endCapture(name string) (*form, error) {
	w := g.w
	c := w.capture
	for ctr, before := range c.totals {
		if by := ctr.total - before; by > 0 {
			g.raises[ctr] = by
			ctr.forget(len(ctr.log))
			ctr.total, ctr.base = before, before // nothing ran
		}
	}
	for _, s := range w.sites {
		if s.faults.armed && !slices.Contains(g.faults, &s.faults) {
			g.faults = append(g.faults, &s.faults)
		}
	}
	f := &form{name: name, flags: c.flags}
	raws, err := c.end()
	w.capture = nil
	if err == nil && f.flags != nil {
		err = f.flags.fill()
	}
	for i, p := range c.sections {
		err = errors.Join(err, p.origin.dev.bound(func() error {
			r := ready{origin: p.origin}
			defer func() { f.sections = append(f.sections, r) }()
			if err != nil || raws[i] == 0 {
				return w.destroy(raws[i])
			}
			return errors.Join(r.make(raws[i]), w.destroy(raws[i]))
		}))
	}
	return f, err
}

func (w *world) destroy(g nvlib.Graph) error {
	if g == 0 {
		return nil
	}
	return w.drv.DestroyGraph(g)
}

// end joins all streams to their origins and ends all captures.
func (c *capture) end() (raws []nvlib.Graph, err error) {
	raws = make([]nvlib.Graph, len(c.sections))
	for i, p := range c.sections {
		joined := p.joinAll()
		if c.flags != nil && joined == nil {
			joined = p.origin.dev.bound(func() error { return c.flags.meet(p, c.flags.exits) })
		}
		err = errors.Join(err, joined, p.origin.dev.bound(func() (err error) {
			raws[i], err = p.origin.dev.w.drv.EndCapture(p.origin.h)
			return err
		}))
		site := p.origin.dev.site
		site.events = append(site.events, p.begin)
		for _, s := range p.joined {
			s.dirty = false // it was given nothing to run
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
			defer m.release()
			return s.dev.w.drv.WaitEvent(p.origin.h, m.ev)
		}))
	}
	return errors.Join(errs...)
}

// make makes the section ready to launch. The context is current.
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

// Choices names the forms that the graph was recorded in.
func (g *graph) Choices() []string {
	var names []string
	for _, f := range g.forms {
		names = append(names, f.name)
	}
	return names
}

// Choose has later launches use the form of that index.
func (g *graph) Choose(i int) {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.use = i
}

// Keep chooses a form and frees the others.
func (g *graph) Keep(i int) error {
	defer g.w.alone()()
	var errs []error
	for k, f := range g.forms {
		if k != i {
			errs = append(errs, g.w.dropForm(f))
		}
	}
	g.forms, g.use = g.forms[i:i+1:i+1], 0
	return errors.Join(errs...)
}

// Launch runs the graph behind all that was issued.
func (g *graph) Launch(ctx context.Context) error {
	w := g.w
	if err := ctx.Err(); err != nil {
		return err
	}
	if w.issuing.Load() == 0 {
		return w.Batch(func() error { return g.enqueue() })
	}
	return g.enqueue()
}

// enqueue is Launch within a batch: the graph's sections wait for each other.
func (g *graph) enqueue() error {
	w := g.w
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
	f := g.forms[g.use]
	for _, s := range w.streams {
		if err := f.behind(s); err != nil {
			return s.failed(err)
		}
	}
	for _, armed := range g.faults {
		armed.armed = true
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

// behind has the origin of s's GPU wait for all that s was given. What other GPUs
// were given the sections see to when they meet at their beginnings.
func (f *form) behind(s *stream) error {
	origin := f.originOf(s.dev.site)
	if s == origin || !s.dirty {
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
	return origin.dev.bound(func() error { return origin.waitFor(m) })
}

// launch launches the sections, and marks their ends for what comes later. They
// begin all or, when a call fails and the world ends, wait in vain until its end
// tells them to stop.
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
	w.forgetLatest()
	w.latest = next
	return nil
}

func (g *graph) Close() error {
	defer g.w.alone()()
	g.w.recorded = slices.DeleteFunc(g.w.recorded, func(o *graph) bool { return o == g })
	return g.drop()
}

// drop frees the graph, once.
func (g *graph) drop() error {
	if g.closed {
		return nil
	}
	g.closed = true
	var errs []error
	for _, f := range g.forms {
		errs = append(errs, g.w.dropForm(f))
	}
	return errors.Join(errs...)
}

func (w *world) dropForm(f *form) error {
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
	_ device.Capturer = (*world)(nil)
	_ device.Choices  = (*graph)(nil)
)
