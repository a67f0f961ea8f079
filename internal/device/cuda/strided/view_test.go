package strided

import (
	"slices"
	"testing"

	"hocket.example/hocket/ir"
)

// TestBlock checks that blocks are equal, also for views without elements.
func TestBlock(t *testing.T) {
	for _, c := range []struct {
		shape        []int64
		axis, i, n   int
		want         []int64
		at, elements int64
	}{
		{[]int64{4, 6}, 0, 1, 2, []int64{2, 6}, 24, 12},
		{[]int64{4, 6}, 1, 2, 3, []int64{4, 2}, 8, 8},
		{[]int64{4, 0}, 0, 1, 2, []int64{2, 0}, 4, 0}, // an empty view still has an address
		{[]int64{0, 6}, 1, 1, 2, []int64{0, 3}, 6, 0},
		{nil, 0, 1, 2, nil, 0, 0},
	} {
		v := View{DType: ir.F16, Shape: c.shape, Strides: RowMajor(c.shape), Addr: 1 << 20}
		for i, e := range c.shape {
			if i == 0 {
				v.N = 1
			}
			v.N *= e
		}
		b := v.Block(c.axis, c.i, c.n)
		if !slices.Equal(b.Shape, c.want) || int64(b.Addr)-1<<20 != c.at || b.N != c.elements {
			t.Errorf("block %d of %d along %d of %v: %v, %d elements at byte %d; want %v, %d at %d", c.i, c.n, c.axis,
				c.shape, b.Shape, b.N, int64(b.Addr)-1<<20, c.want, c.elements, c.at)
		}
	}
}
