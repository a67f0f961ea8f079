package hocket_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// launchedKernels is the source of the kernels that the programs below launch.
const launchedKernels = `
// doubled(const float* x) is a comment
extern "C" __global__ void __launch_bounds__(256) doubled(const float* x, float* y, int n) {}
extern "C" __global__ void grow(float *x, const int n, double by) {}
extern "C" __global__ void unknown(const float* x, float* y, int n) {}
extern "C" __global__ void meddle(const float* x, float* y, int n) {}
extern "C" __global__ void peek(const float* x, float* y, int n) {}
extern "C" __global__ void fails(const float* x, float* y, int n) {}
extern "C" __global__ void exits(const float* x, float* y, int n) {}
extern "C" __global__ void late(const float* x, float* y, int n) {}
extern "C" __global__ void panics(const float* x, float* y, int n) {}
`

// floatsOf returns a stand-in function that applies f to the elements of argument 0 and writes the results to argument
// 1.
func floatsOf(c *hocket.KernelCall, from, to int, f func(x, y float64) float64) error {
	x, y := c.Args[from].Tensor.Floats(), c.Args[to].Tensor.Floats()
	for i := range y {
		y[i] = f(x[i], y[i])
	}
	t, err := hocket.FromFloats(c.Args[to].Tensor.DType, y, c.Args[to].Tensor.Shape...)
	copy(c.Args[to].Tensor.Data, t.Data)
	return err
}

func init() {
	double := func(x, _ float64) float64 { return 2 * x }
	hocket.RegisterKernel("k.cu:doubled", func(c *hocket.KernelCall) error {
		if n := c.Args[1].Tensor.Shape[0]; c.Args[2].Int != n || c.Grid != [3]int64{(n + 255) / 256, 1, 1} ||
			c.Block[0] != 256 || c.Shared != 16 {
			return fmt.Errorf("called by %v", c)
		}
		return floatsOf(c, 0, 1, double)
	})
	hocket.RegisterKernel("k.cu:grow", func(c *hocket.KernelCall) error {
		return floatsOf(c, 0, 0, func(x, _ float64) float64 { return x * c.Args[2].Float })
	})
	hocket.RegisterKernel("k.cu:peek", func(c *hocket.KernelCall) error {
		return floatsOf(c, 0, 1, func(x, y float64) float64 { return x + y })
	})
	hocket.RegisterKernel("k.cu:meddle", func(c *hocket.KernelCall) error {
		c.Args[0].Tensor.Data[5]++
		return floatsOf(c, 0, 1, double)
	})
	hocket.RegisterKernel("k.cu:late", func(c *hocket.KernelCall) error {
		time.Sleep(200 * time.Millisecond)
		return floatsOf(c, 0, 1, double)
	})
	hocket.RegisterKernel("k.cu:fails", func(*hocket.KernelCall) error { return errors.New("no luck") })
	hocket.RegisterKernel("k.cu:exits", func(*hocket.KernelCall) error { runtime.Goexit(); return nil })
	hocket.RegisterKernel("k.cu:panics", func(*hocket.KernelCall) error { panic("bad luck") })
}

// launching is a program that launches the kernel doubled on one stream and the kernel grow on another.
const launching = `dim N = 300
mesh tp[1]

func twice(%x: f32[N]) -> f32[N] {
  %y = scale %x, by=6
  return %y
}

func launched(%x: f32[N]) -> f32[N] refines twice {
  %s = stream
  %y = alloc f32[N]
  on %s {
    wait main
    launch "k.cu:doubled, shared=16
    launch "k.cu":grow(inout %y, N, f64 3), grid=1, block=(16, 16)
  }
  wait %s
  return %y
}
`

var sixfold = strings.Replace(launching, `"k.cu:doubled`,
	`"k.cu":doubled(%x, into %y, N), grid=ceildiv(N, 256), block=256`, 1)

// launchProgram parses a program in a folder that contains k.cu.
func launchProgram(t *testing.T, text string) (*hocket.Program, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "k.cu"), []byte(launchedKernels), 0o600); err != nil {
		t.Fatal(err)
	}
	return hocket.Parse(filepath.Join(dir, "p.hkt"), text)
}

// launchRun runs a program on x = 0, 1, 2, … and compares the results with the reference.
func launchRun(t *testing.T, opts hocket.MachineOptions, text string) (hocket.Comparison, *hocket.Report, error) {
	t.Helper()
	prog, err := launchProgram(t, text)
	if err != nil {
		return hocket.Comparison{}, nil, err
	}
	m, err := hocket.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	model, err := m.Load(prog, hocket.Binding{}, hocket.LoadOptions{NoProve: opts.Scheduled})
	if err != nil {
		return hocket.Comparison{}, nil, err
	}
	vals := make([]float64, 300)
	for i := range vals {
		vals[i] = float64(i)
	}
	x, err := hocket.FromFloats(ir.F32, vals, 300)
	if err != nil {
		t.Fatal(err)
	}
	args := hocket.Args{In: map[string]*hocket.Tensor{"x": x}}
	rep, err := model.Run(t.Context(), args)
	if err != nil {
		return hocket.Comparison{}, nil, err
	}
	ref, err := model.Reference(t.Context(), args)
	if err != nil {
		return hocket.Comparison{}, rep, err
	}
	return ref.Compare(rep), rep, nil
}

