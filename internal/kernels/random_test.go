package kernels

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// scattered is a layout with the axes in a random order, and with random gaps.
func scattered(rng *rand.Rand) layout {
	gaps, order := rng.Perm(9), rng.Perm(9)
	spread := rng.IntN(2)
	return layout{fmt.Sprintf("axes %v with gaps %v", order, gaps), func(shape []int64) ([]int64, int64) {
		strides, step := make([]int64, len(shape)), int64(1)
		for _, d := range order {
			if d >= len(shape) {
				continue
			}
			strides[d] = step
			step = step*max(shape[d], 1) + int64(gaps[d]*spread)*8
		}
		return strides, int64(8 * gaps[8])
	}}
}

// TestRandom runs operations on random shapes in random layouts.
func TestRandom(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(4, 2))
	r := newTrial(t)
	cases := 200
	if testing.Short() {
		cases = 40
	}
	for range cases {
		var shape []int64
		for range rng.IntN(6) {
			shape = append(shape, []int64{1, 2, 3, 4, 5, 8, 16, 17}[rng.IntN(8)])
		}
		dt := types()[rng.IntN(len(types()))]
		l := scattered(rng)
		x, y := noise(dt, shape...), noise(dt, shape...)
		slices.Reverse(y.vals)
		switch rng.IntN(5) {
		case 0:
			r.compare(device.Kernel{Op: device.Copy{Op: ir.OpCopy}}, l, 0, dt, shape, x)
		case 1:
			r.compare(device.Kernel{Op: device.Elementwise{Op: ir.OpSub}}, l, 0, dt, shape, x, y)
		case 2:
			r.compare(device.Kernel{Op: device.ReduceOperands{Red: ir.Max}}, l, 0, dt, shape, x, y)
		case 3:
			to := types()[rng.IntN(len(types()))]
			r.compare(device.Kernel{Op: device.Cast{}}, l, 0, to, shape, x)
		default:
			var axes []int
			var kept []int64
			terms := 1.0
			for d, n := range shape {
				if rng.IntN(2) == 0 {
					axes, terms = append(axes, d), terms*float64(n)
					continue
				}
				kept = append(kept, n)
			}
			slack := 1 + terms*unit(dt.Accum())/max(unit(dt), 0x1p-60)
			r.compare(device.Kernel{Op: device.ReduceAxes{Op: ir.OpSum, Axes: axes}}, l, slack, dt, kept, x)
		}
	}
	r.run()
}

// TestSumsOfColumns reduces dimensions whose elements are not contiguous. In such reductions several threads compute
// each result, so that a GPU is busy although there are few results.
func TestSumsOfColumns(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	sum := device.ReduceAxes{Op: ir.OpSum, Axes: []int{0}}
	for _, rows := range []int64{31, 32, 33, 1000, 1025} {
		for _, dt := range []ir.DType{ir.F32, ir.BF16, ir.I32} {
			slack := 1 + float64(rows)*unit(dt.Accum())/max(unit(dt), 0x1p-60)
			x := noise(dt, rows, 3)
			r.compare(device.Kernel{Op: sum}, layouts[0], slack, dt, []int64{3}, x)
			r.compare(device.Kernel{Op: device.ReduceAxes{Op: ir.OpMax, Axes: []int{0}}}, layouts[0], 0, dt, []int64{3}, x)
		}
	}
	r.run()
	scratch := func(int64, bool) (nvlib.Ptr, error) { return 1 << 20, nil }
	l, err := plan(Computation{Op: sum, Ins: []Operand{op(ir.F32, 512, 1024)}, Out: op(ir.F32, 1024)}, Target{Scratch: scratch})
	if err != nil || len(l) != 2 || l[0].blocks < 64 {
		t.Errorf("sums of 1024 columns of 512 rows: %v, %v", l, err)
	}
}

// TestCrossed copies between different random layouts.
func TestCrossed(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	b := newBench(t)
	tiles := 0
	for range 60 {
		var shape []int64
		for range 1 + rng.IntN(3) {
			shape = append(shape, 1+rng.Int64N(70))
		}
		dt := []ir.DType{ir.F16, ir.I32, ir.F64}[rng.IntN(3)]
		v, from, to := noise(dt, shape...), scattered(rng), scattered(rng)
		in, out := b.put(dt, from, v.vals, shape...), b.room(dt, to, shape...)
		what := fmt.Sprintf("%s%v from %s to %s", dt, shape, from.name, to.name)
		b.add(what, Computation{Op: device.Copy{Op: ir.OpCopy}, Ins: []Operand{in}, Out: out}, func() { same(t, what, b.vals(out), v.vals, 0) })
		if strings.Contains(b.launches[len(b.launches)-1].code.symbol, "transpose") {
			tiles++
		}
	}
	if tiles < 10 {
		t.Errorf("only %d of 60 copies used tiles", tiles)
	}
	b.run()
}

// TestLargeGrids checks the code for more items than a grid has threads, and for more items than 32 bits can count. The
// results must be the same as those of the code for few items.
func TestLargeGrids(t *testing.T) {
	b := newBench(t)
	x := noise(ir.F32, 3, 4000)
	in := b.put(ir.F32, layouts[1], x.vals, 3, 4000)
	for i, index := range []string{"u32", "u64"} {
		out := b.room(ir.F32, layouts[0], 3, 4000)
		b.add(index, Computation{Op: device.Elementwise{Op: ir.OpNeg}, Ins: []Operand{in}, Out: out}, func() {
			want := slices.Clone(x.vals)
			for i := range want {
				want[i] = -want[i]
			}
			same(t, index, b.vals(out), want, 0)
		})
		l := &b.launches[len(b.launches)-1]
		if len(b.launches) != i+1 || l.blocks < 3 {
			t.Fatalf("%d launches, %d blocks", len(b.launches), l.blocks)
		}
		l.blocks = 2
		l.code.symbol = strings.ReplaceAll(l.code.symbol, "u32", index)
		l.code.body = strings.ReplaceAll(l.code.body, "u32", index)
	}
	b.run()
}
