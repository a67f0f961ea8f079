package compute

import (
	"encoding/binary"
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// addUser adds the steps of a kernel of the user. The context is current.
func (b *builder) addUser(k *device.Kernel, u *device.UserKernel) error {
	outs, ins, err := device.ResolveUser(k, u, b.Resolve)
	if err != nil {
		return err
	}
	var box *sandbox
	if u.Checked {
		if box, err = b.sandbox(u, ins, outs); err != nil {
			return err
		}
		ins, outs = box.ins, box.outs
	}
	err = b.AddUser(kernels.User{File: u.File, Entry: u.Entry, Code: u.Code,
		Shape:  nvlib.Shape{Grid: extents(u.Grid), Block: extents(u.Block), Shared: uint32(u.Shared)},
		Params: userParams(u, ins, outs)})
	if err != nil {
		return err
	}
	if box != nil {
		return box.compare(u)
	}
	return nil
}

func extents(x [3]int64) [3]uint32 { return [3]uint32{uint32(x[0]), uint32(x[1]), uint32(x[2])} }

// userParams returns the kernel's arguments in binary form: addresses, and numbers of their types.
func userParams(u *device.UserKernel, ins, outs []strided.View) [][]byte {
	var list [][]byte
	for _, p := range u.Params {
		var b []byte
		switch {
		case p.In >= 0:
			b = binary.LittleEndian.AppendUint64(b, uint64(ins[p.In].Addr))
		case p.Out >= 0:
			b = binary.LittleEndian.AppendUint64(b, uint64(outs[p.Out].Addr))
		case p.DType == ir.I32:
			b = binary.LittleEndian.AppendUint32(b, uint32(p.Bits))
		case p.DType == ir.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(math.Float64frombits(p.Bits))))
		default: // i64, or an f64's bits
			b = binary.LittleEndian.AppendUint64(b, p.Bits)
		}
		list = append(list, b)
	}
	return list
}
