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

// BindDevice has all runs to come take a parameter from a device tensor, and, where it is
// inout, leave there what they make of it. Nil takes it back, as Bind of the parameter does.
// A run that is given the parameter, in Args.In or DeviceIn, has nothing to do with the
// tensor: what it makes of an inout one is a result like others. One that is given only what
// is to receive that, in Out or DeviceOut, takes the parameter from the tensor and leaves that
// as it is.
//
// Plans that are loaded from then on work in the tensor itself, and copy nothing, if only
// their own ranks' computations and copies use the parameter: state as large as the devices'
// memory. Where a collective, a copy to another rank or a peer reads or writes it, or it is
// returned under another name, or a run uses the tensor for something else besides, runs
// copy, as with Args.DeviceIn and DeviceOut. A plan works
// in one tensor; for each that is bound in turn there is another, up to LoadOptions.Cache. So
// bind before Prepare and the first Run. A load that a call began has the tensor as the call
// has, and keeps it where it goes on behind that.
//
// A run that fails leaves an inout parameter's tensor without contents. One that is refused with an InputError that has
// not Begun leaves it as it was.
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

// NewDeviceTensor makes a tensor laid out as a parameter or result of that name, for the
// given dims, which override the binding's and those that the shapes of bound tensors say.
// It plans for these dims, and loads nothing; if ctx ends meanwhile that goes on, as a load
// does in Prepare. It holds nothing until it is written, or a run leaves something there. It
// is its machine's, which closes it in the end: it outlives the model. Its memory is not
// counted by LoadOptions.Cache.
func (m *Model) NewDeviceTensor(ctx context.Context, name string, dims map[string]int64) (*DeviceTensor, error) {
	return m.deviceTensor(ctx, name, dims, nil)
}

// DeviceTensorAt makes a device tensor of what is at addresses of the caller's, by rank, for ranks that this process
// drives: blocks as NewDeviceTensor lays them out, each at a multiple of 16, which stay the caller's and must
// stay until the tensor is closed. It holds what is there.
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

// deviceTensor makes a device tensor, of the caller's memory where at has addresses.
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

// ioOf finds a parameter or result, which there is.
func ioOf(p *plan.Plan, name string) *plan.IO {
	list := slices.Concat(p.Inputs, p.Outputs)
	return &list[slices.IndexFunc(list, func(io plan.IO) bool { return io.Name == name })]
}
