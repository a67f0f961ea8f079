package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// checkCopy checks that src can be copied to dst.
func checkCopy(dst, src *ref) error {
	if dst.dt != src.dt || !slices.Equal(dst.shape, src.shape) {
		return fmt.Errorf("%s%v to %s%v", src.dt, src.shape, dst.dt, dst.shape)
	}
	if dst.doubles() {
		return fmt.Errorf("the destination names some element twice")
	}
	if err := fewDims(pair(dst, src)); err != nil {
		return err
	}
	if dst.overlaps(src) && !dst.same(src) && dst.bytes() > maxStaged {
		return fmt.Errorf("%w: a copy of %d bytes onto itself; copy to another buffer first", device.ErrUnsupported, dst.bytes())
	}
	return nil
}

// maxDims is the extents that do not merge which copies take.
const maxDims = 8

// maxStaged bounds copies that go through a buffer of their own.
const maxStaged = 1 << 30

// fewDims refuses more extents than copies take.
func fewDims(dims []step2) error {
	if len(dims) > maxDims {
		return fmt.Errorf("%w: a copy of %d dimensions that do not merge; up to %d do", device.ErrUnsupported, len(dims), maxDims)
	}
	return nil
}

// step2 is an extent with the strides of both sides, in elements.
type step2 struct{ n, d, s int64 }

// pair merges the dimensions of two views of one shape where both sides go on
// without a gap; the innermost is last.
func pair(dst, src *ref) []step2 {
	var dims []step2
	for i, e := range dst.shape {
		if e == 1 {
			continue
		}
		d := step2{e, dst.strides[i], src.strides[i]}
		if k := len(dims) - 1; k >= 0 && dims[k].d == e*d.d && dims[k].s == e*d.s {
			dims[k] = step2{dims[k].n * e, d.d, d.s}
			continue
		}
		dims = append(dims, d)
	}
	if len(dims) == 0 {
		dims = []step2{{1, 1, 1}}
	}
	return dims
}

// copy copies src to dst, both checked, in s's order, as if src were read
// before dst is written. The context is current.
func (s *stream) copy(dst, src *ref) error {
	switch {
	case dst.n == 0 || dst.same(src):
		return nil
	case dst.overlaps(src):
		return s.copyThrough(dst, src)
	}
	return s.copyApart(dst, src)
}

// copyThrough copies views that share bytes by way of a scratch buffer, which
// the stream's order keeps from being used twice at a time.
func (s *stream) copyThrough(dst, src *ref) error {
	if s.scratch == nil || s.scratch.bytes < src.bytes() {
		// An older buffer may still be in use: it stays until the world ends.
		m, err := s.dev.alloc(src.bytes(), device.Private)
		if err != nil {
			return err
		}
		s.scratch = m
	}
	tmp := src.in(s.scratch)
	if err := s.copyApart(&tmp, src); err != nil {
		return err
	}
	return s.copyApart(dst, &tmp)
}

// wideRow is the least length in bytes of rows that the copy engines copy well.
const wideRow = 512

// copyApart copies views that share no bytes: by a copy engine what is dense or
// rows of some length, else by a kernel.
func (s *stream) copyApart(dst, src *ref) error {
	if site := s.dev.site; !site.reaches(dst) || !site.reaches(src) {
		err := s.copyAround(dst, src)
		s.led = false
		return err
	}
	drv, size := s.dev.w.drv, dst.dt.Size()
	dims := pair(dst, src)
	in := dims[len(dims)-1]
	if !engineCopies(dst, dims) {
		return s.copyByKernel(dst, src, dims)
	}
	s.led = false
	if len(dims) == 1 {
		return drv.Copy(dst.addr, src.addr, in.n*size, s.h, &s.args)
	}
	return drv.CopyRect(nvlib.Rect{
		Dst: dst.addr, Src: src.addr, DstPitch: dims[0].d * size, SrcPitch: dims[0].s * size,
		Width: in.n * size, Height: dims[0].n,
	}, s.h)
}

