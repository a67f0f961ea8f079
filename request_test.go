package hocket_test

import (
	"errors"
	"slices"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestSameAgain repeats a run whose arguments are on the devices, and makes one change at a time between runs. The next
// run must use each change, although runs with the same arguments are not checked again.
func TestSameAgain(t *testing.T) {
	model := modeltest.Load(t, modeltest.Open(t, cpu.New(cpu.Options{})), `mesh tp[2]
func step(%x: f32[4], %kept: inout f32[4], %w: f32[4]) -> f32[4] {
  %s = add %x, %kept
  %y = add %s, %w
  copy %s into %kept
  return %y
}
`, hocket.LoadOptions{})
	ctx := t.Context()
	full := func(v float64) *hocket.Tensor {
		f, err := hocket.FromFloats(ir.F32, []float64{v, v, v, v}, 4)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	on := map[string]*hocket.DeviceTensor{}
	for _, name := range []string{"x", "other x", "kept", "y", "other y"} {
		port := map[string]string{"other x": "x", "other y": "y"}[name]
		if port == "" {
			port = name
		}
		d, err := model.NewDeviceTensor(ctx, port, nil)
		must(err)
		on[name] = d
	}
	must(on["x"].Write(ctx, full(1)))
	must(on["other x"].Write(ctx, full(100)))
	must(on["kept"].Write(ctx, full(0)))
	must(model.BindDevice("kept", on["kept"]))
	must(model.Bind("w", full(1000)))
	given := hocket.Args{DeviceIn: map[string]*hocket.DeviceTensor{"x": on["x"]},
		DeviceOut: map[string]*hocket.DeviceTensor{"y": on["y"]}}
	kept, w := 0.0, 1000.0
	run := func(x float64, y string) {
		t.Helper()
		rep, err := model.Run(ctx, given)
		must(err)
		kept += x
		got := rep.Out["y"]
		if y != "" {
			got, err = on[y].Read(ctx)
			must(err)
		}
		if got.Floats()[3] != kept+w {
			t.Fatalf("a run that adds %g: %g, want %g", x, got.Floats()[3], kept+w)
		}
	}
	for range 3 {
		run(1, "y")
	}
	must(on["x"].Write(ctx, full(2))) // other contents
	run(2, "y")
	given.DeviceIn["x"] = on["other x"] // another tensor, in the same map
	run(100, "y")
	given.DeviceOut["y"] = on["other y"]
	run(100, "other y")
	run(100, "other y")
	w = 5000
	must(model.Bind("w", full(w))) // another weight
	run(100, "other y")
	given.DeviceOut = nil // a result in host memory
	run(100, "")
	given.DeviceOut = map[string]*hocket.DeviceTensor{"y": on["y"]}
	run(100, "y")
	given.In, given.DeviceIn = map[string]*hocket.Tensor{"x": full(7)}, nil
	run(7, "y")
	given.In, given.DeviceIn = nil, map[string]*hocket.DeviceTensor{"x": on["x"]}
	run(2, "y")
	run(2, "y")
	bound := w
	// another weight for this run, with all other arguments unchanged
	given.In, w = map[string]*hocket.Tensor{"w": full(9000)}, 9000
	run(2, "y")
	given.In, w = nil, bound
	run(2, "y")
	failed := errors.New("on purpose")
	if err := on["x"].Fill(ctx, func([]hocket.DeviceBlock) error { return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if _, err := model.Run(ctx, given); !errors.Is(err, hocket.ErrNoContents) {
		t.Errorf("a tensor without contents: %v", err)
	}
	must(on["x"].Write(ctx, full(3)))
	run(3, "y")
	must(on["y"].Close())
	if _, err := model.Run(ctx, given); !errors.Is(err, hocket.ErrClosed) {
		t.Errorf("a tensor that is closed: %v", err)
	}
}

// TestSameAgainBesideAnotherPlan checks that a repeated run uses the bound weight even if another plan, which has the
// weight in the same memory, has run with another weight in between.
func TestSameAgainBesideAnotherPlan(t *testing.T) {
	model := modeltest.Load(t, modeltest.Open(t, cpu.New(cpu.Options{})), `dim T = 1
mesh tp[2]
func f(%x: f32[T, 4], %w: f32[4]) -> f32[T, 4] {
  %y = add %x, %w
  return %y
}
`, hocket.LoadOptions{})
	ctx := t.Context()
	tensor := func(v float64, shape ...int64) *hocket.Tensor {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		x, err := hocket.FromFloats(ir.F32, slices.Repeat([]float64{v}, int(n)), shape...)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(model.Bind("w", tensor(10, 4)))
	x, err := model.NewDeviceTensor(ctx, "x", nil)
	must(err)
	y, err := model.NewDeviceTensor(ctx, "y", nil)
	must(err)
	must(x.Write(ctx, tensor(0, 1, 4)))
	again := func(when string) {
		t.Helper()
		_, err := model.Run(ctx, hocket.Args{DeviceIn: map[string]*hocket.DeviceTensor{"x": x},
			DeviceOut: map[string]*hocket.DeviceTensor{"y": y}})
		must(err)
		got, err := y.Read(ctx)
		must(err)
		if got.Floats()[0] != 10 {
			t.Errorf("%s: %v, want the bound weight's 10", when, got.Floats())
		}
	}
	again("at first")
	again("again")
	rep, err := model.Run(ctx, hocket.Args{In: map[string]*hocket.Tensor{"x": tensor(1, 2, 4), "w": tensor(70, 4)}})
	must(err)
	if got := rep.Out["y"].Floats()[0]; got != 71 {
		t.Errorf("two rows, and a weight for this run: %g, want 71", got)
	}
	again("behind another plan")
}
