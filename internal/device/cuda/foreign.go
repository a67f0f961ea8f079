package cuda

import "hocket.example/hocket/internal/device"

// foreignDev is a device that another process drives. Its shared memory is mapped if it is of the same node, and its
// counters are words in it.
type foreignDev struct {
	device.ForeignDevice
	dev *dev
}

// foreignStream is a stream of a foreignDev: a name, which teams count.
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

// Borrow names memory that only the device's process uses.
func (d foreignDev) Borrow(lent device.Memory) (device.Memory, error) {
	m, ok := lent.(*memory)
	if !ok || m == nil || m.dev.rank != d.dev.rank {
		return nil, d.dev.errorf("borrowing memory that is not this device's: %w", device.ErrUnsupported)
	}
	d.dev.w.mu.Lock()
	defer d.dev.w.mu.Unlock()
	return d.dev.nameless(&memory{dev: d.dev, kind: device.Private, bytes: m.bytes}), nil
}
