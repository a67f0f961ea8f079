package cuda

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/nvlib"
)

// Multicasts returns nil if the team's memory may be joined to multicast objects, or
// why it may not. Without the opt-in it asks the driver nothing.
func (t *team) Multicasts() error {
	if !t.w.m.sys.Multicast {
		return fmt.Errorf("%w: NVLink multicast is off; %s=on opts in, at your own risk on a shared host", device.ErrUnsupported, doctor.MulticastVariable)
	}
	if t.w.peers != nil {
		return fmt.Errorf("%w: NVLink multicast between processes", device.ErrUnsupported)
	}
	if err := t.w.drv.HasMulticast(); err != nil {
		return fmt.Errorf("%w: %w", device.ErrUnsupported, err)
	}
	for i, m := range t.members {
		g := m.dev.site.gpu
		for _, o := range t.members[:i] {
			if o.dev.site == m.dev.site {
				return fmt.Errorf("%w: members %d and %d share GPU %d; a multicast object wants one for each", device.ErrUnsupported, o.index, i, g.Device)
			}
		}
		if !g.Multicasts() {
			return fmt.Errorf("%w: GPU %d does not support NVLink multicast", device.ErrUnsupported, g.Device)
		}
	}
	return nil
}

// multicast is memory on each member that one more address stands for all at once.
type multicast struct {
	bytes int64
	own   []nvlib.Ptr // of each member, for itself
	all   nvlib.Ptr   // for multimem instructions of any member
	undo  []func() error
}

// joinMemory returns memory of at least so many bytes on each member, joined. More than
// before are another piece of memory.
func joinMemory(t *team, bytes int64) (coll.Area, error) {
	if n := len(t.joints); n > 0 && t.joints[n-1].bytes >= bytes {
		return t.joints[n-1].area(), nil
	}
	mc := &multicast{}
	if err := makeJoint(t, mc, bytes); err != nil {
		return coll.Area{}, errors.Join(fmt.Errorf("%d bytes of multicast memory on each member: %w", bytes, err), mc.free())
	}
	t.joints = append(t.joints, mc)
	t.bytes += mc.bytes
	return mc.area(), nil
}

func (mc *multicast) area() coll.Area { return coll.Area{At: mc.own, Bytes: mc.bytes, All: mc.all} }

// done notes how to undo what was done without err, and returns err.
func (mc *multicast) done(err error, undo func() error) error {
	if err == nil {
		mc.undo = append(mc.undo, undo)
	}
	return err
}

// free undoes all, the last first.
func (mc *multicast) free() error {
	var errs []error
	for _, undo := range slices.Backward(mc.undo) {
		errs = append(errs, undo())
	}
	mc.undo = nil
	return errors.Join(errs...)
}

// makeJoint makes the object, has each member's device come in, and only then binds
// memory to it: so the driver wants it.
func makeJoint(t *team, mc *multicast, bytes int64) error {
	drv, n := t.w.drv, len(t.members)
	grain, err := jointGrain(t, bytes)
	if err != nil {
		return err
	}
	mc.bytes = grain
	for mc.bytes < bytes {
		mc.bytes *= 2
	}
	object, err := drv.CreateMulticast(n, mc.bytes)
	if err := mc.done(err, func() error { return drv.ReleaseMem(object) }); err != nil {
		return err
	}
	var devs []nvlib.Device
	for _, m := range t.members {
		devs = append(devs, m.dev.site.gpu.Device)
		if err := drv.AddToMulticast(object, m.dev.site.gpu.Device); err != nil {
			return err
		}
	}
	for _, m := range t.members {
		at, err := mc.bind(m, object, grain)
		if err != nil {
			return err
		}
		mc.own = append(mc.own, at)
	}
	mc.all, err = mc.mapTo(t.members[0], object, grain, devs)
	return err
}

// jointGrain is what the bytes of memory to be joined are a multiple of, and its
// address.
func jointGrain(t *team, bytes int64) (int64, error) {
	grain, err := t.w.drv.MulticastGranularity(len(t.members), bytes)
	for _, m := range t.members {
		own, gerr := t.w.drv.Granularity(m.dev.site.gpu.Device)
		grain, err = max(grain, own), errors.Join(err, gerr) // both powers of 2
	}
	return grain, err
}

// bind makes memory of a member, binds it to the object, and returns its own address.
func (mc *multicast) bind(m *member, object nvlib.MemHandle, grain int64) (nvlib.Ptr, error) {
	drv, dev := m.team.w.drv, m.dev.site.gpu.Device
	mem, err := drv.CreateMem(dev, mc.bytes, false)
	if err := mc.done(m.dev.site.gpu.MemoryError(mc.bytes, err), func() error { return drv.ReleaseMem(mem) }); err != nil {
		return 0, err
	}
	err = m.dev.bound(func() error { return drv.BindMulticast(object, mem, mc.bytes) })
	if err := mc.done(err, func() error { return drv.UnbindMulticast(object, dev, mc.bytes) }); err != nil {
		return 0, err
	}
	return mc.mapTo(m, mem, grain, []nvlib.Device{dev})
}

// mapTo gives memory an address that devices may use.
func (mc *multicast) mapTo(m *member, mem nvlib.MemHandle, grain int64, devs []nvlib.Device) (nvlib.Ptr, error) {
	drv := m.team.w.drv
	at, err := drv.ReserveAddresses(mc.bytes, grain)
	if err := mc.done(err, func() error { return drv.FreeAddresses(at, mc.bytes) }); err != nil {
		return 0, err
	}
	if err := mc.done(drv.Map(at, mc.bytes, mem), func() error { return drv.Unmap(at, mc.bytes) }); err != nil {
		return 0, err
	}
	return at, m.dev.bound(func() error { return drv.SetAccess(at, mc.bytes, devs) })
}

// freeJoints gives the team's joined memory back. Of a lost GPU it goes with the
// process, and that of all members with it.
func freeJoints(t *team) error {
	var errs []error
	lost := slices.ContainsFunc(t.members, func(m *member) bool { return m.dev.site.lost() })
	for _, mc := range slices.Backward(t.joints) {
		if !lost {
			errs = append(errs, mc.free())
		}
	}
	t.joints = nil
	return t.w.excuse(errors.Join(errs...))
}
