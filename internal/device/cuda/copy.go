package cuda

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
)

// copy copies src to dst, both checked, in s's order, as if src were read
// before dst is written. The context is current.
func (s *stream) copy(dst, src *strided.View) error {
	switch {
	case dst.N == 0 || dst.Same(src):
		return nil
	case dst.Overlaps(src):
		return copyThrough(s, dst, src)
	}
	return copyApart(s, dst, src)
}

// copyThrough copies views that share bytes by way of a scratch buffer, which
// the stream's order keeps from being used twice at a time.
func copyThrough(s *stream, dst, src *strided.View) error {
	if s.scratch == nil || s.scratch.bytes < src.Bytes() {
		// An older buffer may still be in use: it stays until the world ends.
		m, err := s.dev.alloc(src.Bytes(), device.Private)
		if err != nil {
			return err
		}
		s.scratch = m
	}
	tmp := src.In(s.scratch, s.scratch.addr)
	if err := copyApart(s, &tmp, src); err != nil {
		return err
	}
	return copyApart(s, dst, &tmp)
}

// copyApart copies between views that do not overlap. A copy engine copies dense views and rows of sufficient length;
// a kernel copies the rest.
func copyApart(s *stream, dst, src *strided.View) error {
	if site := s.dev.site; !site.reaches(dst) || !site.reaches(src) {
		err := copyHostStaged(s, dst, src)
		s.led = false
		return err
	}
	drv, size := s.dev.w.drv, dst.DType.Size()
	dims := strided.Merge(dst, src)
	in := dims[len(dims)-1]
	if !strided.ByEngine(dst, dims) {
		return copyByKernel(s, dst, src, dims)
	}
	s.led = false
	if len(dims) == 1 {
		return drv.Copy(dst.Addr, src.Addr, in.N*size, s.h, &s.args)
	}
	return drv.CopyRect(nvlib.Rect{
		Dst: dst.Addr, Src: src.Addr, DstPitch: dims[0].Dst * size, SrcPitch: dims[0].Src * size,
		Width: in.N * size, Height: dims[0].N,
	}, s.h)
}

// copyByKernel copies element by element, by a launch that is kept for the next
// time. The context is current.
func copyByKernel(s *stream, dst, src *strided.View, dims []strided.Dim) error {
	w := s.dev.w
	launches, ok := w.copies.Get(s.dev.site, dst, src, dims)
	if !ok {
		var err error
		if launches, err = s.dev.site.compile(strided.CopyProblem(dst, src, dims), nil); err != nil {
			return err
		}
		w.copies.Keep(s.dev.site, dst, src, dims, launches)
	}
	for _, l := range launches {
		if err := s.kernel(l, closely); err != nil {
			return err
		}
	}
	return nil
}

// PrepareCopy compiles what a copy needs that no copy engine does.
func (d *dev) PrepareCopy(dst, src device.View) error {
	w := d.w
	defer w.guard.Exclusive()()
	t, err := d.resolve(dst, true)
	if err != nil {
		return d.errorf("copy: destination: %w", err)
	}
	r, err := d.resolve(src, true)
	if err != nil {
		return d.errorf("copy: source: %w", err)
	}
	if err := strided.CheckCopy(&t, &r); err != nil {
		return d.errorf("copy: %w", err)
	}
	if t.N == 0 || t.Overlaps(&r) {
		return nil
	}
	return d.prepareCopy(&t, &r)
}

// prepareCopy is PrepareCopy for views that share no bytes. The caller holds the world
// exclusively.
func (d *dev) prepareCopy(dst, src *strided.View) error {
	if !d.site.reaches(dst) || !d.site.reaches(src) {
		return d.prepareHostStaged(dst, src)
	}
	dims := strided.Merge(dst, src)
	if _, ready := d.w.copies.Get(d.site, dst, src, dims); ready || strided.ByEngine(dst, dims) {
		return nil
	}
	return d.bound(func() error {
		launches, err := d.site.compileAside(strided.CopyProblem(dst, src, dims), nil)
		if err == nil {
			d.w.copies.Keep(d.site, dst, src, dims, launches)
		}
		return err
	})
}
