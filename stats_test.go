package hocket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/hostmem"
	"hocket.example/hocket/internal/modeltest"
	"hocket.example/hocket/ir"
)

// TestMaxWaiting: while one call runs, MaxWaiting calls wait and further calls are refused. Each call is counted once,
// by its outcome.
func TestMaxWaiting(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	c := newCounterWith(t, m, hocket.LoadOptions{MaxWaiting: 1})
	if err := c.BindDevice("s", c.state); err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context) error {
		_, err := c.Run(ctx, hocket.Args{In: c.in})
		return err
	}
	// Fill holds a lease of the state, so that the runs wait.
	ended := make(chan error, 2)
	err := c.state.Fill(t.Context(), func([]hocket.DeviceBlock) error {
		for range 2 {
			go func() { ended <- run(t.Context()) }()
		}
		for m.Stats().Runs.Waiting < 2 {
			time.Sleep(time.Millisecond)
		}
		for range 3 {
			if err := run(t.Context()); !errors.Is(err, hocket.ErrOverloaded) {
				t.Errorf("a third call: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(late); !errors.Is(err, context.Canceled) {
		t.Errorf("a run whose context has ended: %v", err)
	}
	c.in["ids"] = vals(t, ir.I32, []float64{0}, 1)
	if err := run(t.Context()); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("a run with a wrong shape: %v", err)
	}
	c.in["ids"] = vals(t, ir.I32, []float64{3, 0}, 2) // the table has 3 rows; the program computes the ids
	var failed *hocket.RunError
	if err := run(t.Context()); !errors.As(err, &failed) {
		t.Errorf("a run that fails: %v", err)
	}
	s := m.Stats().Runs
	if s.WaitTime <= 0 || s.RunTime <= 0 {
		t.Errorf("%+v: no time was counted", s)
	}
	s.WaitTime, s.RunTime = 0, 0
	if want := (hocket.RunStats{Succeeded: 2, Refused: 1, Overloaded: 3, Expired: 1, Failed: 1}); s != want {
		t.Errorf("counted %+v, want %+v", s, want)
	}
}

// TestBindState checks that BindState fills each inout parameter without a binding with zeros, and that runs keep their
// results in it.
func TestBindState(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	model := modeltest.Load(t, m, "dim T\nmesh tp[2]\nfunc f(%x: f32[T/tp], %a: inout f32[T/tp], %b: inout f32[T/tp], "+
		"%c: inout f32[T/tp]) {\n  add %a, %x into %a\n  add %b, %x into %b\n  add %c, %x into %c\n}\n",
		hocket.LoadOptions{})
	ones := vals(t, ir.F32, []float64{1, 1, 1, 1}, 4)
	dims := map[string]int64{"T": 4}
	own, err := model.NewDeviceTensor(t.Context(), "a", dims)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(own.Write(t.Context(), ones), model.BindDevice("a", own), model.Bind("b", ones)); err != nil {
		t.Fatal(err)
	}
	state, err := model.BindState(t.Context(), dims)
	if err != nil || len(state) != 1 || state["c"] == nil {
		t.Fatalf("state %v, %v; want %%c, since the others are bound", state, err)
	}
	if again, err := model.BindState(t.Context(), dims); err != nil || len(again) != 0 {
		t.Errorf("a second call: %v, %v; want no tensors, since all are bound", again, err)
	}
	var rep *hocket.Report
	for range 3 {
		if rep, err = model.Run(t.Context(), hocket.Args{In: map[string]*hocket.Tensor{"x": ones}}); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]float64{"a": 4, "c": 3} {
		d := map[string]*hocket.DeviceTensor{"a": own, "c": state["c"]}[name]
		now, err := d.Read(t.Context())
		if err != nil || !slices.Equal(now.Floats(), []float64{want, want, want, want}) {
			t.Errorf("%%%s is %v, %v; want %v", name, now, err, want)
		}
	}
	if got := rep.Out["b"].Floats(); got[0] != 2 {
		t.Errorf("%%b, which is bound to a host tensor of ones, is %v after each run", got)
	}
}

// TestBindStateMemory checks that BindState allocates the state once, and no other memory of that size.
func TestBindStateMemory(t *testing.T) {
	const mib = 32
	for _, opts := range []cpu.Options{{}, {Mode: cpu.Scheduled}} { // the second poisons memory
		m := modeltest.Open(t, cpu.New(opts))
		model := modeltest.Load(t, m, "mesh tp[2]\nfunc f(%a: inout f32[16, N/tp]) {\n  copy %a into %a\n}\ndim N = 524288\n",
			hocket.LoadOptions{})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		state, err := model.BindState(t.Context(), nil)
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		if n := (after.TotalAlloc - before.TotalAlloc) >> 20; n < mib || n > mib+4 {
			t.Errorf("%d MiB are allocated for %d MiB of state", n, mib)
		}
		if now, err := state["a"].Read(t.Context()); err != nil || !bytes.Equal(now.Data, make([]byte, mib<<20)) {
			t.Errorf("the state is not zero: %v", err)
		}
	}
}

// TestTooLarge checks that a tensor that exceeds the host's memory gives an error and does not end the process.
func TestTooLarge(t *testing.T) {
	if free := hostmem.Available(); free > 0 && free < 1<<39 {
		if _, err := hocket.NewTensor(ir.F32, 1<<38); !errors.Is(err, hocket.ErrOutOfMemory) {
			t.Errorf("1 TiB: %v", err)
		}
	}
	if _, err := hocket.NewTensor(ir.F32, 1<<50); !errors.Is(err, hocket.ErrTooLarge) {
		t.Errorf("4 PiB: %v", err)
	}
}

// TestBindStateFails checks that BindState binds nothing if the dims of a state's shape are unknown.
func TestBindStateFails(t *testing.T) {
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	model := modeltest.Load(t, m, "dim T\ndim U = 1\nmesh tp[1]\nfunc f(%a: inout f32[U], %b: inout f32[T]) {\n  copy %a into %a\n"+
		"  copy %b into %b\n}\n", hocket.LoadOptions{})
	if state, err := model.BindState(t.Context(), nil); err == nil || state != nil {
		t.Errorf("%v, %v", state, err)
	}
}

// TestIntegers checks that integer tensors hold exactly the values from which they are created.
func TestIntegers(t *testing.T) {
	large := []int64{1<<60 + 1, -1 << 63, 0}
	x, err := hocket.FromInts(ir.I64, large, 3)
	if err != nil || !slices.Equal(x.Ints(), large) {
		t.Errorf("%v, %v", x, err)
	}
	y, err := hocket.FromInts(ir.I32, []int32{-7, 1 << 30}, 2, 1)
	if err != nil || !slices.Equal(y.Ints(), []int64{-7, 1 << 30}) ||
		!slices.Equal(y.Floats(), []float64{-7, 1 << 30}) {
		t.Errorf("%v, %v", y, err)
	}
	z, err := hocket.FromInts(ir.F32, []int{1<<24 + 1}, 1)
	if err != nil || z.Floats()[0] != 1<<24 {
		t.Errorf("%v, %v: not rounded to the nearest even f32", z, err)
	}
	for _, v := range []int64{1 << 31, -1<<31 - 1} {
		if _, err := hocket.FromInts(ir.I32, []int64{0, v}, 2); !errors.Is(err, hocket.ErrInput) {
			t.Errorf("%d as i32: %v", v, err)
		}
	}
	if _, err := hocket.FromInts(ir.I32, []int{1}, 2); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("one value for two elements: %v", err)
	}
	if _, err := hocket.FromFloats(ir.F32, []float64{1}, 2); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("one value for two elements: %v", err)
	}
}

