package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/device/cuda/timeline"
	"hocket.example/hocket/internal/nvlib"
)

// A graph is recorded in one section that covers all GPUs, or in one section for each GPU. The capture of a section
// begins on the section's origin stream, which exists for this purpose. Every other stream waits for the beginning of
// the capture when it first receives work. The wait makes the stream part of the capture. At the end of the capture,
// the origin stream waits for all captured streams. All work that a captured stream receives becomes nodes of the
// graph. Waits for events and counters become edges within a section, and flags between sections (see graph_flags.go).
// Waits for work that was issued before the capture are omitted, because the world was idle then.

// The following names are the forms of a graph. The driver takes a long time to launch one graph with edges between
// GPUs, and an edge between GPUs takes longer than a flag. Separate graphs for each GPU, on the other hand, require
// several launches, and kernels that wait on the devices.
const (
	formOne  = "one"  // one graph over all GPUs
	formEach = "each" // one graph for each GPU, joined by flags
)

// capture holds the state of a recording in progress.
type capture struct {
	sections []*section
	totals   map[*counter]int64 // by counter: its value before the recording
	flags    *flags             // the flags that connect the sections; nil if there is only one section
	bound    bool               // some recorded call involves several GPUs, so these must be in one section
	teams    map[*stream]int    // by stream: the number of thread blocks of its largest kernel of a team
	waits    map[*stream]bool   // streams that wait for flags
	replay   timeline.Replay
}

// section represents the part of a graph that is recorded from one origin stream.
type section struct {
	origin *stream
	begin  nvlib.Event
	begun  bool // whether the driver's capture on origin has begun
	joined []*stream
}

// of returns the section that contains the streams of the GPU s.
func (c *capture) of(s *site) *section {
	for _, p := range c.sections {
		if p.origin.dev.site == s {
			return p
		}
	}
	return c.sections[0]
}

// refuses returns an error if task t cannot be recorded in a graph.
func (c *capture) refuses(t *task) error {
	if c != nil && (t.kind == uploading || t.kind == downloading || t.kind == calling) {
		return fmt.Errorf("%w: a graph cannot contain an upload, a download or a call of a host function", device.ErrUnsupported)
	}
	return nil
}

// bind records that a call involves several GPUs. It returns an error if each GPU has a separate section.
func (c *capture) bind(what string) error {
	if c == nil {
		return nil
	}
	c.bound = true
	if len(c.sections) > 1 {
		return fmt.Errorf("%w: one graph for each GPU, because %s is one call for several GPUs; record one graph over all GPUs", device.ErrUnsupported, what)
	}
	return nil
}

// graphRun is one launch of a graph. Later work on a GPU waits for the end of the graph's section on this GPU. Each
// section ends only after all other sections have ended.
type graphRun struct{ ends []*mark }

// of returns the mark (the recorded position) that later work on the GPU s waits for.
func (g *graphRun) of(s *site) *mark {
	for _, m := range g.ends {
		if m.stream.dev.site == s {
			return m
		}
	}
	return g.ends[0]
}

// forgetLatest drops the most recent graph launch, so that later work no longer waits for it.
func forgetLatest(w *world) {
	if w.latest != nil {
		for _, m := range w.latest.ends {
			m.Release()
		}
	}
	w.latest = nil
}

// graph holds the recording of a program's work in one or more forms, each ready to launch.
type graph struct {
	w      *world
	forms  []*form
	use    int // index of the form that is launched
	raises map[*counter]int64
	faults []*signal.Report // memory in which the graph's kernels may report faults
	closed bool
}

// form holds a recorded graph in one of the forms.
type form struct {
	name     string
	sections []ready
	flags    *flags
	replay   timeline.Replay
}

// ready holds a recorded section of a graph that can be launched.
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

// follow makes the stream s part of the current capture. If there is no capture, follow makes s wait for the most
// recent launch of a graph. The context is current.
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

// comeBehind makes the origin stream o wait for all work that s, on the same GPU, has received. The context is current.
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
