package cuda

import (
	"encoding/binary"
	"fmt"
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// addUser makes the steps of a kernel of the user's. The context is current.
func (l *launch) addUser(k *device.Kernel) error {
	outs, ins, err := device.ResolveUser(k, l.dev.resolve)
	if err != nil {
		return err
	}
	u := k.User
	var box *sandbox
	if u.Checked {
		if box, err = l.sandbox(u, ins, outs); err != nil {
			return err
		}
		ins, outs = box.ins, box.outs
	}
	var st kernels.Step
	site := l.dev.site
	err = site.w.guard.Aside(func() (err error) {
		st, err = site.w.m.opts.Kernels.User(site.target(), kernels.User{File: u.File, Entry: u.Entry, Code: u.Code,
			Shape:  nvlib.Shape{Grid: extents(u.Grid), Block: extents(u.Block), Shared: uint32(u.Shared)},
			Params: userParams(u, ins, outs)})
		return err
	})
	if err != nil {
		return err
	}
	main, err := site.loadUser(st)
	if err != nil {
		return err
	}
	l.name = u.Name()
	l.steps = append(l.steps, &kernelStep{l: main, f: atEnd})
	if box != nil {
		return box.compare(u)
	}
	return nil
}

func extents(x [3]int64) [3]uint32 { return [3]uint32{uint32(x[0]), uint32(x[1]), uint32(x[2])} }

// userParams are arguments as a kernel takes them: addresses, and numbers of their types.
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

// loadUser is load of a kernel whose parameters only its file knows: the driver would read past
// the arguments if it had more of them. The context is current.
func (s *site) loadUser(st kernels.Step) (*nvlib.Launch, error) {
	f, err := s.gpu.Function(st.Key, st.Image, st.Symbol)
	if err != nil {
		return nil, err
	}
	drv := s.w.drv
	if sizes, ok := drv.ParamSizes(f); ok {
		if len(sizes) != len(st.Params) {
			return nil, fmt.Errorf("it takes %d arguments, and gets %d", len(sizes), len(st.Params))
		}
		for i, n := range sizes {
			if n != len(st.Params[i]) {
				return nil, fmt.Errorf("its parameter %d has %d bytes, and gets %d", i, n, len(st.Params[i]))
			}
		}
	}
	b := st.Shape.Block
	if threads, most := int(b[0]*b[1]*b[2]), drv.MostThreads(f); most > 0 && threads > most {
		return nil, fmt.Errorf("a block of %d threads: this kernel runs at most %d on GPU %d", threads, most, s.gpu.Device)
	}
	if err := s.gpu.AllowShared(f, st.Shape.Shared); err != nil {
		return nil, fmt.Errorf("%d bytes of shared memory: %w", st.Shape.Shared, err)
	}
	return nvlib.NewLaunch(f, st.Shape, st.Params), nil
}
