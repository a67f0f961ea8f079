package cpu

import (
	"fmt"
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/standin"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// prepareUser returns a function that calls the registered Go function in place of a user's kernel.
func (d *dev) prepareUser(k device.Kernel, user *device.UserKernel) (func() error, error) {
	name := user.Name()
	f := standin.Find(name)
	if f == nil {
		return nil, fmt.Errorf("%w: the CPU machine runs no GPU kernels, and no stand-in function is registered for %s: "+
			"register one with hocket.RegisterKernel, or run the program on GPUs", device.ErrUnsupported, name)
	}
	outs, ins, err := device.ResolveUser(&k, user, d.resolve)
	if err != nil {
		return nil, err
	}
	u := *user
	return func() error { return runUser(f, &u, ins, outs) }, nil
}

// runUser calls f with separate tensors, and copies the outputs back.
func runUser(f standin.Func, u *device.UserKernel, ins, outs []ref) error {
	c := standin.Call{Grid: u.Grid, Block: u.Block, Shared: u.Shared, Args: make([]standin.Arg, len(u.Params))}
	for i, p := range u.Params {
		a := &c.Args[i]
		a.Writes = p.Out >= 0
		var err error
		switch {
		case p.In >= 0:
			if a.Tensor, err = tensor.New(ins[p.In].dt, ins[p.In].shape); err == nil {
				gatherBytes(a.Tensor.Data, ins[p.In], 0)
			}
		case p.Out >= 0:
			if a.Tensor, err = tensor.New(outs[p.Out].dt, outs[p.Out].shape); err == nil {
				standin.Poison(a.Tensor)
			}
		case p.DType.IsInt():
			a.Int, a.Float = int64(p.Bits), float64(int64(p.Bits))
		case p.DType == ir.F32:
			a.Float = float64(float32(math.Float64frombits(p.Bits)))
		default:
			a.Float = math.Float64frombits(p.Bits)
		}
		if err != nil {
			return err
		}
	}
	if err := f.Run(u.Name(), &c); err != nil {
		return err
	}
	for i, p := range u.Params {
		if p.Out >= 0 {
			scatterBytes(outs[p.Out], 0, c.Args[i].Tensor.Data)
		}
	}
	return nil
}
