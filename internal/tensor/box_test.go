package tensor

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket/ir"
)

func arange(t *testing.T, dt ir.DType, shape ...int64) *Tensor {
	t.Helper()
	x, err := New(dt, shape)
	if err != nil {
		t.Fatal(err)
	}
	if err := Fill(x, "x", Spec{Kind: SpecArange}); err != nil {
		t.Fatal(err)
	}
	return x
}

// TestBoxes compares Slice, Paste and Window with element-by-element copies of random boxes.
func TestBoxes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		dt := ir.ArithmeticTypes()[rng.IntN(6)]
		rank := rng.IntN(5)
		shape, lo, n := make([]int64, rank), make([]int64, rank), make([]int64, rank)
		for i := range rank {
			shape[i] = rng.Int64N(5)
			lo[i] = rng.Int64N(shape[i] + 1)
			n[i] = rng.Int64N(shape[i] - lo[i] + 1)
			if rng.IntN(3) == 0 {
				lo[i], n[i] = 0, shape[i]
			}
		}
		x := arange(t, dt, shape...)
		box, err := Slice(x, lo, n)
		if err != nil {
			t.Fatal(err)
		}
		y, _ := New(dt, shape)
		if err := Paste(y, box, lo); err != nil {
			t.Fatal(err)
		}
		checkBox(t, x, y, box, lo, n)
	}
}

// TestLargeBoxes is TestBoxes for boxes so large that several goroutines copy parts of them, split along each axis.
func TestLargeBoxes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(5))
	for _, c := range [][3][]int64{ // shape of a tensor, start of a box in it, and extents of the box
		{{1, 3, 500_000}, {0, 1, 7}, {1, 2, 499_990}},
		{{1, 2, 700_000}, {0, 1, 3}, {1, 1, 699_000}},
		{{700, 2000}, {1, 900}, {699, 1100}},
		{{1_500_000}, {5}, {1_400_000}},
	} {
		shape, lo, n := c[0], c[1], c[2]
		x := arange(t, ir.I32, shape...)
		box, err := Slice(x, lo, n)
		if err != nil {
			t.Fatal(err)
		}
		y, _ := New(ir.I32, shape)
		if err := Paste(y, box, lo); err != nil {
			t.Fatal(err)
		}
		checkBox(t, x, y, box, lo, n)
	}
}

func checkBox(t *testing.T, x, y, box *Tensor, lo, n []int64) {
	t.Helper()
	strides, boxStrides := Strides(x.Shape), Strides(n)
	first, last := int64(-1), int64(-1) // indices of the first and the last element of the box
	for i := range x.Len() {
		in, j := true, int64(0)
		for a := range n {
			at := i / strides[a] % x.Shape[a]
			in = in && lo[a] <= at && at < lo[a]+n[a]
			j += (at - lo[a]) * boxStrides[a]
		}
		want := int64(0)
		if in {
			if last = i; first < 0 {
				first = i
			}
			want = x.Int64(i)
			if got := box.Int64(j); got != want {
				t.Fatalf("Slice(%s, %v, %v)[%d] = %d, want %d", x, lo, n, j, got, want)
			}
		}
		if got := y.Int64(i); got != want {
			t.Fatalf("Paste of %v + %v into %s: [%d] = %d, want %d", lo, n, x, i, got, want)
		}
	}
	together := first < 0 || last-first+1 == box.Len()
	switch own := Window(x, lo, n); {
	case (own != nil) != together:
		t.Fatalf("Window(%s, %v, %v) has %d bytes, contiguous %v", x, lo, n, len(own), together)
	case own != nil && !bytes.Equal(own, box.Data):
		t.Fatalf("Window(%s, %v, %v) has other bytes than the box", x, lo, n)
	case len(own) > 0 && &own[0] != &x.Data[first*x.DType.Size()]:
		t.Fatalf("Window(%s, %v, %v) does not share storage with the tensor", x, lo, n)
	}
}

// TestNoWindow checks that Window returns nil for a box outside the tensor.
func TestNoWindow(t *testing.T) {
	x := arange(t, ir.I32, 3, 4)
	for _, c := range [][2][]int64{{{0}, {3}}, {{1, 0}, {3, 4}}, {{-1, 0}, {1, 4}}, {{0, 0}, {1, 5}}} {
		if own := Window(x, c[0], c[1]); own != nil {
			t.Errorf("at %v, of %v: %d bytes", c[0], c[1], len(own))
		}
	}
}