// engineCopies reports whether a copy engine does a copy to dst well.
func engineCopies(dst *ref, dims []step2) bool {
	in, size := dims[len(dims)-1], dst.dt.Size()
	switch {
	case in.n != 1 && (in.d != 1 || in.s != 1), len(dims) > 2:
		return false
	case len(dims) == 1:
		return true
	}
	return rows(dims[0], in) && in.n*size >= wideRow && dims[0].d*size < 1<<31 && dims[0].s*size < 1<<31
}

// rows reports whether out steps over whole rows of in, on both sides.
func rows(out, in step2) bool { return out.d >= in.n && out.s >= in.n }

// copyKey tells strided copies apart.
type copyKey struct {
	site     *site
	dst, src nvlib.Ptr
	size     int64 // of an element
	dims     [maxDims]step2
}

// mostCopies bounds the strided copies that a world keeps ready.
const mostCopies = 4096

// copyByKernel copies element by element, by a launch that is kept for the next
// time. The context is current.
func (s *stream) copyByKernel(dst, src *ref, dims []step2) error {
	w := s.dev.w
	key := s.dev.site.keyOf(dst, src, dims)
	launches, ok := w.copies[key]
	if !ok {
		var err error
		if launches, err = s.dev.site.compile(copyProblem(dst, src, dims), nil); err != nil {
			return err
		}
		w.keep(key, launches)
	}
	for _, l := range launches {
		if err := s.kernel(l, closely); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) keyOf(dst, src *ref, dims []step2) copyKey {
	key := copyKey{site: s, dst: dst.addr, src: src.addr, size: dst.dt.Size()}
	copy(key.dims[:], dims)
	return key
}

func (w *world) keep(key copyKey, launches []*nvlib.Launch) {
	if w.copies == nil || len(w.copies) >= mostCopies {
		w.copies = map[copyKey][]*nvlib.Launch{}
	}
	w.copies[key] = launches
}

// PrepareCopy compiles what a copy needs that no copy engine does.
func (d *dev) PrepareCopy(dst, src device.View) error {
	w := d.w
	defer w.exclusive()()
	t, err := d.resolve(dst, true)
	if err != nil {
		return d.errorf("copy: destination: %w", err)
	}
	r, err := d.resolve(src, true)
	if err != nil {
		return d.errorf("copy: source: %w", err)
	}
	if err := checkCopy(&t, &r); err != nil {
		return d.errorf("copy: %w", err)
	}
	if t.n == 0 || t.overlaps(&r) {
		return nil
	}
	return d.prepareCopy(&t, &r)
}

// prepareCopy is PrepareCopy for views that share no bytes. The caller holds the world
// by alone.
func (d *dev) prepareCopy(dst, src *ref) error {
	if !d.site.reaches(dst) || !d.site.reaches(src) {
		return d.prepareAround(dst, src)
	}
	dims := pair(dst, src)
	key := d.site.keyOf(dst, src, dims)
	if _, ready := d.w.copies[key]; ready || engineCopies(dst, dims) {
		return nil
	}
	return d.bound(func() error {
		launches, err := d.site.compileAside(copyProblem(dst, src, dims), nil)
		if err == nil {
			d.w.keep(key, launches)
		}
		return err
	})
}

func copyProblem(dst, src *ref, dims []step2) kernels.Problem {
	out, in := kernels.Operand{Addr: dst.addr, DType: dst.dt}, kernels.Operand{Addr: src.addr, DType: src.dt}
	for _, d := range dims {
		out.Shape, out.Strides = append(out.Shape, d.n), append(out.Strides, d.d)
		in.Shape, in.Strides = append(in.Shape, d.n), append(in.Strides, d.s)
	}
	return kernels.Problem{Op: ir.OpCopy, Ins: []kernels.Operand{in}, Out: out}
}
