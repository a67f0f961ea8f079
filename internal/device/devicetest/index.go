package devicetest

import (
	"fmt"
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// testIota counts along each axis.
func testIota(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, shape := range [][]int64{{1}, {300}, {2, 3}, {4, 0}, {3, 5, 2}} {
			for axis := range shape {
				for _, first := range []int64{0, 4} {
					var want []float64
					inner := elements(shape[axis+1:])
					for i := range elements(shape) {
						want = append(want, tensor.Round(dt, float64(-3+first+i/inner%shape[axis])))
					}
					k := device.Kernel{Op: device.Iota{Axis: axis, Start: ir.Whole(-3), First: first}}
					r.exactly(fmt.Sprintf("iota of %s%v along %d", dt, shape, axis), k, l, dt, shape, want)
				}
			}
		}
	})
	if r.w == nil {
		r.open(1)
	}
	half := device.Kernel{Op: device.Iota{Start: ir.Real(0.5)}, Outs: []device.View{r.empty(0, ir.I32, 3)}}
	_, err := r.w.Device(0).Prepare(half)
	r.refused("an integer from 0.5 on", err)
}

// testSorted sorts rows with equal elements, in both directions.
func testSorted(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		x := given(dt, []int64{2, 5}, 3, -1, 3, 7, -1, 0, 0, 0, -2, 1)
		for _, c := range []struct {
			op   ir.Op
			to   ir.DType
			k    int64
			want []float64
		}{
			{ir.OpTopK, dt, 3, []float64{7, 3, 3, 1, 0, 0}}, {ir.OpTopK, dt, 0, nil},
			{ir.OpArgTopK, ir.I32, 4, []float64{3, 0, 2, 1, 4, 0, 1, 2}},
			{ir.OpArgsort, ir.I32, 5, []float64{1, 4, 0, 2, 3, 3, 0, 1, 2, 4}},
		} {
			r.exactly(fmt.Sprintf("%s of %s", c.op, dt), device.Kernel{Op: device.Sorted{Op: c.op}}, l, c.to,
				[]int64{2, c.k}, c.want, x)
		}
		const n = 700 // the permutation 3·i mod n, so that the value i is at index 467·i mod n
		long, want := host{dt, []int64{n}, nil}, []float64(nil)
		for i := range int64(n) {
			long.vals = append(long.vals, float64(3*i%n)/4-80)
			if dt.IsInt() {
				long.vals[i] = float64(3 * i % n)
			}
			want = append(want, float64(467*i%n))
		}
		if dt.Size() > 2 { // 2-byte types cannot represent so many distinct numbers
			r.exactly("argsort of many", device.Kernel{Op: device.Sorted{Op: ir.OpArgsort}}, l, ir.I32, []int64{n},
				want, long)
		}
		if !dt.IsInt() {
			odd := given(dt, []int64{4}, 1, math.NaN(), math.Inf(1), math.Inf(-1))
			r.exactly("topk of a NaN", device.Kernel{Op: device.Sorted{Op: ir.OpArgTopK}}, l, ir.I32, []int64{4},
				[]float64{1, 2, 0, 3}, odd)
			r.exactly("argsort of a NaN", device.Kernel{Op: device.Sorted{Op: ir.OpArgsort}}, l, ir.I32, []int64{4},
				[]float64{3, 0, 2, 1}, odd)
		}
	})
	if r.w == nil {
		r.open(1)
	}
	for _, out := range []device.View{r.empty(0, ir.I32, 4), r.empty(0, ir.F32, 2)} {
		_, err := r.w.Device(0).Prepare(device.Kernel{Op: device.Sorted{Op: ir.OpArgTopK},
			Ins: []device.View{r.empty(0, ir.F32, 3)}, Outs: []device.View{out}})
		r.refused("argtopk of 3 elements", err)
	}
}

// testTakeAlong selects elements by their indices; an invalid index must be reported as a fault.
func testTakeAlong(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		x := given(dt, []int64{2, 3}, 1, 2, 3, 4, 5, 6)
		for _, to := range []ir.DType{ir.I32, ir.I64} {
			at := given(to, []int64{2, 4}, 2, 2, 0, 1, 0, 1, 2, 0)
			r.exactly("take_along", device.Kernel{Op: device.TakeAlong{}}, l, dt, at.shape,
				[]float64{3, 3, 1, 2, 4, 5, 6, 4}, x, at)
		}
	})
	for _, at := range []float64{-1, 2} {
		r.open(1)
		k := device.Kernel{Op: device.TakeAlong{}, Outs: []device.View{r.empty(0, ir.F32, 2)},
			Ins: []device.View{r.put(0, given(ir.F32, []int64{2}, 7, 8)), r.put(0, given(ir.I32, []int64{2}, 0, at))}}
		r.launch(r.mainOf(0), 0, k)
		r.faults(fmt.Sprintf("index %v of 2 elements", at), "element 1 of the indices")
	}
}

