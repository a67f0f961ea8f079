// Package tensor holds dense host tensors in the element types of the language, with sub-boxes, seeded inputs, and the
// safetensors and npy file formats. It is the only package that converts between element types. Every conversion rounds
// once, to nearest, ties to even.
package tensor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unsafe"

	"hocket.example/hocket/fault"
	"hocket.example/hocket/internal/hostmem"
	"hocket.example/hocket/ir"
)

// MaxBytes is the size of the largest tensor that New allocates: 1 TiB. A larger request is probably a mistake.
const MaxBytes = 1 << 40

// Tensor is a dense host tensor: row-major, no padding, little-endian elements
// on every host. Data has exactly Bytes(DType, Shape) bytes. An empty Shape is a
// scalar of one element; an extent of zero makes the tensor empty.
type Tensor struct {
	DType ir.DType
	Shape []int64
	Data  []byte
}

// New returns a zeroed tensor whose Data is aligned to 8 bytes. It fails on an
// invalid element type, a negative extent, and a size that overflows. It returns
// an error that wraps fault.ErrTooLarge for a size over MaxBytes, and one that
// wraps fault.ErrOutOfMemory if the host has too little free memory.
func New(dt ir.DType, shape []int64) (*Tensor, error) {
	n, err := Bytes(dt, shape)
	if err != nil {
		return nil, err
	}
	if n > MaxBytes || n > math.MaxInt-8 {
		return nil, fmt.Errorf("tensor %s needs %d bytes; the limit is %d: %w", typeText(dt.String(), shape), n,
			int64(MaxBytes), fault.ErrTooLarge)
	}
	if err := hostmem.Check(n); err != nil {
		return nil, fmt.Errorf("tensor %s: %w", typeText(dt.String(), shape), err)
	}
	return &Tensor{DType: dt, Shape: slices.Clone(shape), Data: alignedBytes(int(n))}, nil
}

// alignedBytes allocates bytes aligned to 8, so that typed views never need a copy.
func alignedBytes(n int) []byte {
	if n == 0 {
		return []byte{}
	}
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// Len returns the number of elements in Data.
func (t *Tensor) Len() int64 {
	size := t.DType.Size()
	if size == 0 {
		return 0
	}
	return int64(len(t.Data)) / size
}

// Clone returns a copy of the tensor, aligned as by New.
func (t *Tensor) Clone() *Tensor {
	data := alignedBytes(len(t.Data))
	copy(data, t.Data)
	return &Tensor{DType: t.DType, Shape: slices.Clone(t.Shape), Data: data}
}

// Check returns an error unless DType, Shape and Data are consistent.
func (t *Tensor) Check() error {
	if t == nil {
		return fmt.Errorf("tensor is nil")
	}
	want, err := Bytes(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if int64(len(t.Data)) != want {
		return fmt.Errorf("tensor %s has %d bytes of data, want %d", t, len(t.Data), want)
	}
	return nil
}

// String returns the type of the tensor, not its elements: "bf16[4, 8]".
func (t *Tensor) String() string { return typeText(t.DType.String(), t.Shape) }

// typeText formats an element type and a shape as programs write them.
func typeText(dtype string, shape []int64) string {
	return dtype + shapeText(shape)
}

// shapeText formats a shape. A hostile file may have thousands of extents, so the middle of a long shape is omitted.
func shapeText(shape []int64) string {
	const most = 12
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == most {
			fmt.Fprintf(&b, "… %d more", len(shape)-most)
			break
		}
		fmt.Fprint(&b, d)
	}
	b.WriteByte(']')
	return b.String()
}
