package cuda

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
)

// copy enqueues a copy of src to dst on stream s. Both views have been checked. If they overlap, the result is the
// same as if all of src were read before dst is written. The context is current.
func (s *stream) copy(dst, src *strided.View) error {
	switch {
	case dst.N == 0 || dst.Same(src):
		return nil
	case dst.Overlaps(src):
		return copyThrough(s, dst, src)
	}
	return copyApart(s, dst, src)
}

// copyThrough copies between overlapping views through a scratch buffer. The buffer belongs to one stream, so that no
// two copies use it at the same time.
func copyThrough(s *stream, dst, src *strided.View) error {
	if s.scratch == nil || s.scratch.bytes < src.Bytes() {
		// Earlier work on the stream may still use the previous buffer, which is freed when the world ends.
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

// copyApart copies between views that do not overlap. A copy engine copies dense views, and views with rows of at
// least strided.WideRow bytes. A kernel copies all other views.
func copyApart(s *stream, dst, src *strided.View) error {
	if site := s.dev.site; !site.reaches(dst) || !site.reaches(src) {
		err := copyHostStaged(s, dst, src)
		s.led = false
		return err
	}
	drv, size := s.dev.w.drv, dst.DType.Size()
	dims := strided.Merge(dst, src)
	in := dims[len(dims)-1]
	if !s.dev.site.byEngine(dst, src, dims) {
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

// byEngine reports whether a copy engine copies src to dst.
func (s *site) byEngine(dst, src *strided.View, dims []strided.Dim) bool {
	return strided.ByEngine(dst, dims) && !(s.inHost(dst) && s.inHost(src))
}

// inHost reports whether a view may be in host memory, which is possible only in a hosted world. Between two places in
// host memory, the driver copies on the calling thread, after the stream's earlier work. The caller would then wait for
// peers, for which it may still have work to issue. Therefore a kernel makes copies in host memory.
func (s *site) inHost(v *strided.View) bool {
	return s.w.hosted && v.N > 0 && (v.Mem == nil || v.Mem.Kind() != device.Private)
}

// copyByKernel copies the elements with a kernel. It caches the prepared launch for later copies between the same
// views. The context is current.
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

// PrepareCopy compiles the kernel for a copy that a copy engine cannot do.
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

// prepareCopy does the work of PrepareCopy for views that do not overlap. The caller holds the world exclusively.
func (d *dev) prepareCopy(dst, src *strided.View) error {
	if !d.site.reaches(dst) || !d.site.reaches(src) {
		return d.prepareHostStaged(dst, src)
	}
	dims := strided.Merge(dst, src)
	if _, ready := d.w.copies.Get(d.site, dst, src, dims); ready || d.site.byEngine(dst, src, dims) {
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