// testBincount counts ids; ids outside the result must be ignored.
func testBincount(r *rig) {
	r.open(1)
	for _, dt := range []ir.DType{ir.I32, ir.I64} {
		for _, l := range layouts {
			ids := given(dt, []int64{2, 3}, 1, 3, 1, -1, 4, 0)
			r.exactly("bincount", device.Kernel{Op: device.Bincount{}}, l, ir.I32, []int64{4}, []float64{1, 2, 0, 1},
				ids)
			r.exactly("bincount of nothing", device.Kernel{Op: device.Bincount{}}, l, ir.I32, []int64{2},
				[]float64{0, 0}, given(dt, []int64{0}))
		}
	}
}

// testGrouped multiplies groups of rows by different weights, some of which are on other ranks; invalid counts must be
// reported as a fault.
func testGrouped(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, c := range []struct{ rows, n, k int64 }{{7, 3, 5}, {140, 70, 32}, {0, 3, 2}} {
			const experts = 4
			rng := seeded(dt, c)
			x, w := signs(rng, dt, c.rows, c.k), signs(rng, dt, experts, c.n, c.k)
			for _, counts := range [][]float64{{1, 0, 2, 3}, {0, 0, 0, 0}, {0, 7, 0, 0}, {2, 70, 5, 60}} {
				if counts[0]+counts[1]+counts[2]+counts[3] > float64(c.rows) {
					continue
				}
				for _, part := range [][2]int64{{0, experts}, {1, 3}} {
					want := make([]float64, c.rows*c.n)
					row := int64(0)
					for e := range int64(experts) {
						for range int64(counts[e]) {
							for q := range c.n {
								for k := range c.k {
									if e >= part[0] && e < part[1] {
										want[row*c.n+q] += x.vals[row*c.k+k] * w.vals[(e*c.n+q)*c.k+k]
									}
								}
							}
							row++
						}
					}
					own := host{dt, []int64{part[1] - part[0], c.n, c.k}, w.vals[part[0]*c.n*c.k : part[1]*c.n*c.k]}
					r.exactly(fmt.Sprintf("groups %v of %d rows, experts %v", counts, c.rows, part),
						device.Kernel{Op: device.GroupedLinear{First: part[0]}}, l, dt,
						[]int64{c.rows, c.n}, want, x, own,
						given([]ir.DType{ir.I32, ir.I64}[part[0]], []int64{experts}, counts...))
				}
			}
		}
	})
	for _, counts := range [][]float64{{1, -1}, {1, 3}} {
		r.open(1)
		k := device.Kernel{Op: device.GroupedLinear{}, Outs: []device.View{r.empty(0, ir.F32, 3, 2)},
			Ins: []device.View{
				r.put(0, random(seeded("x"), ir.F32, 3, 4)), r.put(0, random(seeded("w"), ir.F32, 2, 2, 4)),
				r.put(0, given(ir.I32, []int64{2}, counts...))}}
		r.launch(r.mainOf(0), 0, k)
		r.faults(fmt.Sprintf("counts %v of 3 rows", counts), "element 1 of the counts")
	}
}

// testIndexAdd adds rows by ids, some of which belong to rows on other ranks; invalid ids must be reported as a fault.
func testIndexAdd(r *rig) {
	r.each(func(r *rig, dt ir.DType, l layout) {
		for _, c := range []struct{ n, d int64 }{{9, 3}, {300, 2}, {5, 1030}, {0, 4}} {
			rng := seeded(dt, c)
			x := signs(rng, dt, c.n, 1, c.d)
			ids := given([]ir.DType{ir.I32, ir.I64}[c.d%2], []int64{c.n, 1})
			for range c.n {
				ids.vals = append(ids.vals, float64(rng.IntN(8)-1))
			}
			for _, part := range [][2]int64{{0, 7}, {2, 3}, {3, 0}} {
				want := make([]float64, part[1]*c.d)
				for i, id := range ids.vals {
					row := int64(id) - part[0]
					for j := range c.d {
						if id >= 0 && row >= 0 && row < part[1] {
							want[row*c.d+j] += x.vals[int64(i)*c.d+j]
						}
					}
				}
				r.exactly(fmt.Sprintf("index_add of rows %v", part), device.Kernel{Op: device.IndexAdd{First: part[0], Rows: 7}},
					l, dt, []int64{part[1], c.d}, want, x, ids)
			}
		}
	})
	for _, id := range []float64{-2, 4} {
		r.open(1)
		k := device.Kernel{Op: device.IndexAdd{Rows: 4}, Outs: []device.View{r.empty(0, ir.F32, 4, 2)},
			Ins: []device.View{r.put(0, given(ir.F32, []int64{2, 2}, 7, 8, 9, 1)), r.put(0, given(ir.I32, []int64{2}, 0, id))}}
		r.launch(r.mainOf(0), 0, k)
		r.faults(fmt.Sprintf("id %v of 4 rows", id), "number 1")
	}
}