func TestBoxErrors(t *testing.T) {
	x := arange(t, ir.F32, 3, 5)
	for _, c := range []struct{ lo, n []int64 }{
		{[]int64{0}, []int64{1}}, {[]int64{0, 0}, []int64{4, 5}}, {[]int64{-1, 0}, []int64{1, 1}},
		{[]int64{0, 5}, []int64{1, 1}},
		{[]int64{0, 0}, []int64{-1, 1}}, {[]int64{1, math.MaxInt64}, []int64{1, 1}},
		{[]int64{1, 1}, []int64{1, math.MaxInt64}}, {nil, nil},
	} {
		if _, err := Slice(x, c.lo, c.n); err == nil || !strings.Contains(err.Error(), "f32[3, 5]") {
			t.Errorf("Slice(%v, %v): error %v does not name f32[3, 5]", c.lo, c.n, err)
		}
	}
	if err := Paste(x, arange(t, ir.I32, 1, 1), []int64{0, 0}); err == nil {
		t.Error("Paste of i32 into f32 must fail")
	}
	if err := Paste(x, &Tensor{DType: ir.F32, Shape: []int64{1, 1}}, []int64{0, 0}); err == nil {
		t.Error("Paste of a tensor without data must fail")
	}
	if _, err := Slice(nil, nil, nil); err == nil {
		t.Error("Slice of nil must fail")
	}
}

func TestSizes(t *testing.T) {
	const big = 1 << 40
	for _, c := range []struct {
		shape []int64
		n     int64
		bad   string
	}{
		{nil, 1, ""}, {[]int64{0}, 0, ""}, {[]int64{3, 0, 5}, 0, ""}, {[]int64{7, 3}, 21, ""},
		{[]int64{math.MaxInt64}, math.MaxInt64, ""},
		{[]int64{math.MaxInt64, 2}, 0, "overflows"}, {[]int64{big, big}, 0, "overflows"},
		{[]int64{0, big, big}, 0, "overflows"},
		{[]int64{1 << 32, 1 << 32}, 0, "overflows"}, {[]int64{2, -3}, 0, "negative"}, {[]int64{0, -1}, 0, "negative"},
		{[]int64{math.MinInt64}, 0, "negative"},
	} {
		n, err := NumElements(c.shape)
		if n != c.n || (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
			t.Errorf("NumElements(%v) = %d, %v; want %d, %q", c.shape, n, err, c.n, c.bad)
		}
	}
	if _, err := Bytes(ir.F64, []int64{1 << 60}); err == nil {
		t.Error("2^63 bytes must overflow")
	}
	if _, err := Bytes(ir.DType(200), nil); err == nil {
		t.Error("an unknown element type must be refused")
	}
	if _, err := New(ir.F64, []int64{1 << 59}); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("New over the limit: %v", err)
	}
	if got := fmt.Sprint(Strides([]int64{2, 3, 5})); got != "[15 5 1]" {
		t.Errorf("strides %s", got)
	}
}

// TestOverlaps checks that tensors overlap only if they share bytes, wherever they are in the list.
func TestOverlaps(t *testing.T) {
	data := make([]byte, 12)
	of := func(lo, hi int) *Tensor { return &Tensor{Data: data[lo:hi]} }
	one := of(2, 3)
	for _, c := range []struct {
		list []*Tensor
		want []bool
	}{
		{nil, []bool{}},
		{[]*Tensor{of(4, 8), of(0, 4), of(8, 12)}, []bool{false, false, false}},
		{[]*Tensor{of(4, 8), of(0, 5), of(8, 12)}, []bool{true, true, false}},
		{[]*Tensor{of(0, 12), of(1, 2), of(4, 5), of(6, 7)}, []bool{true, true, true, true}},
		{[]*Tensor{of(3, 7), of(10, 12), of(3, 7)}, []bool{true, false, true}},
		{[]*Tensor{one, one}, []bool{true, true}},
		{[]*Tensor{of(3, 3), of(0, 12), {}}, []bool{false, false, false}},
		{[]*Tensor{of(0, 2), of(1, 6), of(2, 3), of(7, 8)}, []bool{true, true, true, false}},
	} {
		if got := Overlaps(c.list); !slices.Equal(got, c.want) {
			t.Errorf("got %v, want %v", got, c.want)
		}
	}
}
