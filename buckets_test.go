package hocket_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestBuckets checks that two plans, for rounded dims, serve runs of many sizes with the same results as a plan for
// each size.
func TestBuckets(t *testing.T) {
	m, model := loadDoubling(t, hocket.LoadOptions{Buckets: map[string][]int64{"T": {32, 64}}})
	r := rand.New(rand.NewPCG(3, 4))
	for k := range 60 {
		if err := doubled(t, model, 1+r.Int64N(64), float64(k)); err != nil {
			t.Fatal(err)
		}
	}
	if s := m.Stats().Plans; s.Misses != 2 || s.Hits != 58 {
		t.Errorf("%+v, want two plans", s)
	}
	if err := doubled(t, model, 100, 1); err != nil { // beyond all buckets
		t.Error(err)
	}
	in, err := hocket.FromFloats(ir.F32, []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	out, err := hocket.NewTensor(ir.F32, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	args := hocket.Args{In: map[string]*hocket.Tensor{"x": in}, Out: map[string]*hocket.Tensor{"y": out}}
	if _, err := model.Run(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	wantFloats(t, out.Floats(), 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24)
	if args.Out["y"], err = hocket.NewTensor(ir.F32, 32, 4); err != nil {
		t.Fatal(err)
	}
	if _, err := model.Run(t.Context(), args); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("a result of another size: %v", err)
	}
}

// TestBucketsOfExtents checks that parameters are padded, and results shortened, if their extents are expressions of a
// rounded dim, even if only Args.Dims or a default value sets the dim. A dim that a bound parameter fixes is not
// rounded. Reference and Explore use the same dims as runs.
func TestBucketsOfExtents(t *testing.T) {
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	p, err := hocket.Parse("pairs.hkt", `dim T = 2
dim N = 3
func f(%x: f32[2 * T], %w: f32[N]) -> (f32[T], f32[N], f32[2 * T]) {
  %r = reshape %x, shape=(T, 2)
  %y = sum %r, axis=1
  %z = add %w, %w
  %d = add %x, %x
  return %y, %z, %d
}
`)
	if err != nil {
		t.Fatal(err)
	}
	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Buckets: map[string][]int64{"N": {4, 8}, "T": {16, 4}}})
	if err != nil {
		t.Fatal(err)
	}
	w, err := hocket.FromFloats(ir.F32, []float64{1, 2, 3}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := model.Bind("w", w); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{2, 3, 5, 20} {
		var in, sums, twice []float64
		for i := range 2 * n {
			in = append(in, float64(i))
			twice = append(twice, float64(2*i))
			if i%2 == 1 {
				sums = append(sums, float64(2*i-1))
			}
		}
		x, err := hocket.FromFloats(ir.F32, in, 2*n)
		if err != nil {
			t.Fatal(err)
		}
		args := hocket.Args{In: map[string]*hocket.Tensor{"x": x}}
		if n != 2 {
			args.Dims = map[string]int64{"T": n}
		}
		ref, err := model.Reference(t.Context(), args)
		if err != nil {
			t.Fatal(err)
		}
		right := func(rep *hocket.Report) {
			wantFloats(t, rep.Out["y"].Floats(), sums...)
			wantFloats(t, rep.Out["z"].Floats(), 2, 4, 6)
			wantFloats(t, rep.Out["d"].Floats(), twice...)
			if c := ref.Compare(rep); c.Verdict != hocket.Exact {
				t.Errorf("T=%d: %v", n, c)
			}
		}
		rep, err := model.Run(t.Context(), args)
		if err != nil {
			t.Fatal(err)
		}
		right(rep)
		err = model.Explore(t.Context(), []hocket.Args{args}, hocket.ExploreOptions{Schedules: 1},
			func(_ int64, reports []*hocket.Report) error { right(reports[0]); return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	x, err := hocket.NewTensor(ir.F32, 10)
	if err != nil {
		t.Fatal(err)
	}
	args := hocket.Args{In: map[string]*hocket.Tensor{"x": x}, Dims: map[string]int64{"T": 4}}
	if _, err := model.Run(t.Context(), args); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("a parameter of another size: %v", err)
	}
	for _, wrong := range []map[string][]int64{{"Q": {4}}, {"T": {0, 4}}} {
		_, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{Buckets: wrong})
		if !errors.Is(err, hocket.ErrInput) {
			t.Errorf("buckets %v: %v, want ErrInput", wrong, err)
		}
	}
}

// TestBucketsOfPositions checks that index_copy does not write padding rows to a cache.
func TestBucketsOfPositions(t *testing.T) {
	p, err := hocket.Parse("cache.hkt", `dim T
func f(%rows: f32[T, 1], %at: i32[T], %cache: inout f32[6, 1]) -> f32[T, 1] {
  %a: i64[T] = cast (reshape %at, shape=(T))
  %c = for %i in 0..2 carry %b = %a {
    index_copy %rows, %b into %cache
    yield %b
  }
  %y = add %rows, %rows
  return %y
}
`)
	if err != nil {
		t.Fatal(err)
	}
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	model, err := m.Load(p, hocket.Binding{Func: "f"}, hocket.LoadOptions{Buckets: map[string][]int64{"T": {4}}})
	if err != nil {
		t.Fatal(err)
	}
	cache, err := hocket.NewTensor(ir.F32, 6, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range [][]float64{{0}, {1, 2, 5}} {
		rows, err := hocket.FromFloats(ir.F32, []float64{7, 8, 9}[:len(at)], int64(len(at)), 1)
		if err != nil {
			t.Fatal(err)
		}
		positions, err := hocket.FromFloats(ir.I32, at, int64(len(at)))
		if err != nil {
			t.Fatal(err)
		}
		in := map[string]*hocket.Tensor{"rows": rows, "at": positions, "cache": cache}
		out := map[string]*hocket.Tensor{"cache": cache}
		if _, err := model.Run(t.Context(), hocket.Args{In: in, Out: out}); err != nil {
			t.Fatal(err)
		}
	}
	wantFloats(t, cache.Floats(), 7, 7, 8, 0, 0, 9)
}
