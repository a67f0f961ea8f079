package cpu

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/device"
	procs "hocket.example/hocket/internal/world"
)

// This file implements worlds whose ranks are in several processes. Every process opens the world, and allocates
// the same memory and counters on every rank in the same order.
//
// Shared memory of a rank is a segment that the rank's process creates and that all other processes map. For other
// memory of the rank, the other processes record only the size. Counters are words in such segments: a stream that
// waits for a counter sleeps in the operating system until the process that raises the counter wakes it. In each
// process, the streams of other processes' ranks ignore work, because those processes issue it themselves.

// share opens a new world of ranks together with the other processes.
func (m *machine) share(ctx context.Context, ranks int) (*procs.Spread, error) {
	if m.opts.Mode == Scheduled {
		return nil, fmt.Errorf("cpu: a scheduled machine with several processes: %w", device.ErrUnsupported)
	}
	p, err := m.opts.Peers.Spread(ranks)
	if err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	return p, p.Begin(ctx, fmt.Sprintf("cpu world %d", m.opened.Add(1)))
}

// Local implements device.World.
func (w *world) Local(rank int) bool { return w.peers.Local(rank) }

// await waits until the counter has the value for which the stream's first task waits, or until the world ends. It
// runs in the goroutine of the stream. The caller holds the world's mutex.
func (s *stream) await(c *procs.Counters, elem int, least int64) {
	w := s.dev.w
	w.running--
	w.awaiting++
	w.mu.Unlock()
	err := c.Wait(w.peers.Ctx, elem, uint64(least), procs.Any)
	w.mu.Lock()
	w.running++
	w.awaiting--
	if err != nil && w.cause == nil {
		w.end(err)
	}
}

// sharedKey returns the key under which processes find the next segment of a device.
func (d *dev) sharedKey(what string) string {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.shared++
	return fmt.Sprintf("%s rank %d %s %d", d.w.peers.Name, d.rank, what, d.shared)
}

// far reports whether the device is on another node. This process cannot access the memory and counters of such a
// device.
func (d *dev) far() bool {
	return d.foreign && d.w.Node(d.rank) != d.w.peers.World.Node(d.w.peers.Process())
}

// reach returns an error if streams of the device from cannot access d.
func (d *dev) reach(from *dev) error {
	if from == d || !d.far() {
		return nil
	}
	return fmt.Errorf("rank %d is on node %d, rank %d on node %d, and nodes share no memory",
		from.rank, d.w.Node(from.rank), d.rank, d.w.Node(d.rank))
}

// allocShared allocates memory in a world of several processes. It creates or maps a segment, or returns a
// placeholder for memory of another process that is not shared.
func (d *dev) allocShared(bytes int64, kind device.MemKind) (device.Memory, error) {
	m := &memory{dev: d, kind: kind, bytes: bytes}
	if kind != device.Shared {
		return d.keep(m)
	}
	p, key := d.w.peers, d.sharedKey("memory")
	if d.far() {
		return d.keep(m)
	}
	if d.foreign {
		s, err := p.Map(p.Ctx, p.Owner(d.rank), key)
		if err == nil && int64(len(s.Bytes())) < bytes { // the owner could not allocate the memory, and called refuse
			err = errors.Join(fmt.Errorf("%w: the rank's process could not allocate %d bytes", device.ErrOutOfMemory, bytes),
				s.Close())
		}
		if err != nil {
			return nil, d.errorf("%w", err)
		}
		m.seg, m.data = s, s.Bytes()[:bytes]
		return d.keep(m)
	}
	if err := d.reserve(bytes); err != nil {
		return nil, errors.Join(err, refuse(p, key))
	}
	s, err := procs.NewSegment(int(max(bytes, 1)))
	if err != nil {
		return nil, d.errorf("%w", errors.Join(err, refuse(p, key)))
	}
	if err := p.Share(key, s); err != nil {
		return nil, d.errorf("%w", errors.Join(err, s.Close()))
	}
	m.seg, m.data = s, s.Bytes()[:bytes]
	return d.keep(m)
}

// refuse reports to the processes that map a segment that its owner could not allocate it. To do so, it creates a
// segment that is too small.
func refuse(p *procs.Spread, key string) error {
	s, err := procs.NewSegment(1)
	if err == nil {
		err = errors.Join(p.Share(key, s), s.Close())
	}
	return err
}

// unmap releases the memory that peers share.
func (m *memory) unmap() {
	if m.seg != nil {
		m.seg.Close() // nothing uses the memory any longer, so the error does not matter
		m.seg, m.data = nil, nil
	}
}

// newSharedCounters creates a device's counters, in every process.
func (d *dev) newSharedCounters(n int) (device.Counters, error) {
	p, key := d.w.peers, d.sharedKey("counters")
	c := &counters{dev: d, n: n}
	if d.far() {
		return c, nil
	}
	var err error
	if d.foreign {
		c.shared, err = p.MapCounters(p.Ctx, p.Owner(d.rank), key)
	} else {
		c.shared, err = p.NewCounters(key, n)
	}
	if err != nil {
		return nil, d.errorf("%w", err)
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.counters = append(d.counters, c)
	return c, nil
}
