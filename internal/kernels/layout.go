package kernels

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// axis is a dimension of several operands: its extent, and the stride in elements of each operand along it.
type axis struct {
	n int64
	s []int64
}

// rankMost is the largest number of dimensions, after merging, that kernels support.
const rankMost = 8

// shared returns the dimensions of a shape as axes: it sorts them by the strides of the first operand, largest first,
// removes extents of 1, and merges neighbours that form one dimension in every operand.
func shared(shape []int64, strides ...[]int64) []axis {
	var axes []axis
	for d, n := range shape {
		if n == 1 {
			continue
		}
		a := axis{n, make([]int64, len(strides))}
		for o := range strides {
			a.s[o] = strides[o][d]
		}
		axes = append(axes, a)
	}
	slices.SortStableFunc(axes, func(a, b axis) int { return slices.CompareFunc(b.s, a.s, cmp.Compare) })
	merged := axes[:0]
	for _, a := range axes {
		if k := len(merged) - 1; k >= 0 && continues(merged[k], a) {
			merged[k] = axis{merged[k].n * a.n, a.s}
			continue
		}
		merged = append(merged, a)
	}
	return merged
}

// continues reports whether the axes outer and inner form one dimension in every operand.
func continues(outer, inner axis) bool {
	for o := range outer.s {
		if outer.s[o] != inner.n*inner.s[o] {
			return false
		}
	}
	return true
}

// padded prepends axes of extent 1 until their number is one for which the sources are instantiated.
func padded(axes []axis, operands int) ([]axis, error) {
	for _, rank := range []int{1, 2, 3, 4, rankMost} {
		if rank < len(axes) {
			continue
		}
		for len(axes) < rank {
			axes = append([]axis{{1, make([]int64, operands)}}, axes...)
		}
		return axes, nil
	}
	return nil, fmt.Errorf("%w: %d dimensions that cannot be merged; at most %d are supported", device.ErrUnsupported,
		len(axes), rankMost)
}

// extents returns the extents of the axes; column returns the strides of operand o.
func extents(axes []axis) []int64 {
	out := make([]int64, len(axes))
	for i, a := range axes {
		out[i] = a.n
	}
	return out
}

func column(axes []axis, o int) []int64 {
	out := make([]int64, len(axes))
	for i, a := range axes {
		out[i] = a.s[o]
	}
	return out
}

// rowMajor returns the strides of a dense tensor in row-major order.
func rowMajor(shape []int64) []int64 {
	strides, step := make([]int64, len(shape)), int64(1)
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = step
		step *= max(shape[d], 1)
	}
	return strides
}

// at returns a part of o: count indices of axis d, beginning with i.
func (o Operand) at(d int, i, count int64) Operand {
	o.Addr += nvlib.Ptr(i * o.Strides[d] * o.DType.Size())
	o.Shape = slices.Clone(o.Shape)
	o.Shape[d] = count
	return o
}

// without returns the part of o at index i of axis d, as an operand without that axis.
func (o Operand) without(d int, i int64) Operand {
	o = o.at(d, i, 1)
	o.Shape = slices.Delete(o.Shape, d, d+1)
	o.Strides = slices.Delete(slices.Clone(o.Strides), d, d+1)
	return o
}

// dense returns an operand at the address addr with the shape of o and row-major strides.
func (o Operand) dense(addr nvlib.Ptr) Operand {
	o.Addr, o.Strides = addr, rowMajor(o.Shape)
	return o
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
