package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// flags are what joins the sections of a graph: words in the memory of the GPU that
// waits, raised by a small kernel of one that has come so far and taken by a
// small kernel in the stream that waits. A wait takes what was raised for it, so
// that replays need no numbers. Kernels that wait keep at most one warp busy, on
// a few registers. All waits are bounded, and end when the world does.
//
// A wait never keeps what it waits for from running: the branches of a graph run side by
// side, as many as a device runs kernels (see mostWaits), whatever hardware queues it
// has; and kernels of teams leave a multiprocessor free (see crowded).
type flags struct {
	w        *world
	sections []*section
	chunks   []*chunk
	raises   map[*mark]*list
	lists    []*list
	entries  []rendezvous // where the sections begin, and where they end
	exits    []rendezvous
	loads    []*nvlib.Launch
	freed    bool
}

// list is flags that a kernel raises, in its GPU's memory.
type list struct {
	site  *site
	at    nvlib.Ptr
	flags []nvlib.Ptr
}

// rendezvous is a place in which all sections wait for each other, as one of them sees
// it.
type rendezvous struct {
	flag nvlib.Ptr
	list *list
}

// chunk is memory of a GPU that flags or lists are cut from, zeros at first.
type chunk struct {
	mem  *memory
	used int64
}

const (
	flagBytes  = 32 // a sector of its own
	listBytes  = 8 * (1 + kernels.JoinMost)
	chunkFlags = 64 << 10
)

// newFlags makes the meetings of the sections.
func newFlags(w *world, sections []*section) (*flags, error) {
	f := &flags{w: w, sections: sections, raises: map[*mark]*list{}}
	if len(sections) > kernels.JoinMost {
		return f, fmt.Errorf("%w: a graph for each of %d GPUs; at most %d", device.ErrUnsupported, len(sections), kernels.JoinMost)
	}
	if !w.whole() {
		return f, fmt.Errorf("%w: a graph for each GPU, which flags join, on GPUs that are apart: %s; record one graph over all",
			device.ErrUnsupported, strings.Join(w.Detours(), "; "))
	}
	if err := openAbort(w); err != nil {
		return f, err
	}
	for _, p := range sections {
		if err := p.origin.dev.bound(p.origin.dev.site.faults.open); err != nil {
			return f, err
		}
	}
	for _, ms := range []*[]rendezvous{&f.entries, &f.exits} {
		for _, p := range sections {
			flag, err := f.cut(p.origin.dev, flagBytes)
			if err != nil {
				return f, err
			}
			l, err := f.newList(p.origin.dev)
			if err != nil {
				return f, err
			}
			*ms = append(*ms, rendezvous{flag, l})
		}
		for i := range *ms {
			for j := range *ms {
				if i != j {
					(*ms)[i].list.flags = append((*ms)[i].list.flags, (*ms)[j].flag)
				}
			}
		}
	}
	return f, nil
}

// cut takes some bytes of memory that peers may write.
func (f *flags) cut(d *dev, bytes int64) (nvlib.Ptr, error) {
	for _, c := range f.chunks {
		if c.mem.dev.site == d.site && c.used+bytes <= c.mem.bytes {
			c.used += bytes
			return c.mem.addr + nvlib.Ptr(c.used-bytes), nil
		}
	}
	mem, err := d.alloc(chunkFlags, device.Shared)
	if err != nil {
		return 0, err
	}
	f.chunks = append(f.chunks, &chunk{mem: mem, used: bytes})
	return mem.addr, nil
}

func (f *flags) newList(d *dev) (*list, error) {
	at, err := f.cut(d, listBytes)
	if err != nil {
		return nil, err
	}
	l := &list{site: d.site, at: at}
	f.lists = append(f.lists, l)
	return l, nil
}

// issue gives s a join. The context is current.
func (f *flags) issue(s *stream, j kernels.Join) error {
	site := s.dev.site
	st, err := f.w.m.opts.Kernels.Join(site.target(), j)
	if err != nil {
		return err
	}
	l, err := site.load(st)
	if err != nil {
		return err
	}
	f.loads = append(f.loads, l)
	s.worked()
	return f.w.drv.Launch(l, s.h)
}

