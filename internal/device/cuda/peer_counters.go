package cuda

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// In a world of several processes, a counter is a word in the memory of the device that waits for it. A signal is a
// small kernel that adds to the word after the earlier work of its stream. A wait is a small kernel that ends once the
// word is large enough. If another process issues the signal, this wait may be issued before the signal, unlike other
// waits. All processes issue work in the order of the same plan. In a hardware queue, a signal therefore never follows
// a wait that depends on it. All waits have a time limit, and end when the world ends.
//
// A graph is recorded while all processes are idle. Launches of the graph begin together in all processes, and end
// together. Each process then resets its words to 0, so that every launch waits for the same values.

// wired holds the state of a world's counters if these are words in device memory.
type wired struct {
	w     *world
	used  bool                    // set if some counters of the world are words
	flags *counters               // this process's words for the kernels in meets
	raise map[*site]*nvlib.Launch // by GPU: the kernel that adds to a word
	await map[*site]*nvlib.Launch // by GPU: the kernel that waits for a word
	meets [2]*nvlib.Launch        // kernels that synchronize with the other processes at the beginning and at the end of a graph; nil if not loaded
	base  map[*counters][]int64   // by counters: their words' values when a graph was first recorded
	fixed bool                    // set once a graph was recorded; words then count from the beginning of each launch
}

// wired reports whether the counters c are words of device memory.
func (c *counters) wired() bool { return c.words != nil }

// layout returns where the words of counters are if the first word is at the given address. In a hosted world, each
// counter has a separate word for each GPU.
func (x *wired) layout(at nvlib.Ptr) signal.Words {
	if x.w.hosted {
		return signal.Words{Addr: at, Width: len(x.w.all)}
	}
	return signal.Words{Addr: at, Width: 1}
}

// at returns where the words of c are.
func (c *counters) at() signal.Words { return c.dev.w.wired.layout(c.words.addr) }

// wire allocates words in device memory for the counters c. The caller holds the world exclusively.
func (x *wired) wire(c *counters) error {
	m, err := c.dev.alloc(x.layout(0).Bytes(max(len(c.elems), 1)), device.Shared)
	if err != nil {
		return err
	}
	c.words = m
	x.used = x.used || len(c.elems) > 0
	return nil
}

// open sets the words on a device of this process to 0, and loads the kernels that add to words and wait for them. The
// caller holds the world exclusively.
func (x *wired) open(c *counters) error {
	return c.dev.bound(func() error {
		return errors.Join(signal.Fill(x.w.drv, c.words.addr, 0, c.words.bytes/4), x.openSite(c.dev.site))
	})
}

// openSite loads to a GPU the kernels that add to words and wait for them. The context is current.
func (x *wired) openSite(s *site) error {
	if x.raise[s] != nil {
		return nil
	}
	if x.raise == nil {
		x.raise, x.await = map[*site]*nvlib.Launch{}, map[*site]*nvlib.Launch{}
	}
	if err := errors.Join(openAbort(s.w), s.report.Open()); err != nil {
		return err
	}
	lib := s.w.m.opts.Kernels
	var raise, await kernels.Step
	err := s.w.guard.Aside(func() (err error) {
		if raise, err = lib.Raise(s.target()); err == nil {
			await, err = lib.Await(s.target())
		}
		return err
	})
	if err != nil {
		return err
	}
	if x.raise[s], err = s.gpu.Load(s.w.drv, raise); err == nil {
		x.await[s], err = s.gpu.Load(s.w.drv, await)
	}
	return err
}

// raiseWord adds to a word after all work that the stream s has received. The context is current.
func (x *wired) raiseWord(s *stream, c *counters, elem int, by int64) error {
	l := x.raise[s.dev.site]
	for i, v := range []uint64{uint64(c.at().By(elem, s.dev.site.index)), uint64(by)} {
		l.SetWord(i, v)
	}
	s.worked()
	return s.dev.w.drv.Launch(l, s.h)
}

// awaitWord makes later work on the stream s wait until a word has at least the value least. The context is current.
func (x *wired) awaitWord(s *stream, c *counters, elem int, least int64) error {
	w := x.w
	if w.capture != nil {
		least -= x.base[c][elem]
	} else if x.fixed {
		return fmt.Errorf("%w: after a graph was recorded, a stream cannot wait outside graphs for counter %d, which other processes raise",
			device.ErrUnsupported, elem)
	}
	if least <= 0 {
		return nil
	}
	if c.waits == nil {
		c.waits = make([]*waitedFor, len(c.elems))
	}
	if c.waits[elem] == nil {
		l := &launch{dev: c.dev, name: fmt.Sprintf("a wait for counter %d", elem)}
		_, tag, err := l.Report()
		if err != nil {
			return err
		}
		c.waits[elem] = &waitedFor{l, tag}
	}
	waited, site := c.waits[elem], s.dev.site
	waited.stream, waited.id = s.name, s.open.Innermost()
	site.report.Armed = true
	if w.capture != nil {
		w.capture.awaits(s)
	}
	l := x.await[site]
	for i, v := range []uint64{uint64(c.at().At(elem)), uint64(least), uint64(w.abort),
		uint64(w.m.opts.teamTimeout().Nanoseconds()),
		uint64(site.report.At()), waited.tag, uint64(c.at().Width)} {
		l.SetWord(i, v)
	}
	s.worked()
	return w.drv.Launch(l, s.h)
}

// waitedFor is the launch to which the fault report of a wait refers.
type waitedFor struct {
	*launch
	tag uint64
}

