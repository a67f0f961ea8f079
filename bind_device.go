package hocket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/plan"
)

// BindDevice makes all later runs take a parameter from a device tensor. For an inout parameter, runs also leave the
// new value in that tensor. A nil tensor removes the binding, as Bind of the parameter does.
//
// A run that is given the parameter, in Args.In or DeviceIn, does not use the bound tensor: the new value of an inout
// parameter is then a result like any other. A run that is only given a tensor to receive the new value, in Out or
// DeviceOut, reads the bound tensor and leaves it unchanged.
//
// Plans that are loaded later work in the tensor itself and copy nothing, if only computations and copies of the
// parameter's own rank use it. The state may then fill the devices' memory. A run copies, as with Args.DeviceIn and
// DeviceOut, if a collective, a copy to another rank or a peer reads or writes the parameter, if it is returned under
// another name, or if the run uses the tensor for something else too. A plan works in one tensor: each tensor that is
// bound gets a plan of its own, up to LoadOptions.Cache. So bind before Prepare and the first Run. A load uses the
// tensors that were bound when it was started, even if it continues in the background.
//
// A run that fails leaves an inout parameter's tensor without contents. A run that is refused with an InputError that
// has not Begun leaves it unchanged.
func (m *Model) BindDevice(name string, d *DeviceTensor) error {
	if err := m.fn.fits(name, nil); err != nil {
		return err
	}
	if d != nil {
		if _, err := m.machine.own(map[string]*DeviceTensor{name: d}); err != nil {
			return err
		}
	}
	m.params.bind(name, nil, d)
	return nil
}

// NewDeviceTensor makes a tensor laid out as the parameter or result of that name, for the given dims. These override
// the dims of the binding and of the shapes of bound tensors. It plans for these dims and loads nothing; if ctx ends
// first, planning continues in the background, as a load does in Prepare.
//
// The tensor holds nothing until it is written or a run leaves a result in it. It belongs to the machine, whose Close
// closes it, and so outlives the model. LoadOptions.Cache does not count its memory.
func (m *Model) NewDeviceTensor(ctx context.Context, name string, dims map[string]int64) (*DeviceTensor, error) {
	return m.deviceTensor(ctx, name, dims, nil)
}

// DeviceTensorAt makes a device tensor of the caller's memory. at has an address for each rank that this process
// drives: a block as NewDeviceTensor lays it out, at a multiple of 16. The memory belongs to the caller and must stay
// valid until the tensor is closed. The tensor holds what the memory contains.
func (m *Model) DeviceTensorAt(ctx context.Context, name string, dims map[string]int64,
	at map[int]uintptr) (*DeviceTensor, error) {
	if len(at) == 0 {
		return nil, fmt.Errorf("%w: there is no address for %%%s", blocks.ErrInput, name)
	}
	for _, r := range slices.Sorted(maps.Keys(at)) {
		if at[r] == 0 || at[r]%16 != 0 {
			return nil, fmt.Errorf("%w: the block of %%%s for rank %d is at %#x, which is no multiple of 16",
				blocks.ErrInput, name, r, at[r])
		}
	}
	return m.deviceTensor(ctx, name, dims, at)
}

// deviceTensor makes a device tensor, in the caller's memory if at has addresses.
func (m *Model) deviceTensor(
	ctx context.Context, name string, dims map[string]int64, at map[int]uintptr,
) (*DeviceTensor, error) {
	if !m.fn.hasPort(name) {
		return nil, fmt.Errorf("%w: %s has no parameter or result %%%s", blocks.ErrInput, m.fn.def.Name, name)
	}
	d, err := m.newDeviceTensor(ctx, name, dims, at)
	return d, m.machine.why(ctx, err)
}

func (m *Model) newDeviceTensor(
	ctx context.Context, name string, dims map[string]int64, at map[int]uintptr,
) (*DeviceTensor, error) {
	t, err := m.loader.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer t.end()
	b, err := m.params.current().alone()
	if err != nil {
		return nil, err
	}
	maps.Copy(b.Dims, dims)
	all, err := m.fn.unit.Dims(b.ir())
	if err != nil {
		return nil, m.fn.blame(b, err)
	}
	p, err := t.plan(ctx, b, all)
	if err != nil {
		return nil, m.fn.blame(b, err)
	}
	io := ioOf(p, name)
	for r := range at {
		if r < 0 || r >= p.Ranks || io.Of(int32(r)) == nil {
			return nil, fmt.Errorf("%w: rank %d has no block of %%%s", blocks.ErrInput, r, name)
		}
	}
	for {
		dt, err := m.machine.tensors.NewAt(m.machine.ctx, p.Ranks, io, at)
		if errors.Is(err, device.ErrAddress) {
			return nil, fmt.Errorf("%w: %w", ErrInput, err)
		}
		if err == nil {
			return &DeviceTensor{dt, m.machine}, nil
		}
		if err := t.room(ctx, err); err != nil {
			return nil, err
		}
	}
}

// ioOf returns the plan's parameter or result of that name, which must exist.
func ioOf(p *plan.Plan, name string) *plan.IO {
	list := slices.Concat(p.Inputs, p.Outputs)
	return &list[slices.IndexFunc(list, func(io plan.IO) bool { return io.Name == name })]
}
