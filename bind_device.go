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
	"hocket.example/hocket/internal/tensor"
)

// BindDevice binds a parameter to a device tensor, from which all later runs read the parameter. If the parameter is
// inout, runs also write its new value to that tensor. A nil tensor removes the binding, and so does a call of Bind
// with the parameter.
//
// A run whose Args.In or Args.DeviceIn contains the parameter does not use the bound tensor; the new value of an inout
// parameter is then a result like any other. A run for which only Args.Out or Args.DeviceOut has the parameter reads
// the bound tensor, leaves it unchanged, and writes the new value to the tensor in Out or DeviceOut.
//
// Plans that are loaded after BindDevice work directly in the tensor and copy nothing, if only computations and memory
// copies on the parameter's own rank use the parameter. The state may then be as large as the devices' memory. A run
// copies the tensor, as it does for Args.DeviceIn and Args.DeviceOut, in these cases: a collective, a copy to another
// rank or a peer access reads or writes the parameter; the function returns the parameter under another name; the run
// uses the tensor for a second parameter or result. A plan works in one tensor, so each bound tensor gets its own plan;
// LoadOptions.Cache limits the number of plans. Call BindDevice before Prepare and the first Run. A load uses the
// tensors that were bound when the load started, even if the load continues in the background.
//
// If a run fails, the tensor of an inout parameter has no contents: later runs return ErrNoContents until it is
// written. If a run is refused with an InputError whose Begun is false, the tensor is unchanged.
func (m *Model) BindDevice(name string, d *DeviceTensor) error {
	var header *tensor.Tensor
	if d != nil {
		if _, err := m.machine.own(map[string]*DeviceTensor{name: d}); err != nil {
			return err
		}
		header = d.header()
	}
	if err := m.fn.fits(name, header, m.fn.binding.Dims); err != nil {
		return err
	}
	return m.params.bind(name, nil, d)
}

// BindState creates the state that runs update: for each inout parameter that has no binding, it allocates a device
// tensor for the given dims, as NewDeviceTensor does, fills it with zeros on the devices, and binds it with BindDevice.
// It returns these tensors, keyed by the names of the parameters; a second call thus returns none. If it fails, it
// binds nothing.
func (m *Model) BindState(ctx context.Context, dims map[string]int64) (state map[string]*DeviceTensor, err error) {
	state = map[string]*DeviceTensor{}
	defer func() {
		if err != nil {
			for _, d := range state {
				err = errors.Join(err, d.Close())
			}
			state = nil
		}
	}()
	bound := m.params.current()
	for _, p := range m.fn.def.Params {
		if !p.Inout || bound.tensors[p.Name] != nil || bound.on[p.Name] != nil {
			continue
		}
		d, err := m.NewDeviceTensor(ctx, p.Name, dims)
		if err != nil {
			return state, err
		}
		state[p.Name] = d
		if err := d.t.Zero(ctx); err != nil {
			return state, m.machine.why(ctx, err)
		}
	}
	for name, d := range state {
		err = errors.Join(err, m.params.bind(name, nil, d))
	}
	return state, err
}

// NewDeviceTensor allocates a device tensor with the layout that the named parameter or result has for the given dims.
// These dims override the dims of the binding and those that the shapes of bound tensors imply. NewDeviceTensor plans
// the program for these dims but loads nothing. If ctx ends first, planning continues in the background, as a load does
// in Prepare.
//
// The tensor has no contents until it is written or a run leaves a result in it. It belongs to the machine and so
// outlives the model; closing the machine closes the tensor. LoadOptions.Cache does not count its memory.
func (m *Model) NewDeviceTensor(ctx context.Context, name string, dims map[string]int64) (*DeviceTensor, error) {
	return m.deviceTensor(ctx, name, dims, nil)
}

// DeviceTensorAt makes a device tensor from the caller's memory. at holds one address for each rank that this process
// drives: the address of the rank's block, in the layout that NewDeviceTensor uses, which must be a multiple of 16
// bytes. The caller owns the memory and must not free it before the tensor is closed. The contents of the memory become
// the contents of the tensor.
func (m *Model) DeviceTensorAt(ctx context.Context, name string, dims map[string]int64,
	at map[int]uintptr) (*DeviceTensor, error) {
	if len(at) == 0 {
		return nil, fmt.Errorf("%w: no address is given for %%%s", blocks.ErrInput, name)
	}
	for _, r := range slices.Sorted(maps.Keys(at)) {
		if at[r] == 0 || at[r]%16 != 0 {
			return nil, fmt.Errorf("%w: the block of %%%s for rank %d is at address %#x, which is not a multiple of 16",
				blocks.ErrInput, name, r, at[r])
		}
	}
	return m.deviceTensor(ctx, name, dims, at)
}

// deviceTensor makes a device tensor. If at has addresses, the tensor uses the caller's memory at them.
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
			return nil, fmt.Errorf("%w: an address is given for rank %d, which has no block of %%%s", blocks.ErrInput,
				r, name)
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
		if err := t.MakeRoom(ctx, err); err != nil {
			return nil, err
		}
	}
}

// ioOf returns the parameter or result of the plan that has the given name. The name must exist.
func ioOf(p *plan.Plan, name string) *plan.IO {
	list := slices.Concat(p.Inputs, p.Outputs)
	return &list[slices.IndexFunc(list, func(io plan.IO) bool { return io.Name == name })]
}
