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

// DeviceTensor is a tensor on the devices of a machine. Each rank holds one block, in the layout of a parameter or
// result of a model. Runs of any model of the machine can read parameters from a device tensor (Args.DeviceIn) and
// write results to it (Args.DeviceOut), and its contents do not pass through the host. Use a DeviceTensor for state
// that a program updates, or to pass results to another model. A run copies between the tensor and the run's own
// memory, on the devices.
//
// The tensor's methods, and runs that use the tensor, wait for each other: several readers may use it at the same time,
// but only one writer. If Write or Read fails on a device for a reason other than a shortage of memory, all device
// tensors of the machine with the same number of ranks lose their contents. Their methods, and runs that use them, then
// return an error that reports this.
type DeviceTensor struct {
	t *resident.DeviceTensor
	m *Machine
}

// DeviceBlock describes one rank's block of a DeviceTensor. The block is dense and row-major.
type DeviceBlock struct {
	Rank int
	// From is the position of the block's first element in the global tensor, and Shape is the number of the block's
	// elements in each dimension.
	From, Shape []int64
	// Pointer is the address of the block's first element. On a GPU it is a CUdeviceptr of the rank's device in the
	// device's primary context; on the CPU machine it is an address of the process. The address is valid until Close. Use
	// it only within Fill and View.
	Pointer uintptr
	// Host is the block's memory as a slice on the CPU machine, and nil on GPUs.
	Host []byte
}

// DType returns the type of the elements.
func (d *DeviceTensor) DType() ir.DType { return d.t.IO().DType }

// Shape returns the shape of the global tensor.
func (d *DeviceTensor) Shape() []int64 { return slices.Clone(d.t.IO().Shape) }

// String returns the type of the tensor, for example "bf16[4, 8]".
func (d *DeviceTensor) String() string { return d.header().String() }

func (d *DeviceTensor) header() *tensor.Tensor {
	return &tensor.Tensor{DType: d.t.IO().DType, Shape: d.t.IO().Shape}
}

// Write copies a global tensor to the devices. It returns when the copy has ended, or one minute after ctx has ended.
// If the copy fails, the tensor has no defined contents.
func (d *DeviceTensor) Write(ctx context.Context, from *Tensor) error {
	if from == nil {
		return fmt.Errorf("%w: Write was called with a nil tensor", blocks.ErrInput)
	}
	return d.m.why(ctx, d.t.Write(ctx, from.host()))
}

// Read copies the tensor to the host. It returns a *MismatchError if ranks that hold copies of the same block have
// different values. A run does not compare the copies of a block that it leaves on the devices; Read does.
func (d *DeviceTensor) Read(ctx context.Context) (*Tensor, error) {
	t, err := d.t.Read(ctx)
	return (*Tensor)(t), d.m.why(ctx, err)
}

// Blocks returns the blocks of the tensor in the order of their ranks. It omits ranks that have no block.
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

// Fill lets the caller's own kernels, or another library, write the tensor. It calls f with the blocks after all
// earlier runs and methods that use the tensor have ended; later runs and methods begin after f has returned. f must
// write every byte of each block, and the work that it starts on the devices must have ended when it returns. If f
// returns an error, Fill returns that error and the tensor has no defined contents. f must not call a method of the
// tensor that waits, nor start a run that uses the tensor, because these would wait for f.
func (d *DeviceTensor) Fill(ctx context.Context, f func([]DeviceBlock) error) error {
	if f == nil {
		return fmt.Errorf("%w: Fill was called without a function", blocks.ErrInput)
	}
	return d.show(ctx, f, d.t.Fill)
}

// View lets the caller's own kernels, or another library, read the tensor; see Fill. Runs and methods that only read
// the tensor may execute at the same time. View does not compare blocks that are copies of each other.
func (d *DeviceTensor) View(ctx context.Context, f func([]DeviceBlock) error) error {
	if f == nil {
		return fmt.Errorf("%w: View was called without a function", blocks.ErrInput)
	}
	return d.show(ctx, f, d.t.View)
}

// show leases the tensor for reading or writing, calls f with the blocks, and returns the error of f unchanged.
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

// Close frees the tensor's memory after the runs and methods that use the tensor have ended. It unloads the plans that
// work directly in the tensor (see Model.BindDevice).
func (d *DeviceTensor) Close() error {
	err := d.t.Close()
	c := d.m.plans.Enter()
	defer c.End()
	errs := []error{err}
	for _, l := range c.RemoveUsing(d.t) {
		errs = append(errs, l.Unload("a device tensor that the run uses is closed"))
	}
	return errors.Join(errs...)
}
