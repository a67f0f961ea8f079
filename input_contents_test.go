package hocket_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

func TestInputContents(t *testing.T) {
	for name, opts := range map[string]cpu.Options{"concurrent": {}, "scheduled": {Mode: cpu.Scheduled}} {
		t.Run(name, func(t *testing.T) {
			modeltest.InputContents(t, modeltest.Open(t, cpu.New(opts)), hocket.LoadOptions{}, nil)
		})
	}
}

// TestInputContentsAgain checks that the elements of a batch's device tensors are checked again if they were written
// since the last batch, but not if a run wrote them. In the second case kernels report invalid elements, and the state
// is lost.
func TestInputContentsAgain(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	model := modeltest.Load(t, m, "mesh tp[2]\nfunc f(%ids: i32[2], %e: f32[5, 2], %n: inout f32[2, 2]) -> i32[2] {\n"+
		"  %x = embedding %ids, %e\n  copy %x into %n\n  %y = add %ids, %ids\n  return %y\n}\n", hocket.LoadOptions{})
	at := map[string]*hocket.DeviceTensor{}
	write := func(name string, dt ir.DType, vals []float64, shape ...int64) {
		t.Helper()
		x, err := hocket.FromFloats(dt, vals, shape...)
		if err == nil && at[name] == nil {
			at[name], err = model.NewDeviceTensor(t.Context(), name, nil)
		}
		if err == nil {
			err = at[name].Write(t.Context(), x)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("ids", ir.I32, []float64{0, 4}, 2)
	write("e", ir.F32, []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 5, 2)
	write("n", ir.F32, make([]float64, 4), 2, 2)
	if err := model.BindDevice("n", at["n"]); err != nil {
		t.Fatal(err)
	}
	args := hocket.Args{DeviceIn: map[string]*hocket.DeviceTensor{"ids": at["ids"], "e": at["e"]},
		DeviceOut: map[string]*hocket.DeviceTensor{}}
	var err error
	if args.DeviceOut["y"], err = model.NewDeviceTensor(t.Context(), "y", nil); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		ids, n []float64
		bad    int64
	}{{[]float64{0, 4}, []float64{0, 1, 8, 9}, -1}, {[]float64{3, 5}, nil, 1},
		{[]float64{3, 2}, []float64{6, 7, 4, 5}, -1},
		{[]float64{-1, 5}, nil, 0}} {
		write("ids", ir.I32, c.ids, 2)
		for range 3 {
			_, err := model.Run(t.Context(), args)
			var e *hocket.InputError
			if errors.As(err, &e) != (c.bad >= 0) || err == nil != (c.bad < 0) || e != nil &&
				(e.Begun || e.Index[0] != c.bad) {
				t.Fatalf("write %d: %v", i, err)
			}
			if c.bad < 0 {
				x, err := at["n"].Read(t.Context())
				if err != nil || !slices.Equal(x.Floats(), c.n) {
					t.Fatalf("write %d: %v, %v", i, x, err)
				}
			}
		}
	}
	// The run computes y = 6, 4, which are not valid ids.
	write("ids", ir.I32, []float64{3, 2}, 2)
	if _, err := model.Run(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	args = hocket.Args{DeviceIn: map[string]*hocket.DeviceTensor{"ids": args.DeviceOut["y"], "e": at["e"]}}
	_, err = model.Run(t.Context(), args)
	var e *hocket.InputError
	if !errors.As(err, &e) || !e.Begun || fmt.Sprint(e.Param, e.Index, e.Value, e.Low, e.High) != "ids[0] 6 0 5" {
		t.Errorf("left by a run: %v", err)
	}
	if _, err := at["n"].Read(t.Context()); !errors.Is(err, hocket.ErrNoContents) {
		t.Errorf("the state is not lost: %v", err)
	}
}

// TestInputContentsComputed checks that an invalid id that the program computes is an error of the run, and not an
// ErrInput about its arguments.
func TestInputContentsComputed(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	model := modeltest.Load(t, m, "mesh tp[1]\nfunc f(%ids: i32[2], %e: f32[5, 2]) -> f32[2, 2] {\n  %i = add %ids, %ids\n"+
		"  %x = embedding %i, %e\n  return %x\n}\n", hocket.LoadOptions{})
	in, err := model.RandomInputs("zeros")
	if err != nil {
		t.Fatal(err)
	}
	in["ids"].Data[0] = 3
	_, err = model.Run(t.Context(), hocket.Args{In: in})
	if err == nil || errors.Is(err, hocket.ErrInput) {
		t.Errorf("computed: %v", err)
	}
	var run *hocket.RunError
	if !errors.As(err, &run) || run.Rank != 0 || run.Stream == "" || !strings.Contains(run.Statement, "embedding") {
		t.Errorf("%v is of %+v, want the place of the embedding on rank 0", err, run)
	}
}

// TestInputContentsOfExperts checks that invalid indices of take_along and invalid counts of grouped_linear are found
// before a run begins.
func TestInputContentsOfExperts(t *testing.T) {
	model := modeltest.Load(t, modeltest.Open(t, cpu.New(cpu.Options{})),
		"func f(%x: f32[3, 2], %at: i32[3, 1], %w: f32[2, 1, 2], "+
			"%n: i64[2]) -> (f32[3, 1], f32[3, 1]) {\n  %y = take_along %x, %at\n  %z = grouped_linear %x, %w, %n\n  return %y, %z\n}\n",
		hocket.LoadOptions{})
	for _, c := range []struct {
		at, n []float64
		param string
		index []int64
	}{
		{[]float64{0, 1, 1}, []float64{2, 1}, "", nil}, {[]float64{0, 2, 1}, []float64{2, 1}, "at", []int64{1, 0}},
		{[]float64{0, 1, -1}, []float64{0, 0}, "at", []int64{2, 0}},
		{[]float64{0, 0, 0}, []float64{-1, 1}, "n", []int64{0}},
		{[]float64{0, 0, 0}, []float64{2, 2}, "n", []int64{1}},
	} {
		in := map[string]*hocket.Tensor{}
		put := func(name string, dt ir.DType, vals []float64, shape ...int64) {
			x, err := hocket.FromFloats(dt, vals, shape...)
			if err != nil {
				t.Fatal(err)
			}
			in[name] = x
		}
		put("x", ir.F32, []float64{1, 2, 3, 4, 5, 6}, 3, 2)
		put("at", ir.I32, c.at, 3, 1)
		put("w", ir.F32, []float64{1, 0, 0, 10}, 2, 1, 2)
		put("n", ir.I64, c.n, 2)
		rep, err := model.Run(t.Context(), hocket.Args{In: in})
		var e *hocket.InputError
		switch {
		case c.param == "":
			if err != nil || !slices.Equal(rep.Out["y"].Floats(), []float64{1, 4, 6}) ||
				!slices.Equal(rep.Out["z"].Floats(), []float64{1, 3, 60}) {
				t.Errorf("%v, %v", rep, err)
			}
		case !errors.As(err, &e) || e.Param != c.param || !slices.Equal(e.Index, c.index) || e.Begun:
			t.Errorf("at %v, n %v: %v", c.at, c.n, err)
		}
	}
}