// restTogether waits until all processes are ready to record a graph, and sets this process's words to 0. The caller
// holds the world exclusively, and the world is idle.
func (x *wired) restTogether() error {
	w := x.w
	if w.peers == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(w.peers.Ctx, w.peers.StallTimeout())
	defer cancel()
	if _, err := w.peers.Agree(ctx, w.peers.Name+": recording a graph", []byte("at rest")); err != nil {
		return err
	}
	if !x.used || x.fixed { // words are 0 between graphs
		return nil
	}
	if x.meets[0] == nil {
		if err := x.openMeets(); err != nil {
			return err
		}
		// The words are 0 now. Without this agreement, another process could raise a word before it is set to 0, and
		// the signal would be lost.
		if _, err := w.peers.Agree(ctx, w.peers.Name+": graphs can meet", nil); err != nil {
			return err
		}
	}
	x.base, x.fixed = map[*counters][]int64{}, true
	for _, c := range x.ownWords() {
		values, err := c.read()
		if err != nil {
			return err
		}
		x.base[c] = values
		err = c.dev.bound(func() error { return signal.Fill(w.drv, c.words.addr, 0, c.words.bytes/4) })
		if err != nil {
			return err
		}
	}
	return nil
}

// ownWords returns the counters with words on devices of this process.
func (x *wired) ownWords() (list []*counters) {
	for _, d := range x.w.own {
		for _, c := range d.counters {
			if c.words != nil && !c.released {
				list = append(list, c)
			}
		}
	}
	return list
}

// openMeets loads the kernels by which the graphs of all processes wait for each other. Each kernel raises the words of
// all other processes, waits for its own words, and lowers them again.
func (x *wired) openMeets() error {
	w, n := x.w, x.w.peers.Processes()
	if n > kernels.JoinMost+1 {
		return fmt.Errorf("%w: graphs of %d processes that wait for each other; at most %d processes are supported", device.ErrUnsupported, n,
			kernels.JoinMost+1)
	}
	var flags []*counters // the words of each process; all processes allocate them in the same order
	for p := range n {
		c := &counters{dev: firstOf(w, p), elems: make([]counter, len(x.meets))}
		if err := x.wire(c); err != nil {
			return err
		}
		flags = append(flags, c)
	}
	x.flags = flags[w.peers.Process()]
	if err := x.open(x.flags); err != nil {
		return err
	}
	me := w.first()
	for place := range x.meets {
		list := []uint64{uint64(n - 1)}
		for p, c := range flags {
			if p != w.peers.Process() {
				list = append(list, uint64(c.at().By(place, me.site.index)))
			}
		}
		at, err := me.alloc(int64(8*len(list)), device.Private)
		if err != nil {
			return err
		}
		for i, v := range list {
			err = errors.Join(err, me.bound(func() error { return signal.SetWord(w.drv, at.addr+nvlib.Ptr(8*i), v) }))
		}
		if err != nil {
			return err
		}
		l := &launch{dev: me, name: "the meeting of all processes' graphs", id: -1}
		j := kernels.Join{List: at.addr, Flag: x.flags.at().At(place), Count: int64(n - 1), Abort: w.abort,
			Timeout: w.m.opts.teamTimeout()}
		if w.hosted {
			j.Words = int64(x.flags.at().Width)
		}
		if x.meets[place], err = me.prepareJoin(l, j); err != nil {
			return err
		}
	}
	return nil
}

// prepareJoin loads the kernel of the kernels.Join j. The kernel's fault reports refer to the launch l.
func (d *dev) prepareJoin(l *launch, j kernels.Join) (ready *nvlib.Launch, err error) {
	err = d.bound(func() error {
		if j.Fault, j.Tag, err = l.Report(); err != nil {
			return err
		}
		st, err := d.w.m.opts.Kernels.Join(d.site.target(), j)
		if err == nil {
			ready, err = d.site.gpu.Load(d.site.w.drv, st)
		}
		return err
	})
	return ready, err
}

// The following constants are the positions in a graph at which the graphs of several processes wait for each other.
const (
	graphBegins = iota
	graphEnds
)

// meet makes the origin stream of a graph wait until the graphs of all processes have reached the given position. At
// the end of the graph, meet also sets the words of this process's counters to 0. In hosted worlds, the kernels do not
// lower the words by which graphs meet, so each position sets those of the other position to 0. The context is current.
func (x *wired) meet(origin *stream, place int) error {
	w, l := x.w, x.meets[place]
	if l == nil || origin.dev.site != w.sites[0] {
		return nil
	}
	origin.worked()
	origin.dev.site.report.Armed = true
	if w.hosted { // the other processes raise these words again only after this meeting
		other := x.flags.at()
		if err := w.drv.Fill32(other.At(1-place), 0, other.Bytes(1)/4, origin.h); err != nil {
			return err
		}
	}
	if err := w.drv.Launch(l, origin.h); err != nil {
		return err
	}
	if place == graphBegins {
		return nil
	}
	for _, c := range x.ownWords() {
		if err := w.drv.Fill32(c.words.addr, 0, c.words.bytes/4, origin.h); err != nil {
			return err
		}
	}
	return nil
}

// firstOf returns the device of the first rank of a process.
func firstOf(w *world, process int) *dev {
	for _, d := range w.devices {
		if w.peers.Owner(d.rank) == process {
			return d
		}
	}
	return w.devices[0]
}

// read returns the current values of the counters. The device must be idle.
func (c *counters) read() (values []int64, err error) {
	err = c.dev.bound(func() error {
		b, err := signal.Read(c.dev.w.drv, c.dev.site.heaps[device.Pinned], c.words.addr, c.words.bytes)
		if err == nil {
			values = c.at().Values(b, len(c.elems))
		}
		return err
	})
	return values, err
}