// TestRepresented checks that FromFloats refuses numbers that the type cannot represent, and rounds other numbers.
func TestRepresented(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		dt  ir.DType
		in  float64
		out float64 // 0 if in is refused
	}{
		{ir.F32, 1e300, 0}, {ir.F32, -1e300, 0}, {ir.F32, inf, inf}, {ir.F32, 1 + 1e-12, 1},
		{ir.F32, math.MaxFloat32, math.MaxFloat32},
		{ir.F16, 65504, 65504}, {ir.F16, 65520, 0}, {ir.BF16, 3e38, 0x1.c4p127}, {ir.F64, 1e300, 1e300},
		{ir.F8E4M3, 448, 448}, {ir.F8E4M3, 1000, 0}, {ir.F8E4M3, inf, 0}, {ir.F8E5M2, 57344, 57344},
		{ir.F8E5M2, 1e6, 0},
		{ir.I32, 1.5, 0}, {ir.I32, nan, 0}, {ir.I32, 1e20, 0}, {ir.I32, inf, 0}, {ir.I32, -1 << 31, -1 << 31},
		{ir.I64, 1 << 62, 1 << 62}, {ir.I64, 1 << 63, 0}, {ir.I64, -1 << 63, -1 << 63},
	} {
		x, err := hocket.FromFloats(c.dt, []float64{c.in}, 1)
		if c.out == 0 && !errors.Is(err, hocket.ErrInput) || c.out != 0 && (err != nil || x.Floats()[0] != c.out) {
			t.Errorf("%v as %s: %v, %v; want %v", c.in, c.dt, x, err, c.out)
		}
	}
	if x, err := hocket.FromFloats(ir.F16, []float64{nan}, 1); err != nil || !math.IsNaN(x.Floats()[0]) {
		t.Errorf("NaN as f16: %v, %v", x, err)
	}
	if _, err := hocket.FromInts(ir.F16, []int{70000}, 1); !errors.Is(err, hocket.ErrInput) {
		t.Errorf("70000 as f16: %v", err)
	}
	for what, err := range map[string]error{
		"a negative extent":    second(hocket.FromFloats(ir.F32, []float64{1}, -1)),
		"no type":              second(hocket.NewTensor(ir.InvalidDType, 1)),
		"an extent of a shape": second(hocket.NewTensor(ir.F32, 2, -2)),
	} {
		if !errors.Is(err, hocket.ErrInput) {
			t.Errorf("%s: %v", what, err)
		}
	}
	defer func() {
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "has 4 bytes of data, want 16") {
			t.Errorf("too few bytes: %v", p)
		}
	}()
	(&hocket.Tensor{DType: ir.F32, Shape: []int64{4}, Data: make([]byte, 4)}).Floats()
}