// TestLaunched checks that the CPU machine and the evaluator execute launches by the registered Go functions.
func TestLaunched(t *testing.T) {
	for seed := range int64(5) {
		c, rep, err := launchRun(t, hocket.MachineOptions{Scheduled: seed > 0, Seed: seed}, sixfold)
		if err != nil || c.Err() != nil || c.Verdict == hocket.Undecided {
			t.Fatalf("seed %d: %v, %v", seed, c, err)
		}
		if y := rep.Out["y"].Floats(); y[7] != 42 || y[299] != 6*299 {
			t.Errorf("got %v", y)
		}
	}
}

// TestLaunchRefuted checks that a program is refuted if a launch races with another op. Each wait is needed.
func TestLaunchRefuted(t *testing.T) {
	for _, wait := range []string{"    wait main\n", "  wait %s\n"} {
		prog, err := launchProgram(t, strings.Replace(sixfold, wait, "", 1))
		if err != nil {
			t.Fatal(err)
		}
		v, err := hocket.Check(prog, hocket.Binding{})
		if err != nil {
			t.Fatal(err)
		}
		if text := v.Diagnostics.Error(); v.Kind != hocket.Refuted || !strings.Contains(text, "launch") ||
			!strings.Contains(text, "may run at the same time") {
			t.Errorf("without %q: %s", wait, text)
		}
	}
}

// TestLaunchFixed checks that Fix adds a missing wait before or after a launch.
func TestLaunchFixed(t *testing.T) {
	prog, err := launchProgram(t, strings.NewReplacer("    wait main\n", "", "  wait %s\n", "").Replace(sixfold))
	if err != nil {
		t.Fatal(err)
	}
	fixed, err := hocket.Fix(prog, hocket.Binding{})
	if err != nil || fixed == nil || fixed.Verdict.Kind != hocket.Proved || len(fixed.Edits) != 2 {
		t.Errorf("%+v, %v", fixed, err)
	}
}

