package strided

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// CheckCopy returns an error unless src can be copied to dst.
func CheckCopy(dst, src *View) error {
	if dst.DType != src.DType || !slices.Equal(dst.Shape, src.Shape) {
		return fmt.Errorf("%s%v to %s%v", src.DType, src.Shape, dst.DType, dst.Shape)
	}
	if dst.NamesTwice() {
		return fmt.Errorf("the destination contains some element twice")
	}
	if err := CheckDims(Merge(dst, src)); err != nil {
		return err
	}
	if dst.Overlaps(src) && !dst.Same(src) && dst.Bytes() > maxStaged {
		return fmt.Errorf("%w: a copy of %d bytes whose source and destination overlap; copy to another buffer first", device.ErrUnsupported, dst.Bytes())
	}
	return nil
}

// MaxDims is the largest number of dimensions of a copy, after dimensions were merged.
const MaxDims = 8

// maxStaged is the largest size in bytes of a copy between overlapping views. A copy between overlapping views goes
// through a temporary buffer.
const maxStaged = 1 << 30

// CheckDims returns an error if there are more than MaxDims dimensions.
func CheckDims(dims []Dim) error {
	if len(dims) > MaxDims {
		return fmt.Errorf("%w: a copy of %d dimensions, even after merging contiguous ones; at most %d are possible", device.ErrUnsupported, len(dims), MaxDims)
	}
	return nil
}

// Dim is a dimension of a copy, possibly merged from several: its extent, and the strides of destination and source, in
// elements.
type Dim struct{ N, Dst, Src int64 }

// Merge merges adjacent dimensions of two views of one shape if both views are contiguous across them. The innermost
// dimension is last.
func Merge(dst, src *View) []Dim {
	var dims []Dim
	for i, e := range dst.Shape {
		if e == 1 {
			continue
		}
		d := Dim{e, dst.Strides[i], src.Strides[i]}
		if k := len(dims) - 1; k >= 0 && dims[k].Dst == e*d.Dst && dims[k].Src == e*d.Src {
			dims[k] = Dim{dims[k].N * e, d.Dst, d.Src}
			continue
		}
		dims = append(dims, d)
	}
	if len(dims) == 0 {
		dims = []Dim{{1, 1, 1}}
	}
	return dims
}

// WideRow is the smallest length of rows, in bytes, for which a copy engine is efficient.
const WideRow = 512

// ByEngine reports whether a copy engine is efficient for a copy to dst.
func ByEngine(dst *View, dims []Dim) bool {
	in, size := dims[len(dims)-1], dst.DType.Size()
	switch {
	case in.N != 1 && (in.Dst != 1 || in.Src != 1), len(dims) > 2:
		return false
	case len(dims) == 1:
		return true
	}
	return rows(dims[0], in) && in.N*size >= WideRow && dims[0].Dst*size < 1<<31 && dims[0].Src*size < 1<<31
}

// rows reports whether rows do not overlap: for both views, the stride of the dimension out is at least the extent of
// in.
func rows(out, in Dim) bool { return out.Dst >= in.N && out.Src >= in.N }

// Pieces splits a copy into parts of at most the number of bytes most, and calls f for each part.
func Pieces(dst, src *View, most int64, f func(dst, src *View) error) error {
	if dst.Bytes() <= most {
		return f(dst, src)
	}
	d, r := *dst, *src
	d.Shape, d.Strides, r.Strides = nil, nil, nil
	for _, p := range Merge(dst, src) { // the dimensions, merged, without those of extent 1
		d.Shape, d.Strides, r.Strides = append(d.Shape, p.N), append(d.Strides, p.Dst), append(r.Strides, p.Src)
	}
	r.Shape = d.Shape
	rows := max(1, most/(d.Bytes()/d.Shape[0]))
	for lo := int64(0); lo < d.Shape[0]; lo += rows {
		n := min(rows, d.Shape[0]-lo)
		to, from := d.rows(lo, n), r.rows(lo, n)
		if err := Pieces(&to, &from, most, f); err != nil {
			return err
		}
	}
	return nil
}

// CopyProblem returns the copy, with the merged dimensions dims, in the form that package kernels compiles.
func CopyProblem(dst, src *View, dims []Dim) kernels.Problem {
	out, in := kernels.Operand{Addr: dst.Addr, DType: dst.DType}, kernels.Operand{Addr: src.Addr, DType: src.DType}
	for _, d := range dims {
		out.Shape, out.Strides = append(out.Shape, d.N), append(out.Strides, d.Dst)
		in.Shape, in.Strides = append(in.Shape, d.N), append(in.Strides, d.Src)
	}
	return kernels.Computation{Op: device.Copy{Op: ir.OpCopy}, Ins: []kernels.Operand{in}, Out: out}
}

// CopyRects issues copies by copy engines to a stream. A context is current; args is scratch space for arguments.
func CopyRects(drv *nvlib.Driver, list []nvlib.Rect, h nvlib.Stream, args *[4]uintptr) error {
	for _, r := range list {
		var err error
		if r.Height == 1 {
			err = drv.Copy(r.Dst, r.Src, r.Width, h, args)
		} else {
			err = drv.CopyRect(r, h)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
