package tensor

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

const (
	npyMagic = "\x93NUMPY"
	// maxNpyHeader is the maximum size of a header in bytes. The limit is much larger than the header of any numeric
	// array.
	maxNpyHeader = 1 << 20
)

// npyDTypes maps the npy type codes that the package reads. The npy format has no code for bf16.
var npyDTypes = map[string]ir.DType{"<f4": ir.F32, "<f2": ir.F16, "<f8": ir.F64, "<i4": ir.I32, "<i8": ir.I64}

// npyHeader is the parsed header of an npy file.
type npyHeader struct {
	dt      ir.DType
	shape   []int64
	fortran bool  // column-major
	data    int64 // offset of the data in the file
}

// ReadNpy reads an npy file (version 1.0, 2.0 or 3.0) of size bytes: f2, f4, f8, i4 or i8,
// little-endian, in C or Fortran order. The file must contain one array and nothing else.
func ReadNpy(r io.ReaderAt, size int64) (*Tensor, error) {
	h, err := readNpyHeader(r, size)
	if err != nil {
		return nil, err
	}
	t, err := New(h.dt, h.shape)
	if err != nil {
		return nil, fmt.Errorf("npy: %w", err)
	}
	if err := h.readData(t, r); err != nil {
		return nil, fmt.Errorf("npy: %w", err)
	}
	return t, nil
}

// ReadNpyFile reads an npy file. Errors name the file.
func ReadNpyFile(path string) (*Tensor, error) {
	f, size, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := ReadNpy(f, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// NpyHeader returns the tensor of an npy file without its elements. Errors name the file.
func NpyHeader(path string) (*Tensor, error) {
	f, size, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, err := readNpyHeader(f, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &Tensor{DType: h.dt, Shape: h.shape}, nil
}

// readNpyInto reads an npy file into t, whose element type and shape it must
// have.
func readNpyInto(t *Tensor, path string) error {
	f, size, err := files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h, err := readNpyHeader(f, size)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if h.dt != t.DType || !slices.Equal(h.shape, t.Shape) {
		return fmt.Errorf("%s: the array is %s, want %s", path, typeText(h.dt.String(), h.shape), t)
	}
	if err := h.readData(t, f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// readNpyHeader reads the header and checks that the data fills the file.
func readNpyHeader(r io.ReaderAt, size int64) (npyHeader, error) {
	text, data, err := npyHeaderText(r, size)
	if err != nil {
		return npyHeader{}, fmt.Errorf("not an npy file: %w", err)
	}
	h, err := parseNpyHeader(text)
	if err != nil {
		return h, fmt.Errorf("npy header: %w", err)
	}
	h.data = data
	want, err := Bytes(h.dt, h.shape)
	if err != nil {
		return h, fmt.Errorf("npy header: %w", err)
	}
	if size-data != want {
		return h, fmt.Errorf("npy: the file has %d bytes of data, want %d for %s", size-data, want, typeText(h.dt.String(), h.shape))
	}
	return h, nil
}

// npyHeaderText returns the text of the header's dictionary, and the offset of the data in the file.
func npyHeaderText(r io.ReaderAt, size int64) (text string, data int64, err error) {
	pre := make([]byte, min(max(size, 0), 12))
	if err := readAt(r, pre, 0); err != nil {
		return "", 0, err
	}
	if len(pre) < 10 || string(pre[:6]) != npyMagic {
		return "", 0, fmt.Errorf("it must start with \\x93NUMPY, a version and the header's length")
	}
	var n int64
	switch major, minor := pre[6], pre[7]; {
	case major == 1 && minor == 0:
		n, data = int64(binary.LittleEndian.Uint16(pre[8:])), 10
	case (major == 2 || major == 3) && minor == 0 && len(pre) == 12:
		n, data = int64(binary.LittleEndian.Uint32(pre[8:])), 12
	default:
		return "", 0, fmt.Errorf("version %d.%d, want 1.0, 2.0 or 3.0", major, minor)
	}
	if n > maxNpyHeader {
		return "", 0, fmt.Errorf("it claims a header of %d bytes; the limit is %d", n, maxNpyHeader)
	}
	if n > size-data {
		return "", 0, fmt.Errorf("it claims a header of %d bytes, but only %d follow", n, size-data)
	}
	header := make([]byte, n)
	if err := readAt(r, header, data); err != nil {
		return "", 0, err
	}
	return string(header), data + n, nil
}

func (h npyHeader) readData(t *Tensor, r io.ReaderAt) error {
	if !h.fortran {
		return readAt(r, t.Data, h.data)
	}
	src := make([]byte, len(t.Data))
	if err := readAt(r, src, h.data); err != nil {
		return err
	}
	fromColumnMajor(t, src)
	return nil
}

// fromColumnMajor stores elements that are in column-major order: the first index varies fastest.
func fromColumnMajor(t *Tensor, src []byte) {
	rank, size := len(t.Shape), t.DType.Size()
	step := make([]int64, rank) // strides of src, in bytes
	s := size
	for i, d := range t.Shape {
		step[i] = s
		s *= d
	}
	at := make([]int64, rank)
	from := int64(0)
	for to := int64(0); to < int64(len(t.Data)); to += size {
		copy(t.Data[to:to+size], src[from:from+size])
		for axis := rank - 1; axis >= 0; axis-- {
			at[axis]++
			from += step[axis]
			if at[axis] < t.Shape[axis] {
				break
			}
			from -= step[axis] * at[axis]
			at[axis] = 0
		}
	}
}
