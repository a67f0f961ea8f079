package gpu

import (
	"errors"
	"slices"

	"hocket.example/hocket/internal/nvlib"
)

// Multicast is memory of equal size on each of several GPUs, with one additional address for all of it. Multimem
// instructions on the additional address access the memory of all these GPUs.
type Multicast struct {
	Bytes int64
	Own   []nvlib.Ptr // by GPU: the address at which the GPU's own memory is
	All   nvlib.Ptr   // the multicast address, for multimem instructions on any of the GPUs

	drv  *nvlib.Driver
	gpus []Joined
	undo []func() error
}

// Joined is a GPU whose memory is part of a Multicast.
type Joined struct {
	GPU   *GPU
	Bound func(func() error) error // runs a function with the GPU's context current
}

// NewMulticast creates a multicast object with memory of at least the given number of bytes on each GPU.
func NewMulticast(drv *nvlib.Driver, gpus []Joined, bytes int64) (*Multicast, error) {
	mc := &Multicast{drv: drv, gpus: gpus}
	if err := mc.make(bytes); err != nil {
		return nil, errors.Join(err, mc.Free())
	}
	return mc, nil
}

// done adds undo to mc's functions for Free if err is nil, and returns err.
func (mc *Multicast) done(err error, undo func() error) error {
	if err == nil {
		mc.undo = append(mc.undo, undo)
	}
	return err
}

// Free frees the memory. It undoes the steps of make in reverse order.
func (mc *Multicast) Free() error {
	var errs []error
	for _, undo := range slices.Backward(mc.undo) {
		errs = append(errs, undo())
	}
	mc.undo = nil
	return errors.Join(errs...)
}

// make creates the object, adds all devices to it, and then binds memory. The driver requires this order.
func (mc *Multicast) make(bytes int64) error {
	drv, n := mc.drv, len(mc.gpus)
	grain, err := mc.grain(bytes)
	if err != nil {
		return err
	}
	mc.Bytes = grain
	for mc.Bytes < bytes {
		mc.Bytes *= 2
	}
	object, err := drv.CreateMulticast(n, mc.Bytes)
	if err := mc.done(err, func() error { return drv.ReleaseMem(object) }); err != nil {
		return err
	}
	var devs []nvlib.Device
	for _, m := range mc.gpus {
		devs = append(devs, m.GPU.Device)
		if err := drv.AddToMulticast(object, m.GPU.Device); err != nil {
			return err
		}
	}
	for _, m := range mc.gpus {
		at, err := mc.bind(m, object, grain)
		if err != nil {
			return err
		}
		mc.Own = append(mc.Own, at)
	}
	mc.All, err = mc.mapTo(mc.gpus[0], object, grain, devs)
	return err
}

// grain returns the number of which the size and the address of the memory must be multiples.
func (mc *Multicast) grain(bytes int64) (int64, error) {
	grain, err := mc.drv.MulticastGranularity(len(mc.gpus), bytes)
	for _, m := range mc.gpus {
		own, gerr := mc.drv.Granularity(m.GPU.Device)
		grain, err = max(grain, own), errors.Join(err, gerr) // both are powers of 2
	}
	return grain, err
}

// bind allocates memory of a member and binds it to the object. It returns the address of this memory, not the
// multicast address.
func (mc *Multicast) bind(m Joined, object nvlib.MemHandle, grain int64) (nvlib.Ptr, error) {
	drv, dev := mc.drv, m.GPU.Device
	mem, err := drv.CreateMem(dev, mc.Bytes, false)
	if err := mc.done(m.GPU.MemoryError(mc.Bytes, err), func() error { return drv.ReleaseMem(mem) }); err != nil {
		return 0, err
	}
	err = m.Bound(func() error { return drv.BindMulticast(object, mem, mc.Bytes) })
	if err := mc.done(err, func() error { return drv.UnbindMulticast(object, dev, mc.Bytes) }); err != nil {
		return 0, err
	}
	return mc.mapTo(m, mem, grain, []nvlib.Device{dev})
}

// mapTo maps memory at a new address and grants the devices access.
func (mc *Multicast) mapTo(m Joined, mem nvlib.MemHandle, grain int64, devs []nvlib.Device) (nvlib.Ptr, error) {
	drv := mc.drv
	at, err := drv.ReserveAddresses(mc.Bytes, grain)
	if err := mc.done(err, func() error { return drv.FreeAddresses(at, mc.Bytes) }); err != nil {
		return 0, err
	}
	if err := mc.done(drv.Map(at, mc.Bytes, mem), func() error { return drv.Unmap(at, mc.Bytes) }); err != nil {
		return 0, err
	}
	return at, m.Bound(func() error { return drv.SetAccess(at, mc.Bytes, devs) })
}
