package cpu

import (
	"fmt"

	"hocket.example/hocket/internal/device"
)

// dev is one rank's device. The world's mutex guards mems and used.
type dev struct {
	device.DefaultDevice
	w        *world
	rank     int
	foreign  bool // whether another process executes the rank's work
	mems     map[*memory]struct{}
	used     int64
	shared   int         // number of shared segments for this device that all processes have created so far
	counters []*counters // counters that other processes use, too
}

func (d *dev) Rank() int { return d.rank }

func (d *dev) errorf(format string, args ...any) error {
	return fmt.Errorf("rank %d: %w", d.rank, fmt.Errorf(format, args...))
}

func (d *dev) Alloc(bytes int64, kind device.MemKind) (device.Memory, error) {
	if err := d.w.check(); err != nil {
		return nil, err
	}
	if bytes < 0 || kind > device.Pinned {
		return nil, d.errorf("cannot allocate %d bytes of memory kind %d", bytes, kind)
	}
	if d.w.peers != nil && (d.foreign || kind == device.Shared) {
		return d.allocShared(bytes, kind)
	}
	if err := d.reserve(bytes); err != nil {
		return nil, err
	}
	return d.keep(newMemory(d, bytes, kind))
}

// keep records memory that the world frees when it is closed, unless it was freed before.
func (d *dev) keep(m *memory) (device.Memory, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.mems == nil {
		d.mems = map[*memory]struct{}{}
	}
	d.mems[m] = struct{}{}
	return m, d.w.err()
}

func (d *dev) reserve(bytes int64) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	limit := d.w.m.opts.Memory
	if bytes > limit { // the request exceeds the limit even if all other memory is freed
		return d.errorf("%w: %d bytes were requested, but a rank may use at most %d", device.ErrTooLarge, bytes, limit)
	}
	if bytes > limit-d.used {
		return d.errorf("%w: %d bytes were requested, but of the %d bytes that a rank may use %d are in use",
			device.ErrOutOfMemory, bytes, limit, d.used)
	}
	if err := d.w.m.hold(bytes); err != nil {
		return d.errorf("%w", err)
	}
	d.used += bytes
	return nil
}

// Held implements device.Status. The memory of all ranks is host memory.
func (w *world) Held() device.Held {
	w.mu.Lock()
	defer w.mu.Unlock()
	var h device.Held
	for _, d := range w.devices {
		h.Device += d.used
	}
	return h
}

// freeAll frees all memory. The caller holds the world's mutex, and no work may be running.
func (d *dev) freeAll() {
	for m := range d.mems {
		m.freed.Store(true)
		m.unmap()
	}
	for _, c := range d.counters {
		c.shared.Close()
	}
	d.counters = nil
	d.w.m.held.Add(-d.used)
	d.mems, d.used = nil, 0
}

// NewStream ignores the priority, because Go's scheduler has none.
func (d *dev) NewStream(opts device.StreamOptions) (device.Stream, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.w.err(); err != nil {
		return nil, err
	}
	s := &stream{dev: d, name: opts.Name, main: opts.Name == "main"}
	d.w.streams = append(d.w.streams, s)
	return s, nil
}

func (d *dev) NewEvent() (device.Event, error) {
	if err := d.w.check(); err != nil {
		return nil, err
	}
	return &event{dev: d}, nil
}

func (d *dev) NewCounters(n int) (device.Counters, error) {
	if err := d.w.check(); err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, d.errorf("cannot make %d counters", n)
	}
	if d.w.peers != nil {
		return d.newSharedCounters(n)
	}
	return &counters{dev: d, n: n, val: make([]int64, n)}, nil
}

// Prepare checks the kernel and selects the loops that compute it. The selection does not depend on the contents of
// operands.
func (d *dev) Prepare(k device.Kernel) (device.Launch, error) {
	if err := d.w.check(); err != nil {
		return nil, err
	}
	name := device.Name(k.Op)
	run, err := d.prepare(k)
	if err != nil {
		return nil, d.errorf("%s: %w", name, err)
	}
	return &launch{dev: d, name: name, run: run}, nil
}