// await is the half of a join that waits for flag, in s's order.
func (f *flags) await(s *stream, what string, flag nvlib.Ptr, count int64) (kernels.Join, error) {
	j := kernels.Join{Flag: flag, Count: count, Abort: f.w.abort, Timeout: f.w.m.opts.teamTimeout()}
	l := &launch{dev: s.dev, name: what, stream: s.name, id: s.open.Innermost()}
	var err error
	j.Fault, j.Tag, err = s.dev.site.faults.reserve(l)
	return j, err
}

// meet has a section wait for all others on its origin. The context is current.
func (f *flags) meet(p *section, at []rendezvous) error {
	for i, o := range f.sections {
		if o != p {
			continue
		}
		j, err := f.await(p.origin, "the meeting of a graph's sections", at[i].flag, int64(len(at)-1))
		if err != nil {
			return err
		}
		j.List = at[i].list.at
		return f.issue(p.origin, j)
	}
	return nil
}

// waitAcross makes s's later work wait for m, which another section holds. The
// context is current, and is again.
func (f *flags) waitAcross(s *stream, m *mark) error {
	flag, err := f.cut(s.dev, flagBytes)
	if err != nil {
		return err
	}
	l, err := f.listFor(m)
	if err = errors.Join(err, s.dev.rebind()); err != nil {
		return err
	}
	l.flags = append(l.flags, flag)
	s.dev.w.capture.awaits(s)
	j, err := f.await(s, "a wait for another GPU", flag, 1)
	if err != nil {
		return err
	}
	return f.issue(s, j)
}

// awaits notes that s waits for flags.
func (c *capture) awaits(s *stream) {
	if c.waits == nil {
		c.waits = map[*stream]bool{}
	}
	c.waits[s] = true
}

// listFor returns a list, with room, of flags that are raised when m is reached:
// by a stream beside m's, so that its own goes on.
func (f *flags) listFor(m *mark) (*list, error) {
	if l := f.raises[m]; l != nil && len(l.flags) < kernels.JoinMost {
		return l, nil
	}
	o := m.stream
	var err error
	if o.side == nil {
		if o.side, err = o.dev.newStream(o.name+", flags", 0); err != nil {
			return nil, err
		}
	}
	l, err := f.newList(o.dev)
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
		return f.issue(o.side, kernels.Join{List: l.at})
	})
}

// fill zeroes the flags and writes the lists, which are complete. Nothing of the
// graph runs yet.
func (f *flags) fill() error {
	var errs []error
	for _, c := range f.chunks {
		errs = append(errs, c.mem.dev.bound(func() error { return f.fillChunk(c) }))
	}
	return errors.Join(errs...)
}

func (f *flags) fillChunk(c *chunk) error {
	drv, pinned := f.w.drv, c.mem.dev.site.heaps[device.Pinned]
	buf, err := pinned.Alloc(c.mem.bytes)
	if err != nil {
		return err
	}
	image := cabi.Bytes(uintptr(buf), int(c.mem.bytes))
	clear(image)
	for _, l := range f.lists {
		if l.at < c.mem.addr || l.at >= c.mem.addr+nvlib.Ptr(c.mem.bytes) {
			continue
		}
		words := image[l.at-c.mem.addr:]
		binary.LittleEndian.PutUint64(words, uint64(len(l.flags)))
		for i, at := range l.flags {
			binary.LittleEndian.PutUint64(words[8*(i+1):], uint64(at))
		}
	}
	var args [4]uintptr
	return errors.Join(drv.Copy(c.mem.addr, buf, c.mem.bytes, 0, &args), drv.SyncStream(0), pinned.Free(buf, c.mem.bytes))
}

// launched notes that waits may report something.
func (f *flags) launched() {
	for _, p := range f.sections {
		p.origin.dev.site.faults.armed = true
	}
}

// free gives the flags back; nothing that uses them may run.
func (f *flags) free() error {
	if f == nil || f.freed {
		return nil
	}
	f.freed = true
	for _, l := range f.loads {
		l.Free()
	}
	var errs []error
	for _, c := range f.chunks {
		d := c.mem.dev
		c.mem.freed = true
		if f.w.cause != errClosed && !d.site.lost() {
			errs = append(errs, d.bound(func() error { return d.site.heaps[c.mem.kind].Free(c.mem.addr, c.mem.bytes) }))
		}
	}
	return f.w.excuse(errors.Join(errs...))
}
