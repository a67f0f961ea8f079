package device

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Dense returns a row-major tensor without gaps at the start of m.
func Dense(m Memory, dt ir.DType, shape []int64) View {
	v := View{Mem: m, DType: dt, Shape: shape, Strides: make([]int64, len(shape))}
	for i, n := len(shape)-1, int64(1); i >= 0; i-- {
		v.Strides[i] = n
		n *= shape[i]
	}
	return v
}

// MayUse returns nil if rank may use a view of the given kind of memory of the rank owner, and otherwise the reason why
// it may not. Memory of peers must be Shared, and may be used only if peers is set.
func MayUse(rank, owner int, kind MemKind, peers bool) error {
	switch {
	case rank == owner:
		return nil
	case !peers:
		return fmt.Errorf("the view is of rank %d's memory, which this operation cannot access", owner)
	case kind == Private:
		return fmt.Errorf("the view is of private memory of rank %d: allocate the memory as shared", owner)
	}
	return nil
}

// Within returns the number of elements of v, or an error if v is not inside a memory of the given size.
func (v View) Within(bytes int64) (elements int64, err error) {
	whole, err := tensor.Bytes(v.DType, v.Shape)
	if err != nil {
		return 0, err
	}
	if len(v.Strides) != len(v.Shape) {
		return 0, fmt.Errorf("the view has %d extents and %d strides", len(v.Shape), len(v.Strides))
	}
	size := v.DType.Size()
	if v.Off < 0 || v.Off > bytes || v.Off%size != 0 {
		return 0, fmt.Errorf("the view of %s begins at byte %d of %d: the offset must be inside and a multiple of %d",
			v.DType, v.Off, bytes, size)
	}
	if whole == 0 {
		return 0, nil
	}
	last, ok := LastElement(v.Shape, v.Strides)
	if !ok || last >= (bytes-v.Off)/size {
		return 0, fmt.Errorf("the view of %s%v with strides %v at byte %d is not inside its memory of %d bytes", v.DType,
			v.Shape, v.Strides, v.Off, bytes)
	}
	return whole / size, nil
}

// LastElement returns the distance, in elements, from the first to the last element of a view with elements. The
// second result is false if a stride is negative or the distance overflows.
func LastElement(shape, strides []int64) (int64, bool) {
	var last uint64
	for i, e := range shape {
		if strides[i] < 0 {
			return 0, false
		}
		hi, lo := bits.Mul64(uint64(e-1), uint64(strides[i]))
		sum, carry := bits.Add64(last, lo, 0)
		if hi != 0 || carry != 0 || int64(sum) < 0 {
			return 0, false
		}
		last = sum
	}
	return int64(last), true
}

// NamesTwice reports whether a view with elements may address some element twice, because a stride is 0 or axes
// overlap.
func NamesTwice(shape, strides []int64) bool {
	type dim struct{ n, stride int64 }
	var dims []dim
	for i, e := range shape {
		if e > 1 {
			dims = append(dims, dim{e, strides[i]})
		}
	}
	slices.SortFunc(dims, func(a, b dim) int { return cmp.Compare(a.stride, b.stride) })
	reach := int64(0)
	for _, d := range dims {
		if d.stride <= reach {
			return true
		}
		reach += (d.n - 1) * d.stride
	}
	return false
}

// Holds returns nil if the given number of dense host bytes is the size of v's elements, and an error otherwise.
func (v View) Holds(bytes int) error {
	if want, _ := tensor.Bytes(v.DType, v.Shape); int64(bytes) != want {
		return fmt.Errorf("there are %d host bytes, but %s%v has %d", bytes, v.DType, v.Shape, want)
	}
	return nil
}

// Resolve calls resolve for each view of a kernel, and returns the results: the machine's representation of the views.
// The argument peers of resolve reports whether the view may be in a peer's memory. Resolve copies slices of k that
// the caller may change before the kernel runs.
func Resolve[R any](k *Kernel, resolve func(v View, peers bool) (R, error)) (outs, ins []R, err error) {
	if k.Op == nil {
		return nil, nil, fmt.Errorf("the kernel has no operation")
	}
	k.Op = own(k.Op)
	want := 1
	switch op := k.Op.(type) {
	case Chain:
		want += len(op.Stored)
	case Ropes:
		want = len(op.Parts)
	case Attention:
		if op.LSE {
			want++
		}
	}
	if len(k.Outs) != want {
		return nil, nil, fmt.Errorf("it has %d results, but needs %d", len(k.Outs), want)
	}
	outs = make([]R, len(k.Outs))
	for i, v := range k.Outs {
		v = v.own()
		name := "result"
		if want > 1 {
			name = fmt.Sprintf("result %d", i)
		}
		if outs[i], err = resolve(v, false); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		if v.Elements() > 0 && NamesTwice(v.Shape, v.Strides) {
			return nil, nil, fmt.Errorf("%s: the view contains some element twice", name)
		}
	}
	ins = make([]R, len(k.Ins))
	for i, v := range k.Ins {
		if ins[i], err = resolve(v.own(), k.Reaches()); err != nil {
			return nil, nil, fmt.Errorf("operand %d: %w", i, err)
		}
	}
	return outs, ins, nil
}

// ResolveUser is Resolve for a user's kernel.
func ResolveUser[R any](k *Kernel, u *UserKernel, resolve func(v View, peers bool) (R, error)) (outs, ins []R,
	err error) {
	for i, p := range u.Params {
		if p.In >= len(k.Ins) || p.Out >= len(k.Outs) {
			return nil, nil, fmt.Errorf("argument %d is operand %d of %d, or result %d of %d", i, p.In, len(k.Ins), p.Out, len(k.Outs))
		}
	}
	if len(k.Outs) == 0 {
		return nil, nil, fmt.Errorf("it has no result")
	}
	list := func(what string, views []View) ([]R, error) {
		out := make([]R, len(views))
		for i, v := range views {
			if v = v.own(); !v.dense() {
				return nil, fmt.Errorf("%s %d has gaps, but kernels receive no strides: copy it to a dense tensor first", what, i)
			}
			var err error
			if out[i], err = resolve(v, false); err != nil {
				return nil, fmt.Errorf("%s %d: %w", what, i, err)
			}
		}
		return out, nil
	}
	if outs, err = list("result", k.Outs); err == nil {
		ins, err = list("operand", k.Ins)
	}
	return outs, ins, err
}

// dense reports whether v's elements are in row-major order without gaps.
func (v View) dense() bool {
	want := int64(1)
	for i := len(v.Shape) - 1; i >= 0 && i < len(v.Strides); i-- {
		if v.Shape[i] != 1 && v.Strides[i] != want {
			return v.Elements() == 0
		}
		want *= v.Shape[i]
	}
	return true
}

// own returns v with its slices copied.
func (v View) own() View {
	v.Shape, v.Strides = slices.Clone(v.Shape), slices.Clone(v.Strides)
	return v
}
