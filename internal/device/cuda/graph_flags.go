package cuda

import (
	"errors"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// flags holds the flags that connect the sections of a graph. A flag is a word in the memory of the GPU that waits. A
// small kernel on the GPU that is waited for raises the flag. A small kernel on the waiting stream waits for the flag
// and lowers it again, so that replays of the graph need no sequence numbers. A waiting kernel occupies at most one
// warp and few registers. Every wait has a time limit, and ends when the world ends.
//
// A waiting kernel never prevents the work that it waits for from running. A device runs the branches of a graph
// concurrently, up to a fixed number of kernels (see mostWaits), which does not depend on the number of its hardware
// queues. Kernels of teams leave multiprocessors free for kernels that raise and await flags (see crowded).
type flags struct {
	w        *world
	sections []*section
	board    signal.Board
	raises   map[*mark]*signal.List
	entries  []signal.Meeting // flags that synchronize the sections at their beginnings and ends
	exits    []signal.Meeting
	loads    []*nvlib.Launch
	freed    bool
}

// newFlags creates the flags through which the sections wait for each other at their beginnings and ends.
func newFlags(w *world, sections []*section) (*flags, error) {
	f := &flags{w: w, sections: sections, raises: map[*mark]*signal.List{}}
	if len(sections) > kernels.JoinMost {
		return f, fmt.Errorf("%w: one graph for each of %d GPUs; at most %d GPUs are supported", device.ErrUnsupported, len(sections), kernels.JoinMost)
	}
	if !w.whole() {
		return f, fmt.Errorf("%w: one graph for each GPU, because the graphs synchronize by flags in peer memory, which these GPUs cannot access: %s; record one graph over all GPUs",
			device.ErrUnsupported, strings.Join(w.Detours(), "; "))
	}
	if err := openAbort(w); err != nil {
		return f, err
	}
	var gpus []*signal.GPU
	for _, p := range sections {
		s := p.origin.dev.site
		if err := s.bound(s.report.Open); err != nil {
			return f, err
		}
		gpus = append(gpus, s.signals)
	}
	var err error
	if f.entries, err = f.board.Meet(gpus); err == nil {
		f.exits, err = f.board.Meet(gpus)
	}
	return f, err
}

// issue launches on s the kernel that raises flags and waits for a flag, as j specifies. The context is current.
func (f *flags) issue(s *stream, j kernels.Join) error {
	site := s.dev.site
	st, err := f.w.m.opts.Kernels.Join(site.target(), j)
	if err != nil {
		return err
	}
	l, err := site.gpu.Load(site.w.drv, st)
	if err != nil {
		return err
	}
	f.loads = append(f.loads, l)
	s.worked()
	return f.w.drv.Launch(l, s.h)
}

// await returns the kernels.Join that makes stream s wait for flag.
func (f *flags) await(s *stream, what string, flag nvlib.Ptr, count int64) (kernels.Join, error) {
	j := kernels.Join{Flag: flag, Count: count, Abort: f.w.abort, Timeout: f.w.m.opts.teamTimeout()}
	l := &launch{dev: s.dev, name: what, stream: s.name, id: s.open.Innermost()}
	var err error
	j.Fault, j.Tag, err = l.Report()
	return j, err
}

// meet makes the origin stream of a section wait for all other sections. The context is current.
func (f *flags) meet(p *section, at []signal.Meeting) error {
	for i, o := range f.sections {
		if o != p {
			continue
		}
		j, err := f.await(p.origin, "the meeting of a graph's sections", at[i].Flag, int64(len(at)-1))
		if err != nil {
			return err
		}
		j.List = at[i].List.At
		return f.issue(p.origin, j)
	}
	return nil
}

// waitAcross makes later work on s wait for the mark m (a position in a stream), which belongs to another section. The
// caller's context is current before and after the call.
func (f *flags) waitAcross(s *stream, m *mark) error {
	flag, err := f.board.Flag(s.dev.site.signals)
	if err != nil {
		return err
	}
	l, err := f.listFor(m)
	if err = errors.Join(err, s.dev.rebind()); err != nil {
		return err
	}
	l.Flags = append(l.Flags, flag)
	s.dev.w.capture.awaits(s)
	j, err := f.await(s, "a wait for another GPU", flag, 1)
	if err != nil {
		return err
	}
	return f.issue(s, j)
}

// awaits records in the capture that s contains kernels that wait for flags.
func (c *capture) awaits(s *stream) {
	if c.waits == nil {
		c.waits = map[*stream]bool{}
	}
	c.waits[s] = true
}

// listFor returns a list of flags, with room for another flag, that are raised when the mark m is reached. A kernel
// raises these flags. The kernel runs on a separate stream, so that it does not delay m's own stream.
func (f *flags) listFor(m *mark) (*signal.List, error) {
	if l := f.raises[m]; l != nil && !l.Full() {
		return l, nil
	}
	o := m.stream
	var err error
	if o.side == nil {
		if o.side, err = o.dev.newStream(o.name+", flags", 0); err != nil {
			return nil, err
		}
	}
	l, err := f.board.List(o.dev.site.signals)
	if err != nil {
		return nil, err
	}
	f.raises[m] = l
	return l, o.dev.bound(func() error {
		if err := o.side.follow(); err != nil {
			return err
		}
		if err := f.w.drv.WaitEvent(o.side.h, m.ev); err != nil {
			return err
		}
		return f.issue(o.side, kernels.Join{List: l.At})
	})
}

// launched records that waiting kernels of a graph now run and may report faults.
func (f *flags) launched() {
	for _, p := range f.sections {
		p.origin.dev.site.report.Armed = true
	}
}

// free frees the flags. When flags are freed, no work that uses them may be running.
func (f *flags) free() error {
	if f == nil || f.freed {
		return nil
	}
	f.freed = true
	for _, l := range f.loads {
		l.Free()
	}
	if f.w.cause == errClosed {
		return nil // the world's heaps free it
	}
	return f.w.excuse(f.board.Free())
}
