package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// dev implements the device of one rank.
type dev struct {
	w        *world
	rank     int
	site     *site
	counters []*counters
	piece    int64     // largest size in bytes of a piece of the prepared copies through host memory; 0 if none was prepared
	sides    []*stream // streams for the copies of launches (see sideStream), except the streams of a team's members
}

func (d *dev) Rank() int { return d.rank }

func (d *dev) errorf(format string, args ...any) error {
	return fmt.Errorf("rank %d: %w", d.rank, fmt.Errorf(format, args...))
}

// bind makes the device's context current until the driver's method Unbind is called.
func (d *dev) bind() error { return d.w.drv.Bind(d.site.ctx) }

// rebind makes the device's context current again after a call for another device has changed it.
func (d *dev) rebind() error {
	err := d.bind()
	if err == nil {
		d.w.drv.Unbind()
	}
	return err
}

// bound calls f while the device's context is current.
func (d *dev) bound(f func() error) error { return d.site.bound(f) }

// bound calls f while the site's context is current.
func (s *site) bound(f func() error) error {
	if err := s.w.drv.Bind(s.ctx); err != nil {
		return err
	}
	defer s.w.drv.Unbind()
	return f()
}

func (d *dev) Alloc(bytes int64, kind device.MemKind) (device.Memory, error) {
	defer d.w.guard.Exclusive()()
	if err := d.w.err(); err != nil {
		return nil, err
	}
	if bytes < 0 || kind > device.Pinned {
		return nil, d.errorf("cannot allocate %d bytes of memory kind %d", bytes, kind)
	}
	return d.alloc(bytes, kind)
}

// alloc does the work of Alloc; the caller holds the world's mutex. If there is too little memory, alloc first destroys
// idle NCCL communicators, to free their memory.
func (d *dev) alloc(bytes int64, kind device.MemKind) (*memory, error) {
	m := &memory{dev: d, kind: kind, bytes: bytes}
	heap := d.site.heaps[kind]
	if heap == nil { // the memory of a rank that another process drives is not mapped here
		return d.nameless(m), nil
	}
	take := func() (err error) {
		m.addr, err = heap.Alloc(bytes)
		return err
	}
	err := d.bound(take)
	if gpu.OutOfMemory(err) && trimNCCL(d.w, 0) {
		err = d.bound(take)
	}
	if err != nil {
		return nil, d.errorf("%w", err)
	}
	return m, nil
}

func (d *dev) NewStream(opts device.StreamOptions) (device.Stream, error) {
	w := d.w
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return nil, err
	}
	priority := 0
	switch {
	case opts.Priority > 0:
		priority = d.site.most
	case opts.Priority < 0:
		priority = d.site.least
	}
	s, err := d.newStream(opts.Name, priority)
	if err == nil {
		err = openHostStaged(s)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// newStream creates a stream with the given driver priority. The caller holds the world's mutex.
func (d *dev) newStream(name string, priority int) (*stream, error) {
	w := d.w
	s := &stream{dev: d, name: name, index: len(w.flight.streams)}
	err := d.bound(func() (err error) {
		s.h, err = w.drv.NewStream(priority)
		return err
	})
	if err != nil {
		return nil, d.errorf("stream %s: %w", name, err)
	}
	w.flight.streams = append(w.flight.streams, s)
	return s, nil
}

func (d *dev) NewEvent() (device.Event, error) {
	if err := d.w.check(); err != nil {
		return nil, err
	}
	return &event{dev: d}, nil
}

func (d *dev) NewCounters(n int) (device.Counters, error) {
	if d.w.peers == nil {
		d.w.mu.Lock()
		defer d.w.mu.Unlock()
	} else {
		defer d.w.guard.Exclusive()()
	}
	c, err := d.makeCounters(n)
	if err == nil && c.wired() {
		err = d.w.wired.open(c)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// makeCounters creates n counters. In a world of several processes, a counter that other processes raise is a word in
// shared memory. The caller holds the world's mutex and, if such words are allocated, holds the world exclusively.
func (d *dev) makeCounters(n int) (*counters, error) {
	if err := d.w.err(); err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, d.errorf("cannot make %d counters", n)
	}
	c := &counters{dev: d, elems: make([]counter, n)}
	if d.w.peers != nil {
		if err := d.w.wired.wire(c); err != nil {
			return nil, err
		}
	}
	d.counters = append(d.counters, c)
	return c, nil
}

// seenRoom returns an empty slice into which a stream's field seen can be copied. It reuses the slice of a freed mark
// if there is such a slice.
func (s *site) seenRoom() []int64 {
	n := len(s.seens)
	if n == 0 {
		return nil
	}
	room := s.seens[n-1]
	s.seens = s.seens[:n-1]
	return room
}
