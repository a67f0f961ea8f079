package hocket

import (
	"errors"
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
	return public(tensor.New(dt, shape))
}

// FromFloats returns a tensor that contains vals, rounded to dt. The error wraps ErrInput if the number of vals differs
// from the number of elements, or if dt cannot represent a value: for example, 1e300 in f32, and 1.5 or NaN in i32. NaN
// and infinities are valid for floating-point types that have them; results of runs may then contain them, too.
func FromFloats(dt ir.DType, vals []float64, shape ...int64) (*Tensor, error) {
	return public(tensor.OfFloats(dt, vals, shape))
}

// FromInts returns a tensor that contains vals. Floating-point types round them. The error wraps ErrInput as in
// FromFloats, for example for an id of 1<<40 in i32.
func FromInts[E int | int32 | int64](dt ir.DType, vals []E, shape ...int64) (*Tensor, error) {
	return public(tensor.OfInts(dt, vals, shape))
}

// public returns the result of a function that makes a tensor. Its errors wrap ErrInput, unless memory is short.
func public(t *tensor.Tensor, err error) (*Tensor, error) {
	if err != nil && !errors.Is(err, ErrOutOfMemory) {
		err = fmt.Errorf("%w: %w", ErrInput, err)
	}
	return (*Tensor)(t), err
}

// Ints returns the elements as int64. The conversion is exact for integer types; other types are rounded to the nearest
// integer. Ints panics if Data does not have the size that DType and Shape require.
func (t *Tensor) Ints() []int64 {
	h := t.valid()
	out := make([]int64, h.Len())
	tensor.ToInt64(out, h.Data, h.DType)
	return out
}

// Floats returns the elements as float64. The conversion is exact for every dtype except i64. It panics as Ints does.
func (t *Tensor) Floats() []float64 {
	h := t.valid()
	out := make([]float64, h.Len())
	tensor.ToFloat64(out, h.Data, h.DType)
	return out
}

// String returns the type of the tensor, for example "bf16[4, 8]".
func (t *Tensor) String() string { return t.host().String() }

func (t *Tensor) host() *tensor.Tensor { return (*tensor.Tensor)(t) }

// valid is like the method host, but panics if the fields of the tensor contradict each other.
func (t *Tensor) valid() *tensor.Tensor {
	if err := t.host().Check(); err != nil {
		panic("hocket: " + err.Error())
	}
	return t.host()
}
