package hocket

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/resident"
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