func second(_ *hocket.Tensor, err error) error { return err }

// TestAborted checks that a run that is aborted at its deadline returns a RunError, counts as failed, and leaves the
// state that it updates without contents. Later runs return ErrNoContents, and not ErrInput, until the state is
// written.
func TestAborted(t *testing.T) {
	prog, err := launchProgram(t, "dim N = 300\nmesh tp[1]\n\nfunc f(%x: f32[N], %s: inout f32[N]) {\n"+
		"  launch \"k.cu\":late(%x, into %s, N), grid=1, block=256\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	m := modeltest.Open(t, cpu.New(cpu.Options{}))
	model, err := m.Load(prog, hocket.Binding{}, hocket.LoadOptions{Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	state, err := model.BindState(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	zeros, err := hocket.NewTensor(ir.F32, 300)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(model.Bind("x", zeros), model.Prepare(t.Context(), nil)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var run *hocket.RunError
	if _, err := model.Run(ctx, hocket.Args{}); !errors.As(err, &run) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("aborted: %v", err)
	}
	for range 2 {
		_, err := model.Run(t.Context(), hocket.Args{})
		if !errors.Is(err, hocket.ErrNoContents) || errors.Is(err, hocket.ErrInput) {
			t.Errorf("without state: %v", err)
		}
	}
	if err := state["s"].Write(t.Context(), zeros); err != nil {
		t.Fatal(err)
	}
	if _, err := model.Run(t.Context(), hocket.Args{}); err != nil {
		t.Error(err)
	}
	s := m.Stats().Runs
	if s.WaitTime, s.RunTime = 0, 0; s != (hocket.RunStats{Succeeded: 1, Failed: 3}) {
		t.Errorf("counted %+v, want the aborted run and those without state as failed", s)
	}
}
