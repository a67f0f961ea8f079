package kernels

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// TestIndexKernels compares kernels along an axis with the CPU machine.
func TestIndexKernels(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, dt := range types() {
		for j, shape := range [][]int64{{1}, {700}, {3, 40}, {2, 3, 5}, {0, 4}} {
			for axis := range shape {
				l := layouts[(i+j+axis)%len(layouts)]
				r.compare(device.Kernel{Op: device.Iota{Axis: axis, Start: ir.Whole(-2), First: 5}}, l, 0, dt, shape)
			}
		}
	}
	r.run()
}

// TestSortedKernels sorts rows with fewer elements than a thread block has threads, and with more, and selects elements
// by the resulting indices.
func TestSortedKernels(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, dt := range types() {
		for j, shape := range [][]int64{{1}, {700}, {3, 40}, {2, 3, 5}, {0, 4}} {
			l := layouts[(i+j)%len(layouts)]
			x := noise(dt, shape...)
			if len(x.vals) > 100 && !dt.IsInt() {
				x.vals[3], x.vals[90], x.vals[91] = math.NaN(), math.Inf(1), math.NaN()
			}
			k := last(shape)
			r.compare(device.Kernel{Op: device.Sorted{Op: ir.OpArgsort}}, l, 0, ir.I32, shape, x)
			some := append(slices.Clone(shape[:len(shape)-1]), (k+1)/2)
			r.compare(device.Kernel{Op: device.Sorted{Op: ir.OpTopK}}, l, 0, dt, some, x)
			r.compare(device.Kernel{Op: device.Sorted{Op: ir.OpArgTopK}}, l, 0, ir.I32, some, x)
			at := values{ir.I64, some, nil}
			for v := range int64(len(x.vals)) / k * some[len(some)-1] {
				at.vals = append(at.vals, float64(v*7%k))
			}
			r.compare(device.Kernel{Op: device.TakeAlong{}}, l, 0, dt, some, x, at)
			if dt.IsInt() {
				r.compare(device.Kernel{Op: device.Bincount{}}, l, 0, ir.I32, []int64{9}, x)
			}
		}
	}
	r.run()
}

// TestIndexAddKernels compares rows that are added by ids, emulated on the CPU, with the CPU machine.
func TestIndexAddKernels(t *testing.T) {
	t.Parallel()
	r := newTrial(t)
	for i, dt := range types() {
		for j, c := range []struct{ n, d int64 }{{1, 1}, {40, 5}, {300, 3}, {6, 1100}, {0, 3}} {
			l := layouts[(i+j)%len(layouts)]
			x, ids := noise(dt, c.n, c.d), values{[]ir.DType{ir.I32, ir.I64}[j%2], []int64{c.n}, nil}
			for k := range c.n {
				ids.vals = append(ids.vals, float64(k*k%9-1))
			}
			for _, part := range [][2]int64{{0, 8}, {3, 2}} {
				r.compare(device.Kernel{Op: device.IndexAdd{First: part[0], Rows: 8}}, l, 0, dt, []int64{part[1], c.d}, x, ids)
			}
		}
	}
	r.run()
}

// TestSortedMost checks that rows that would take too long to sort are refused with advice.
func TestSortedMost(t *testing.T) {
	many := Operand{Addr: 256, DType: ir.F32, Shape: []int64{1 << 12, 1 << 16},
		Strides: rowMajor([]int64{1 << 12, 1 << 16})}
	out := Operand{Addr: 256, DType: ir.F32, Shape: []int64{1 << 12, 8}, Strides: rowMajor([]int64{1 << 12, 8})}
	_, err := plan(Computation{Op: device.Sorted{Op: ir.OpTopK}, Ins: []Operand{many}, Out: out}, Target{})
	if !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), "slices of the rows") {
		t.Error(err)
	}
}

// TestIndexAddMost checks that more ids than can be searched in time are refused with advice.
func TestIndexAddMost(t *testing.T) {
	x := func(dt ir.DType, shape ...int64) Operand {
		return Operand{Addr: 256, DType: dt, Shape: shape, Strides: rowMajor(shape)}
	}
	for _, n := range []int64{1 << 20, 1 << 22} {
		_, err := plan(Computation{Op: device.IndexAdd{Rows: 8}, Ins: []Operand{x(ir.F32, n, 8), x(ir.I32, n)},
			Out: x(ir.F32, 8, 8)}, Target{})
		refused := errors.Is(err, device.ErrUnsupported) && strings.Contains(err.Error(), "slices of the ids")
		if refused != (n > 1<<21) {
			t.Errorf("%d ids: %v", n, err)
		}
	}
}

// TestIndexFault checks that an invalid index is reported.
func TestIndexFault(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, bad := range []float64{-2, 4} {
		word := b.alloc(FaultBytes)
		clear(b.mem[word-memoryAt:])
		b.add("index_add", Computation{Op: device.IndexAdd{Rows: 4}, Out: b.room(ir.F32, layouts[0], 4, 2), Fault: word, Tag: 6,
			Ins: []Operand{b.put(ir.F32, layouts[0], []float64{1, 2, 3, 4, 5, 6}, 3, 2),
				b.put(ir.I32, layouts[0], []float64{-1, 3, bad}, 3)}}, func() {
			f, ok := ReadFault(b.mem[word-memoryAt:])
			if want := (Fault{FaultAdded, 6, [3]int64{int64(bad), 4, 2}}); !ok || f != want ||
				!strings.Contains(f.String(), "is outside 0 to 3") {
				t.Errorf("fault %v, %v; want %v", f, ok, want)
			}
		})
	}
	for _, bad := range []float64{-1, 4} {
		word := b.alloc(FaultBytes)
		clear(b.mem[word-memoryAt:])
		b.add("take_along", Computation{Op: device.TakeAlong{}, Out: b.room(ir.F32, layouts[0], 1, 3), Fault: word,
			Tag: 5,
			Ins: []Operand{b.put(ir.F32, layouts[0], []float64{1, 2, 3, 4}, 1, 4),
				b.put(ir.I32, layouts[0], []float64{0, 3, bad}, 1, 3)}}, func() {
			f, ok := ReadFault(b.mem[word-memoryAt:])
			if want := (Fault{FaultIndex, 5, [3]int64{int64(bad), 4, 2}}); !ok || f != want ||
				!strings.Contains(f.String(), "is outside 0 to 3") {
				t.Errorf("fault %v, %v; want %v", f, ok, want)
			}
		})
	}
	b.run()
}
