package hocket

import (
	"fmt"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Tensor is a dense tensor in host memory. Its elements are in row-major order and little-endian. A Tensor that is an
// input or output of a model is global: every dimension has its full extent.
type Tensor struct {
	DType ir.DType
	Shape []int64
	Data  []byte
}

// NewTensor returns a tensor filled with zeros. The error wraps ErrInput if the type or the shape is invalid, and
// ErrOutOfMemory if the host has too little free memory; the latter holds for all functions that make a Tensor.
func NewTensor(dt ir.DType, shape ...int64) (*Tensor, error) {
	t, err := tensor.New(dt, shape)
	if err != nil {
		return nil, err
	}
	return (*Tensor)(t), nil
}

// FromFloats returns a tensor that contains vals, rounded to dt. The error wraps ErrInput if the number of vals is not
// that of the elements.
func FromFloats(dt ir.DType, vals []float64, shape ...int64) (*Tensor, error) {
	t, err := tensor.New(dt, shape)
	if err != nil {
		return nil, err
	}
	if int64(len(vals)) != t.Len() {
		return nil, errShape(len(vals), t)
	}
	tensor.FromFloat64(t.Data, vals, dt)
	return (*Tensor)(t), nil
}

// FromInts returns a tensor that contains vals. Floating-point types round them. The error wraps ErrInput as in
// FromFloats, and if dt cannot represent a value: an id of 1<<40, for example, does not fit an i32.
func FromInts[E int | int32 | int64](dt ir.DType, vals []E, shape ...int64) (*Tensor, error) {
	t, err := tensor.New(dt, shape)
	if err != nil {
		return nil, err
	}
	if int64(len(vals)) != t.Len() {
		return nil, errShape(len(vals), t)
	}
	for i, v := range vals {
		if dt == ir.I32 && int64(v) != int64(int32(v)) {
			return nil, fmt.Errorf("%w: element %d is %d, which i32 cannot represent", ErrInput, i, v)
		}
		t.SetInt64(int64(i), int64(v))
	}
	return (*Tensor)(t), nil
}

// Ints returns the elements as int64. The conversion is exact for integer types; other types are rounded to the nearest
// integer.
func (t *Tensor) Ints() []int64 {
	h := t.host()
	out := make([]int64, h.Len())
	tensor.ToInt64(out, h.Data, h.DType)
	return out
}

// Floats returns the elements as float64. The conversion is exact for every dtype except i64.
func (t *Tensor) Floats() []float64 {
	h := t.host()
	out := make([]float64, h.Len())
	tensor.ToFloat64(out, h.Data, h.DType)
	return out
}

// String returns the type of the tensor, for example "bf16[4, 8]".
func (t *Tensor) String() string { return t.host().String() }

func (t *Tensor) host() *tensor.Tensor { return (*tensor.Tensor)(t) }

func errShape(n int, t *tensor.Tensor) error {
	return fmt.Errorf("%w: %d numbers are given for %s, which has %d elements", ErrInput, n, t, t.Len())
}
