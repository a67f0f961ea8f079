package cuda

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/doctor"
	"hocket.example/hocket/internal/device/cuda/gpu"
)

// Multicasts returns nil if the team's memory may be bound to multicast objects, and otherwise an error with the
// reason. If the user has not enabled multicast, Multicasts makes no driver call.
func (t *team) Multicasts() error {
	if !t.w.m.sys.Multicast {
		return fmt.Errorf("%w: NVLink multicast is disabled; %s=on enables it, which is a risk for other users of a shared host",
			device.ErrUnsupported, doctor.MulticastVariable)
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
				return fmt.Errorf("%w: members %d and %d share GPU %d, but NVLink multicast needs one GPU for each member", device.ErrUnsupported, o.index, i, g.Device)
			}
		}
		if !g.Multicasts() {
			return fmt.Errorf("%w: GPU %d does not support NVLink multicast", device.ErrUnsupported, g.Device)
		}
	}
	return nil
}

// joinMemory returns memory of at least the given number of bytes on each member, bound to a multicast object. If an
// earlier object is large enough, joinMemory returns its memory.
func joinMemory(t *team, bytes int64) (coll.Area, error) {
	if n := len(t.joints); n == 0 || t.joints[n-1].Bytes < bytes {
		var gpus []gpu.Joined
		for _, m := range t.members {
			gpus = append(gpus, gpu.Joined{GPU: m.dev.site.gpu, Bound: m.dev.bound})
		}
		mc, err := gpu.NewMulticast(t.w.drv, gpus, bytes)
		if err != nil {
			return coll.Area{}, fmt.Errorf("allocating %d bytes of multicast memory on each member: %w", bytes, err)
		}
		t.joints = append(t.joints, mc)
		t.bytes += mc.Bytes
	}
	mc := t.joints[len(t.joints)-1]
	return coll.Area{At: mc.Own, Bytes: mc.Bytes, All: mc.All}, nil
}

// freeJoints frees the team's multicast memory. If the GPU of any member is lost, none of this memory is freed before
// the process ends.
func freeJoints(t *team) error {
	var errs []error
	lost := slices.ContainsFunc(t.members, func(m *member) bool { return m.dev.site.lost() })
	for _, mc := range slices.Backward(t.joints) {
		if !lost {
			errs = append(errs, mc.Free())
		}
	}
	t.joints = nil
	return t.w.excuse(errors.Join(errs...))
}
