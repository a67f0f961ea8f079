package cuda

import (
	"hocket.example/hocket/internal/device"
)

// foreignDev is a device that another process drives. Its shared memory is mapped if it is of the same node, and its
// counters are words in it. Its streams and launches are names: its process gives it its work.
type foreignDev struct{ *dev }

// foreignStream is a stream of a foreignDev: a name, which teams count.
type foreignStream struct {
	device.ForeignStream
	dev *dev
}

func (d foreignDev) NewStream(o device.StreamOptions) (device.Stream, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if err := d.w.err(); err != nil {
		return nil, err
	}
	d.site.foreignStreams++
	return &foreignStream{device.ForeignStream{Label: o.Name}, d.dev}, nil
}

func (d foreignDev) NewCounters(n int) (device.Counters, error) {
	defer d.w.guard.Exclusive()()
	return d.makeCounters(n)
}

func (d foreignDev) Prepare(device.Kernel) (device.Launch, error) {
	return device.ForeignLaunch{}, d.w.check()
}

func (d foreignDev) PrepareMove(device.View, device.View, int) (device.Launch, error) {
	return device.ForeignLaunch{}, d.w.check()
}

func (foreignDev) PrepareAhead(device.Kernel) {}

func (foreignDev) PrepareCopy(device.View, device.View) error { return nil }

// Borrow names memory that only the device's process uses.
func (d foreignDev) Borrow(lent device.Memory) (device.Memory, error) {
	m, ok := lent.(*memory)
	if !ok || m == nil || m.dev.rank != d.rank {
		return nil, d.errorf("borrowing memory that is not this device's: %w", device.ErrUnsupported)
	}
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	return d.nameless(&memory{dev: d.dev, kind: device.Private, bytes: m.bytes}), nil
}

var (
	_ device.Device = foreignDev{}
	_ device.Stream = (*foreignStream)(nil)
)
