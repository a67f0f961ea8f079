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

// DeviceTensor is a tensor on a machine's devices, in one block per rank, laid out as a parameter or result of a
// model. Runs take parameters from device tensors (Args.DeviceIn) and leave results in them (Args.DeviceOut), for any
// model of the machine, and none of the data goes through the host. Use it for state that a program updates, or to
// pass results to another model. A run copies between the tensor and its own memory, on the devices.
//
// Its methods and the runs that use it wait for each other: many may read it at a time, or one may write it. If a
// Write or Read fails on a device, other than for a shortage of memory, all device tensors of the machine with the
// same number of ranks are lost: their methods, and runs that use them, return an error that says so.
type DeviceTensor struct {
	t *resident.DeviceTensor
	m *Machine
}

// DeviceBlock is one rank's block of a DeviceTensor, dense and row-major.
type DeviceBlock struct {
	Rank int
	// From is the position of the block in the global tensor, and Shape the number of its elements in each dimension.
	From, Shape []int64
	// Pointer is the address of the first element on the rank's device: a CUdeviceptr of the device's primary
	// context, or an address of the process on the CPU machine. It is valid until Close. Use it only within Fill and
	// View.
	Pointer uintptr
	// Host is the same memory as a slice on the CPU machine, and nil on GPUs.
	Host []byte
}

// DType returns the element type.
func (d *DeviceTensor) DType() ir.DType { return d.t.IO().DType }

// Shape returns the global extents.
func (d *DeviceTensor) Shape() []int64 { return slices.Clone(d.t.IO().Shape) }

// String returns the tensor's type: "bf16[4, 8]".
func (d *DeviceTensor) String() string { return d.header().String() }

func (d *DeviceTensor) header() *tensor.Tensor {
	return &tensor.Tensor{DType: d.t.IO().DType, Shape: d.t.IO().Shape}
}

// Write copies a global tensor to the devices. It waits for the copy, at most a minute after ctx ends. If the copy
// fails, the tensor holds nothing.
func (d *DeviceTensor) Write(ctx context.Context, from *Tensor) error {
	if from == nil {
		return fmt.Errorf("%w: a nil tensor is to be written to a device tensor", blocks.ErrInput)
	}
	return d.m.why(ctx, d.t.Write(ctx, from.host()))
}

// Read copies the tensor to the host. It returns a *MismatchError if ranks that should hold copies of the same block
// differ: blocks that a run leaves on the devices are compared here, not when the run ends.
func (d *DeviceTensor) Read(ctx context.Context) (*Tensor, error) {
	t, err := d.t.Read(ctx)
	return (*Tensor)(t), d.m.why(ctx, err)
}

// Blocks lists the blocks of each rank, by rank. Ranks without a block are missing.
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

// Fill lets the caller's own kernels, or another library, fill the tensor. It calls f with the blocks once all
// earlier runs and methods have ended, and no later one begins before f returns. f must write every byte of each
// block, and its work on the devices must have ended when it returns. If f returns an error, Fill returns it and the
// tensor holds nothing. f must not call methods of the tensor that wait, nor runs that use it: they would wait for f.
func (d *DeviceTensor) Fill(ctx context.Context, f func([]DeviceBlock) error) error {
	if f == nil {
		return fmt.Errorf("%w: Fill of a device tensor needs a function", blocks.ErrInput)
	}
	return d.show(ctx, f, d.t.Fill)
}

// View lets the caller's own work read the tensor, as Fill lets it write. Runs and methods that only read the tensor
// may run at the same time. View does not compare blocks that are copies of each other.
func (d *DeviceTensor) View(ctx context.Context, f func([]DeviceBlock) error) error {
	if f == nil {
		return fmt.Errorf("%w: View of a device tensor needs a function", blocks.ErrInput)
	}
	return d.show(ctx, f, d.t.View)
}

// show calls f with the blocks during one use of the tensor, and returns f's error unchanged.
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

// Close frees the memory once the runs and methods that use the tensor have ended. Plans that work in it
// (Model.BindDevice) are unloaded.
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
