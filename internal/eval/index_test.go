package eval

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

// TestOrder: equal elements that are certified have an order; nothing is known of the place of others.
func TestOrder(t *testing.T) {
	a := newArray(ir.F32, []int64{2, 4})
	copy(a.f, []float64{2, 5, 2, -1, 1, 9, 4, 3.5})
	a.e[6] = 0.5 // 4, or what stands at 3.5
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

// TestTopKBound: however elements are off, the largest are within the bound.
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

// TestTakeAlongRange: an index that there is not is a finding.
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

// TestBincountDoubt: an id that is not certified may be any other.
func TestBincountDoubt(t *testing.T) {
	ids := newArray(ir.I64, []int64{4})
	copy(ids.n, []int64{0, 2, 2, 5})
	ids.e[3] = 1
	y, err := compute(ir.OpBincount, attrs{}, []*array{ids}, ir.I32, []int64{3}, alone)
	if err != nil || !slices.Equal(y.n, []int64{1, 0, 2}) || y.e[0] != 1 || y.e[1] != 1 {
		t.Errorf("%v ±%v, %v", y.n, y.e, err)
	}
}
