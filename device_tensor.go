package hocket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// DeviceTensor is a tensor on a machine's devices, in blocks, a rank each, laid out as a
// parameter or result of a model. Runs take parameters from one (Args.DeviceIn) and leave
// results in one (Args.DeviceOut), of the same model or another of the machine, and nothing
// of it goes over the host: state that a program updates, or what one model makes for the
// next. A run copies between it and memory of its own, on the devices.
//
// Its methods, and runs that are given it, wait for each other: many may read it at a time,
// or one write it. What makes a Write or Read fail on a device, other than a shortage of
// memory, costs all device tensors of the machine with as many ranks: their methods, and
// runs that are given them, say so.
type DeviceTensor struct {
	t *resident.DeviceTensor
	m *Machine
}

// DeviceBlock is what one rank has of a DeviceTensor, dense and row-major.
type DeviceBlock struct {
	Rank int
	// From is where the block begins in the global tensor, Shape how many elements it has
	// of each dimension.
	From, Shape []int64
	// Pointer is the address of its first element on the rank's device: a CUdeviceptr of
	// the device's primary context, or an address of the process on the CPU machine. It is
	// good until Close. Others use it within Fill and View.
	Pointer uintptr
	// Host is the same memory where that is the process's own, on the CPU machine; nil
	// on GPUs.
	Host []byte
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

// deviceTensor makes a device tensor, of the caller's memory where at has addresses.
func (m *Model) deviceTensor(
	ctx context.Context, name string, dims map[string]int64, at map[int]uintptr,
) (*DeviceTensor, error) {
	if !m.hasPort(name) {
		return nil, fmt.Errorf("%w: %s has no parameter or result %%%s", blocks.ErrInput, m.fn.Name, name)
	}
	d, err := m.newDeviceTensor(ctx, name, dims, at)
	return d, m.machine.why(ctx, err)
}

func (m *Model) newDeviceTensor(
	ctx context.Context, name string, dims map[string]int64, at map[int]uintptr,
) (*DeviceTensor, error) {
	t, err := m.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer t.end()
	bound := m.bindings()
	b, err := m.dimsOf(shapes(Args{DeviceIn: bound.on}, bound.tensors))
	if err != nil {
		return nil, err
	}
	maps.Copy(b.Dims, dims)
	all, err := m.unit.Dims(b.ir())
	if err != nil {
		return nil, m.blame(b, err)
	}
	p, err := t.plan(ctx, b, all)
	if err != nil {
		return nil, m.blame(b, err)
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
		if err := t.room(ctx, m.machine, err); err != nil {
			return nil, err
		}
	}
}

func (m *Model) hasPort(name string) bool {
	return slices.ContainsFunc(m.fn.Params, func(p *ir.Param) bool { return p.Name == name }) ||
		slices.Contains(ir.OutputNames(m.fn), name)
}

// ioOf finds a parameter or result, which there is.
func ioOf(p *plan.Plan, name string) *plan.IO {
	list := slices.Concat(p.Inputs, p.Outputs)
	return &list[slices.IndexFunc(list, func(io plan.IO) bool { return io.Name == name })]
}

// DType and Shape are those of the global tensor.
func (d *DeviceTensor) DType() ir.DType { return d.t.IO().DType }

// Shape returns the global extents.
func (d *DeviceTensor) Shape() []int64 { return slices.Clone(d.t.IO().Shape) }

// String returns the tensor's type: "bf16[4, 8]".
func (d *DeviceTensor) String() string { return d.header().String() }

func (d *DeviceTensor) header() *tensor.Tensor {
	return &tensor.Tensor{DType: d.t.IO().DType, Shape: d.t.IO().Shape}
}

// Write copies a global tensor to the devices; it waits for the end of that, at most a
// minute longer than ctx lasts. After an error of the copy the tensor holds nothing.
func (d *DeviceTensor) Write(ctx context.Context, from *Tensor) error {
	if from == nil {
		return fmt.Errorf("%w: a nil tensor is to be written to a device tensor", blocks.ErrInput)
	}
	return d.m.why(ctx, d.t.Write(ctx, from.host()))
}

// Read copies the tensor to the host. A *MismatchError says that ranks which should hold
// copies of the same block hold something else: what a run leaves on the devices is compared
// here, not when the run ends.
func (d *DeviceTensor) Read(ctx context.Context) (*Tensor, error) {
	t, err := d.t.Read(ctx)
	return (*Tensor)(t), d.m.why(ctx, err)
}

// Blocks lists what each rank has, by rank; ranks that have nothing are missing.
func (d *DeviceTensor) Blocks() []DeviceBlock {
	var blocks []DeviceBlock
	for _, part := range d.t.IO().Parts {
		b := DeviceBlock{Rank: int(part.Ref.Rank), From: slices.Clone(part.Lo), Shape: slices.Clone(part.Ref.Shape)}
		mem := d.t.Block(b.Rank)
		b.Pointer = mem.Address()
		if h := mem.Host(); h != nil {
			n := part.Ref.Bytes()
			b.Host = h[:n:n]
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// Fill has others' work fill the tensor: kernels of the caller's own, another library's. f
// gets the blocks, to write all of each, when runs and methods that came before have ended,
// and none begins until it returns; by then its work on the devices must have ended too. If
// it returns an error that is Fill's, and the tensor holds nothing. f must not call methods
// of the tensor that wait, nor runs with it: they would wait for f.
func (d *DeviceTensor) Fill(ctx context.Context, f func([]DeviceBlock) error) error {
	if f == nil {
		return fmt.Errorf("%w: nobody is to fill a device tensor", blocks.ErrInput)
	}
	return d.show(ctx, f, d.t.Fill)
}

// View has others' work read the tensor, as Fill has it write. Runs and methods that only
// read it may go on beside f. Blocks of several ranks that are copies of each other are not
// compared.
func (d *DeviceTensor) View(ctx context.Context, f func([]DeviceBlock) error) error {
	if f == nil {
		return fmt.Errorf("%w: nobody is to view a device tensor", blocks.ErrInput)
	}
	return d.show(ctx, f, d.t.View)
}

// show has f see the blocks within a use of the tensor. What f returns stays as it is.
func (d *DeviceTensor) show(ctx context.Context, f func([]DeviceBlock) error,
	within func(context.Context, func() error) error) error {
	var own error
	err := within(ctx, func() error {
		own = f(d.Blocks())
		return own
	})
	if own != nil {
		return err
	}
	return d.m.why(ctx, err)
}

// Close gives the memory back, when runs and methods that use it have ended. Plans that
// work in it (Model.BindDevice) are unloaded.
func (d *DeviceTensor) Close() error {
	err := d.t.Close()
	c := d.m.plans.enter()
	defer c.end()
	errs := []error{err}
	for _, l := range c.remove(func(l *loaded) bool { return !l.busy && l.worksIn(d.t) }) {
		errs = append(errs, l.unload("a device tensor that it works in is closed"))
	}
	return errors.Join(errs...)
}

// onDevices reports whether a run has any device tensors.
func (a Args) onDevices() bool { return len(a.DeviceIn)+len(a.DeviceOut) > 0 }

// execArgs are the arguments of a batch's runs, in gives for each what it takes from the
// host's memory.
func (m *Model) execArgs(batch []Args, in []map[string]*tensor.Tensor) ([]exec.Args, error) {
	runs := make([]exec.Args, len(batch))
	for i, a := range batch {
		var err, oerr error
		r := &runs[i]
		r.In, r.InLocal = in[i], hostBlocks(a.InLocal)
		r.DeviceIn, err = m.own(a.DeviceIn)
		r.DeviceOut, oerr = m.own(a.DeviceOut)
		if err := errors.Join(err, oerr); err != nil {
			return nil, err
		}
		r.Into = map[string]*tensor.Tensor{}
		for _, name := range slices.Sorted(maps.Keys(a.Out)) {
			switch t := a.Out[name]; {
			case t == nil:
			case a.DeviceOut[name] != nil:
				return nil, fmt.Errorf("%w: result %%%s is to be received twice, in the host's memory and on the devices",
					blocks.ErrInput, name)
			default:
				r.Into[name] = t.host()
			}
		}
	}
	return runs, nil
}

// hostBlocks are blocks as exec takes them.
func hostBlocks(all map[string]map[int]*Tensor) map[string]map[int]*tensor.Tensor {
	if len(all) == 0 {
		return nil
	}
	out := map[string]map[int]*tensor.Tensor{}
	for name, parts := range all {
		out[name] = map[int]*tensor.Tensor{}
		for rank, t := range parts {
			if t != nil {
				out[name][rank] = t.host()
			}
		}
	}
	return out
}

// own checks that tensors are of the model's machine.
func (m *Model) own(tensors map[string]*DeviceTensor) (map[string]*resident.DeviceTensor, error) {
	own := map[string]*resident.DeviceTensor{}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		switch d := tensors[name]; {
		case d == nil, d.t == nil:
			return nil, fmt.Errorf("%w: the device tensor for %%%s is nil, or was not made by NewDeviceTensor",
				blocks.ErrInput, name)
		case !d.t.Of(m.machine.tensors):
			return nil, fmt.Errorf("%w: the device tensor for %%%s is another machine's", blocks.ErrInput, name)
		default:
			own[name] = d.t
		}
	}
	return own, nil
}

// lease waits until a batch can have its device tensors. It comes before the model's lease,
// so waiting here blocks nobody else.
func (m *Model) lease(ctx context.Context, batch []exec.Args) (release func(), err error) {
	reads, writes := usesOf(batch)
	return m.machine.tensors.Lease(ctx, reads, writes)
}