// TestLaunchUndeclared checks that reads and writes of a kernel that its launch does not declare are found.
func TestLaunchUndeclared(t *testing.T) {
	_, _, err := launchRun(t, hocket.MachineOptions{}, strings.Replace(sixfold, ":doubled", ":meddle", 1))
	if err == nil || !strings.Contains(err.Error(), "k.cu:meddle writes argument 0, which the launch says it reads") ||
		!strings.Contains(err.Error(), "rank 0") {
		t.Errorf("a write: %v", err)
	}
	c, rep, err := launchRun(t, hocket.MachineOptions{}, strings.Replace(sixfold, ":doubled", ":peek", 1))
	if rep == nil || !math.IsNaN(rep.Out["y"].Floats()[3]) {
		t.Errorf("a read does not show: %v, %v", c, err)
	}
	for name, says := range map[string]string{":fails": "no luck", ":panics": "panics: bad luck"} {
		_, _, err := launchRun(t, hocket.MachineOptions{}, strings.Replace(sixfold, ":doubled", name, 1))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLaunchUnknown checks that, if no function is registered for a kernel, loading on the CPU machine fails and the
// evaluator has no reference.
func TestLaunchUnknown(t *testing.T) {
	text := strings.Replace(sixfold, ":doubled", ":unknown", 1)
	_, _, err := launchRun(t, hocket.MachineOptions{}, text)
	if !errors.Is(err, hocket.ErrUnsupported) ||
		!strings.Contains(err.Error(), "no stand-in function is registered for k.cu:unknown") {
		t.Errorf("got %v", err)
	}
	// Only the reference function launches the kernel; the function that runs does not.
	swapped := strings.NewReplacer("func twice(", "func other(", "refines twice", "", "func launched(",
		"func known(").Replace(text)
	swapped += `
func same(%x: f32[N]) -> f32[N] refines known {
  %y = scale %x, by=6
  return %y
}
`
	c, _, err := launchRun(t, hocket.MachineOptions{}, swapped)
	if err != nil || c.Verdict != hocket.Undecided {
		t.Errorf("got %v, %v", c, err)
	}
}

// TestLaunchExits checks that a run fails if a kernel's function calls runtime.Goexit, as t.FailNow does.
func TestLaunchExits(t *testing.T) {
	text := strings.Replace(sixfold, ":doubled(", ":exits(", 1)
	_, _, err := launchRun(t, hocket.MachineOptions{}, text)
	if err == nil || !strings.Contains(err.Error(), "called runtime.Goexit") {
		t.Errorf("got %v", err)
	}
	ended := make(chan error, 1) // a scheduled machine runs kernels on the caller's goroutine
	go func() {
		defer close(ended)
		_, _, err := launchRun(t, hocket.MachineOptions{Scheduled: true}, text)
		ended <- err
	}()
	if err, returned := <-ended; returned {
		t.Errorf("the run returned %v", err)
	}
}

// TestLaunchErrors checks that errors about launches have positions, both in parsing and in planning.
func TestLaunchErrors(t *testing.T) {
	const call = `launch "k.cu":doubled(%x, into %y, N), grid=ceildiv(N, 256), block=256, shared=16`
	for bad, says := range map[string]string{
		`launch "none.cu":doubled(%x, into %y, N), grid=1, block=256`:          `14:12: "none.cu" cannot be read`,
		`launch "../k.cu":doubled(%x, into %y, N), grid=1, block=256`:          `14:12: "../k.cu" does not name a file below the program's directory`,
		`launch "/etc/k.cu":doubled(%x, into %y, N), grid=1, block=256`:        `does not name a file below the program's directory`,
		`launch "k.txt":doubled(%x, into %y, N), grid=1, block=256`:            `the name "k.txt" does not end like that of a file with kernels`,
		`launch "k.cu":tripled(%x, into %y, N), grid=1, block=256`:             `14:19: "k.cu" has no kernel tripled`,
		`launch "k.cu":doubled(%x, into %y), grid=1, block=256`:                `14:19: k.cu:doubled takes 3 arguments, and gets 2`,
		`launch "k.cu":doubled(%x, into %y, i64 N), grid=1, block=256`:         `14:40: argument 2 of k.cu:doubled has 4 bytes, and gets 8`,
		`launch "k.cu":doubled(%x, 3, into %y), grid=1, block=256`:             `argument 1 of k.cu:doubled is a pointer, and gets a number`,
		`launch "k.cu":doubled(%x, %y, N), grid=1, block=256`:                  `has no argument to write to`,
		`launch "k.cu":doubled(into %x, into %y, N), grid=1, block=256`:        `14:27: the parameter %x is read-only`,
		`launch "k.cu":doubled(%y, into %y, N), grid=1, block=256`:             `writes %y, which is passed to it twice`,
		`launch "k.cu":doubled(%x, into %y, N), grid=0, block=256`:             `14:49: extent 0 of grid= is 0`,
		`launch "k.cu":doubled(%x, into %y, N), grid=(1, 70000), block=256`:    `extent 1 of grid= is 70000`,
		`launch "k.cu":doubled(%x, into %y, N), grid=(1,1,1,1), block=256`:     `grid= has 4 extents`,
		`launch "k.cu":doubled(%x, into %y, N), grid=1, block=(64, 32)`:        `a block of 2048 threads is too large: a block can have at most 1024`,
		`launch "k.cu":doubled(%x, into %y, N), grid=1, block=256, shared=-1`:  `shared=-1 is not in`,
		`launch "k.cu":doubled(%x, into %y, N), grid=1`:                        `launch needs the attribute block=`,
		`launch "k.cu":doubled(%x, into %y, N * 10000000000), grid=1, block=1`: `3000000000000 does not fit i32`,
		`launch "k.cu":doubled(%x, into %y, bf16 1), grid=1, block=1`:          `a kernel's number cannot have the type bf16`,
		`launch "k.cu":doubled(%x * 2, into %y, N), grid=1, block=1`:           `14:30: expected "," or ")"`,
		`launch "k.cu:doubled(%x, into %y, N), grid=1, block=1`:                `14:12: expected the quoted name of a file`,
		`launch k.cu:doubled(%x, into %y, N), grid=1, block=1`:                 `14:12: expected the quoted name of a file`,
		`%z = launch "k.cu":doubled(%x, into %y, N), grid=1, block=1`:          `launch has no result`,
		`launch "k.cu":doubled(%x, into %w, N), grid=1, block=1`:               `%w`,
	} {
		prog, err := launchProgram(t, strings.Replace(sixfold, call, bad, 1))
		if err == nil {
			var v hocket.Verdict
			if v, err = hocket.Check(prog, hocket.Binding{}); err == nil && v.Kind == hocket.Refuted {
				err = v.Diagnostics
			}
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s:\n%v\nlacks %q", bad, err, says)
		}
	}
}

// TestRegisterTwice checks that RegisterKernel panics if a kernel already has a function.
func TestRegisterTwice(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a second function for a kernel is taken")
		}
	}()
	hocket.RegisterKernel("k.cu:doubled", func(*hocket.KernelCall) error { return nil })
}
