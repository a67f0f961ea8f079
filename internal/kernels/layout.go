package kernels

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// axis is a dimension that several operands share: an extent, and the stride of
// each in elements.
type axis struct {
	n int64
	s []int64
}

// rankMost is the most dimensions that kernels walk over, after merging.
const rankMost = 8

// shared brings dimensions of one shape into an order that is good for the
// first operand, largest stride first, drops extents of 1 and merges neighbours
// that continue each other in every operand.
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

// continues reports whether outer and inner are one dimension in each operand.
func continues(outer, inner axis) bool {
	for o := range outer.s {
		if outer.s[o] != inner.n*inner.s[o] {
			return false
		}
	}
	return true
}

// padded puts extents of 1 in front until the number of dimensions is one that
// sources are instantiated for.
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
	return nil, fmt.Errorf("%w: %d dimensions that do not merge, at most %d", device.ErrUnsupported, len(axes), rankMost)
}

// extents lists the axes' extents, column the strides of operand o.
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

// rowMajor returns the strides of a dense tensor.
func rowMajor(shape []int64) []int64 {
	strides, step := make([]int64, len(shape)), int64(1)
	for d := len(shape) - 1; d >= 0; d-- {
		strides[d] = step
		step *= max(shape[d], 1)
	}
	return strides
}

// at is o from index i of axis d on, count of them.
func (o Operand) at(d int, i, count int64) Operand {
	o.Addr += nvlib.Ptr(i * o.Strides[d] * o.DType.Size())
	o.Shape = slices.Clone(o.Shape)
	o.Shape[d] = count
	return o
}

// without is o at index i of axis d, which disappears.
func (o Operand) without(d int, i int64) Operand {
	o = o.at(d, i, 1)
	o.Shape = slices.Delete(o.Shape, d, d+1)
	o.Strides = slices.Delete(slices.Clone(o.Strides), d, d+1)
	return o
}

// dense is o's elements in row-major order in memory of their own at addr.
func (o Operand) dense(addr nvlib.Ptr) Operand {
	o.Addr, o.Strides = addr, rowMajor(o.Shape)
	return o
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
