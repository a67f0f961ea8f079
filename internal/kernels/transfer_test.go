package kernels

import (
	"fmt"
	"slices"
	"testing"

	"hocket.example/hocket/ir"
)

// TestTransfer copies with few thread blocks and with many, from and to addresses of any alignment, and checks that no
// other byte changes.
func TestTransfer(t *testing.T) {
	b := newBench(t)
	for _, dt := range []ir.DType{ir.BF16, ir.F32, ir.I64} {
		for _, n := range []int64{1, 7, 8, 4099, 70001} {
			for i, off := range [][2]int64{{0, 0}, {1, 0}, {0, 1}, {2, 6}, {4, 8}, {3, 3}} {
				blocks := []int{1, 3, 1000}[i%3]
				what := fmt.Sprintf("%s[%d] from %d to %d by %d blocks", dt, n, off[0], off[1], blocks)
				v, around := noise(dt, n+16), noise(dt, n+16)
				in, out := b.put(dt, layouts[0], v.vals, n+16), b.put(dt, layouts[0], around.vals, n+16)
				want := slices.Clone(around.vals)
				copy(want[off[1]:off[1]+n], v.vals[off[0]:])
				p := Transfer{In: in.at(0, off[0], n), Out: out.at(0, off[1], n), Blocks: blocks}
				b.add(what, p, func() { same(t, what, b.vals(out), want, 0) })
				l := b.launches[len(b.launches)-1]
				if most := ceil(n*dt.Size(), 2*threads); l.blocks < 1 || int(l.blocks) > blocks || int64(l.blocks) > max(1, most) {
					t.Errorf("%s: %d blocks", what, l.blocks)
				}
			}
		}
	}
	b.run()
}

// TestTransferOfNothing checks that a copy of no elements needs no launch.
func TestTransferOfNothing(t *testing.T) {
	none := Operand{Addr: 256, DType: ir.F32, Shape: []int64{0, 3}, Strides: []int64{3, 1}}
	if l, err := plan(Transfer{In: none, Out: none, Blocks: 4}, Target{}); err != nil || len(l) > 0 {
		t.Errorf("%d launches, %v", len(l), err)
	}
}
