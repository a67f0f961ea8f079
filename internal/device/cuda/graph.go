package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/device/cuda/timeline"
	"hocket.example/hocket/internal/nvlib"
)

// A graph is recorded in one section over all GPUs, or in one section for each GPU. The capture of a section begins on
// its origin, a stream made for this purpose. Each other stream joins the section, when it first receives work, by
// waiting for that beginning, and is joined again at the end. Whatever a captured stream receives becomes a node.
// Waits for events and counters become edges within a section, and flags between sections (see graph_flags.go). Waits
// for work before the capture are dropped, because the world was idle.

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
	waits    map[*stream]bool   // streams that wait for flags
	replay   timeline.Replay
}

// section is the part of a graph that is recorded from one origin.
type section struct {
	origin *stream
	begin  nvlib.Event
	begun  bool // the driver's capture on origin
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

// bind notes that a call involves several GPUs. It is an error if each GPU has a section of its own.
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

// graphRun is a launch of a graph. Later work on a GPU waits for the end of the GPU's section, which waits for the
// ends of all other sections.
type graphRun struct{ ends []*mark }

// of returns the end that later work on a GPU waits for.
func (g *graphRun) of(s *site) *mark {
	for _, m := range g.ends {
		if m.stream.dev.site == s {
			return m
		}
	}
	return g.ends[0]
}

// forgetLatest releases the launch that later work had to wait for.
func forgetLatest(w *world) {
	if w.latest != nil {
		for _, m := range w.latest.ends {
			m.Release()
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
	faults []*signal.Report // that its kernels may report to
	closed bool
}

// form is a recording in one form.
type form struct {
	name     string
	sections []ready
	flags    *flags
	replay   timeline.Replay
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

// follow makes s join the capture under way, or wait for the graph launched last. The context is current.
func (s *stream) follow() error {
	w := s.dev.w
	if c := w.capture; c != nil {
		p := c.of(s.dev.site)
		if s.forked == c || s == p.origin {
			return nil
		}
		if err := w.drv.WaitEvent(s.h, p.begin); err != nil {
			return err
		}
		s.forked = c
		p.joined = append(p.joined, s)
		s.led = false
		return nil
	}
	if g := w.latest; g != nil && s.behind != g {
		s.behind = g
		return s.waitFor(g.of(s.dev.site))
	}
	return nil
}

// comeBehind has an origin wait for all that a stream of its GPU was given. The context is current.
func (o *stream) comeBehind(s *stream) error {
	if s == o || !s.dirty || s.mark != nil && s.mark.pos == s.pos && o.isBehind(s.mark) {
		return nil
	}
	if err := s.follow(); err != nil {
		return err
	}
	m, err := s.here()
	if err != nil {
		return err
	}
	defer m.Release()
	return o.waitFor(m)
}
