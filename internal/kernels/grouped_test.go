package kernels

import (
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestGrouped compares grouped linears with the CPU machine: groups without rows, with fewer rows than a tile, and with
// several tiles.
func TestGrouped(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, dt := range types() {
		for j, c := range []struct {
			rows, n, k int64
			counts     []float64
		}{{9, 5, 7, []float64{3, 0, 4}}, {200, 70, 40, []float64{0, 130, 1, 64}}, {70, 64, 96, []float64{70}},
			{5, 8, 16, []float64{0, 0}},
			{6, 3, 0, []float64{2, 2}}} {
			x, w := noise(dt, c.rows, c.k), noise(dt, int64(len(c.counts)), c.n, c.k)
			counts := values{[]ir.DType{ir.I32, ir.I64}[(i+j)%2], []int64{int64(len(c.counts))}, c.counts}
			for _, l := range layouts[:3] {
				// These results are sums of many terms, added in another order.
				slack := float64(c.k) * max(1, 4*unit(ir.F32)/max(unit(dt), 0x1p-52))
				r.compare(device.Kernel{Op: device.GroupedLinear{}}, l, slack, dt, []int64{c.rows, c.n}, x, w, counts)
			}
		}
	}
	r.run()
}

// TestGroupedFault checks that invalid counts are reported.
func TestGroupedFault(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, dt := range []ir.DType{ir.F32, ir.BF16} {
		for _, bad := range []float64{-1, 5} {
			word := b.alloc(FaultBytes)
			clear(b.mem[word-memoryAt:])
			put := func(dt ir.DType, shape ...int64) Operand {
				return b.put(dt, layouts[0], noise(dt, shape...).vals, shape...)
			}
			b.add("grouped_linear", Computation{Op: device.GroupedLinear{}, Out: b.room(dt, layouts[0], 6, 64),
				Fault: word, Tag: 5,
				Ins: []Operand{put(dt, 6, 64), put(dt, 2, 64, 64), b.put(ir.I32, layouts[0], []float64{2, bad}, 2)}},
				func() {
					f, ok := ReadFault(b.mem[word-memoryAt:])
					if want := (Fault{FaultGroups, 5, [3]int64{int64(bad), 6, 1}}); !ok || f != want ||
						!strings.Contains(f.String(), "element 1 of the counts") {
						t.Errorf("fault %v, %v; want %v", f, ok, want)
					}
				})
		}
	}
	b.run()
}
