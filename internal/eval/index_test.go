package eval

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestOrder checks that the order of equal elements is known if they are certified, and unknown otherwise.
func TestOrder(t *testing.T) {
	a := newArray(ir.F32, []int64{2, 4})
	copy(a.f, []float64{2, 5, 2, -1, 1, 9, 4, 3.5})
	a.e[6] = 0.5 // 4 ± 0.5 may equal 3.5
	for _, c := range []struct {
		op    ir.Op
		shape []int64
		want  []int64
		sure  []bool
	}{
		{ir.OpArgsort, []int64{2, 4}, []int64{3, 0, 2, 1, 0, 3, 2, 1},
			[]bool{true, true, true, true, true, false, false, true}},
		{ir.OpArgTopK, []int64{2, 3}, []int64{1, 0, 2, 1, 2, 3}, []bool{true, true, true, true, false, false}},
	} {
		y, err := compute(c.op, attrs{}, []*array{a}, ir.I32, c.shape, alone)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(y.n, c.want) {
			t.Errorf("%v: %v, want %v", c.op, y.n, c.want)
		}
		for i, sure := range c.sure {
			if (y.e[i] == 0) != sure {
				t.Errorf("%v: element %d ±%v", c.op, i, y.e[i])
			}
		}
	}
}

// TestTopKBound checks that the largest elements are within the bounds for any errors of the operand's elements.
func TestTopKBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for _, dt := range floatTypes {
		for _, errs := range []bool{false, true} {
			x := randomArray(rng, dt, errs, 5, 7)
			y, err := compute(ir.OpTopK, attrs{}, []*array{x}, dt, []int64{5, 3}, alone)
			if err != nil {
				t.Fatal(err)
			}
			for i := range int64(5) {
				row := heldRow(rng, x, i*7, 7)
				slices.Sort(row)
				slices.Reverse(row)
				for j, v := range row[:3] {
					if at := i*3 + int64(j); !(math.Abs(v-y.f[at]) <= y.e[at]) || y.e[at] > 1 {
						t.Errorf("%v: a machine holds %v, not %v ±%v", dt, v, y.f[at], y.e[at])
					}
				}
			}
		}
	}
}

// TestTakeAlongRange checks that an index out of range is reported.
func TestTakeAlongRange(t *testing.T) {
	x, at := newArray(ir.F32, []int64{2, 2}), newArray(ir.I32, []int64{2, 1})
	copy(x.f, []float64{1, 2, 3, 4})
	for _, c := range []struct {
		at   int64
		want string
	}{{1, ""}, {2, "index 2 (element 1"}, {-1, "index -1 (element 1"}} {
		at.n[1] = c.at
		y, err := compute(ir.OpTakeAlong, attrs{}, []*array{x, at}, ir.F32, nil, alone)
		switch {
		case c.want == "" && (err != nil || y.f[0] != 1 || y.f[1] != 4):
			t.Errorf("%v, %v", y, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestBincountDoubt checks that an id that is not certified makes all counts uncertain.
func TestBincountDoubt(t *testing.T) {
	ids := newArray(ir.I64, []int64{4})
	copy(ids.n, []int64{0, 2, 2, 5})
	ids.e[3] = 1
	y, err := compute(ir.OpBincount, attrs{}, []*array{ids}, ir.I32, []int64{3}, alone)
	if err != nil || !slices.Equal(y.n, []int64{1, 0, 2}) || y.e[0] != 1 || y.e[1] != 1 {
		t.Errorf("%v ±%v, %v", y.n, y.e, err)
	}
}

// TestIndexAdd checks random sums against sums in other orders and types, whose differences must be within the bounds.
// The bounds of sums of integers are 0. An id that is not certified makes all rows unknown, and an id out of range is
// reported.
func TestIndexAdd(t *testing.T) {
	r := rand.New(rand.NewPCG(53, 1))
	for range 200 {
		n, rows, d := r.Int64N(40), 1+r.Int64N(5), 1+r.Int64N(3)
		whole := r.IntN(2) == 0
		x, ids := newArray(ir.F32, []int64{n, d}), newArray(ir.I32, []int64{n})
		want, own := make([]float64, rows*d), make([]float32, rows*d)
		for i := range x.f {
			x.f[i] = float64(float32(r.NormFloat64() * 1e3))
			if whole {
				x.f[i] = float64(r.IntN(9) - 4)
			}
		}
		for i := range ids.n {
			ids.n[i] = r.Int64N(rows+1) - 1
		}
		for _, i := range r.Perm(int(n)) { // another order, in f32
			for j := range d {
				if to := ids.n[i]*d + j; ids.n[i] >= 0 {
					want[to] += x.f[int64(i)*d+j]
					own[to] += float32(x.f[int64(i)*d+j])
				}
			}
		}
		y, err := compute(ir.OpIndexAdd, attrs{}, []*array{x, ids}, ir.F32, []int64{rows, d}, alone)
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if far := math.Abs(y.f[i] - float64(own[i])); far > y.e[i] || whole && y.e[i] != 0 || math.Abs(y.f[i]-want[i]) > y.e[i] {
				t.Fatalf("%d: %v ± %v, and it is %v, in f32 %v", i, y.f[i], y.e[i], want[i], own[i])
			}
		}
		if n == 0 {
			continue
		}
		ids.e[0] = 1
		y, err = compute(ir.OpIndexAdd, attrs{}, []*array{x, ids}, ir.F32, []int64{rows, d}, alone)
		if err != nil || !math.IsInf(y.e[0], 1) {
			t.Fatal(y, err)
		}
		ids.n[0] = []int64{-2, rows}[r.IntN(2)]
		if _, err := compute(ir.OpIndexAdd, attrs{}, []*array{x, ids}, ir.F32, []int64{rows, d}, alone); err == nil {
			t.Fatal("an id out of range is accepted")
		}
	}
}
