package cuda

import (
	"errors"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// put writes values to device memory, fetch reads them; the context is current.
func (s *site) put(at nvlib.Ptr, dt ir.DType, vals []float64) error {
	return s.through(int64(len(vals))*dt.Size(), func(buf nvlib.Ptr, n int64) error {
		tensor.FromFloat64(cabi.Bytes(uintptr(buf), int(n)), vals, dt)
		var args [4]uintptr
		return s.w.drv.Copy(at, buf, n, 0, &args)
	}, nil)
}

func (s *site) fetch(at nvlib.Ptr, dt ir.DType, elems int64) ([]float64, error) {
	vals := make([]float64, elems)
	err := s.through(elems*dt.Size(), func(buf nvlib.Ptr, n int64) error {
		var args [4]uintptr
		return s.w.drv.Copy(buf, at, n, 0, &args)
	}, func(b []byte) { tensor.ToFloat64(vals, b, dt) })
	return vals, err
}

// through has f copy by way of pinned memory, and then is given it.
func (s *site) through(n int64, f func(buf nvlib.Ptr, n int64) error, then func([]byte)) error {
	pinned := s.heaps[device.Pinned]
	buf, err := pinned.take(n)
	if err != nil {
		return err
	}
	err = errors.Join(f(buf, n), s.w.drv.SyncStream(0))
	if err == nil && then != nil {
		then(cabi.Bytes(uintptr(buf), int(n)))
	}
	return errors.Join(err, pinned.give(buf, n))
}

func prepareGemm(d *dev, g gemm) (st *gemmStep, err error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	err = d.bound(func() error {
		st, err = d.newGemm(g)
		return err
	})
	return st, err
}
