package cuda

import "hocket.example/hocket/internal/device"

// foreignDev represents a device that another process drives. If that process runs on the same node, the device's
// shared memory is mapped into this process and its counters are words in that memory.
type foreignDev struct {
	device.ForeignDevice
	dev *dev
}

// foreignStream is a stream of a foreignDev. It has only a name, and exists because teams need one stream for each
// member.
type foreignStream struct {
	device.ForeignStream
	dev *dev
}

func (d foreignDev) NewStream(o device.StreamOptions) (device.Stream, error) {
	w := d.dev.w
	w.mu.Lock()
	defer w.mu.Unlock()
	d.dev.site.foreignStreams++
	return &foreignStream{device.ForeignStream{Label: o.Name}, d.dev}, w.err()
}

func (d foreignDev) NewCounters(n int) (device.Counters, error) {
	defer d.dev.w.guard.Exclusive()()
	return d.dev.makeCounters(n)
}

// Borrow returns a Memory for memory that only the process of the device accesses.
func (d foreignDev) Borrow(lent device.Memory) (device.Memory, error) {
	m, ok := lent.(*memory)
	if !ok || m == nil || m.dev.rank != d.dev.rank {
		return nil, d.dev.errorf("cannot borrow memory of another device: %w", device.ErrUnsupported)
	}
	d.dev.w.mu.Lock()
	defer d.dev.w.mu.Unlock()
	return d.dev.nameless(&memory{dev: d.dev, kind: device.Private, bytes: m.bytes}), nil
}
