package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
)

// TestLaunch runs the example with a Go function in place of its kernel.
func TestLaunch(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		if err := run(t.Context(), "cpu", ".", ranks); err != nil {
			t.Error(err)
		}
	}
}

// TestLaunchSchedules runs the example under many schedules of its streams, with memory that is overwritten when it may
// no longer be read.
func TestLaunchSchedules(t *testing.T) {
	text, err := os.ReadFile("swish.hkt")
	if err != nil {
		t.Fatal(err)
	}
	prog, err := hocket.Parse("swish.hkt", string(text))
	if err != nil {
		t.Fatal(err)
	}
	for seed := range int64(20) {
		m, err := hocket.Open(t.Context(), hocket.MachineOptions{Scheduled: true, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		if err := compared(t, m, prog, 2, hocket.LoadOptions{}); err != nil {
			t.Errorf("schedule %d: %v", seed, err)
		}
		_ = m.Close()
	}
}

// sharded is an MLP whose activation is a kernel on each rank's own part. The collectives and GEMMs before and after
// the kernel are overlapped.
const sharded = `dim P = 2
dim T = 64
dim H = 32
dim F = 48
mesh tp[P]

func mlp(%x: f32[T/tp, H], %w: f32[F/tp, H]) -> f32[T/tp, F] {
  %h = linear %x, %w
  %b = alloc f32[T, F/tp]
  let %n = extent(%b, 0) * extent(%b, 1)
  launch "swish.cu":swish(%h, into %b, i64 %n, f32 1), grid=ceildiv(%n, 256), block=256
  %g: f32[T, F/tp] = claim %b
  %y: f32[T/tp, F] = reshard %g
  return %y
}
`

var strategies = []string{"sequential", "chunked", "exchange", "exchange(2)"}

// TestLaunchStrategies overlaps collectives with the GEMMs before and after a launched kernel.
func TestLaunchStrategies(t *testing.T) {
	prog, err := hocket.Parse("sharded.hkt", sharded)
	if err != nil {
		t.Fatal(err)
	}
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	for _, s := range strategies {
		for _, ranks := range []int{1, 2, 4} {
			if err := compared(t, m, prog, ranks, hocket.LoadOptions{Strategy: s}); err != nil {
				t.Errorf("%s, %d ranks: %v", s, ranks, err)
			}
		}
	}
}

// compared runs a program like the example, and compares its results with the reference.
func compared(t *testing.T, m *hocket.Machine, prog *hocket.Program, ranks int, opts hocket.LoadOptions) error {
	model, err := m.Load(prog, hocket.Binding{Dims: map[string]int64{"P": int64(ranks)}}, opts)
	if err != nil {
		return err
	}
	args := hocket.Args{In: map[string]*hocket.Tensor{}}
	for i, name := range []string{"x", "w"} {
		if args.In[name], err = draw(int64(i), [][]int64{{64, 32}, {48, 32}}[i]); err != nil {
			return err
		}
	}
	ref, err := model.Reference(t.Context(), args)
	if err != nil {
		return err
	}
	for range 3 {
		rep, err := model.Run(t.Context(), args)
		if err != nil {
			return err
		}
		if c := ref.Compare(rep); c.Verdict != hocket.Within {
			return fmt.Errorf("%s", c)
		}
	}
	return nil
}

// TestLaunchCUDA runs the example's kernel on a GPU, call by call and by graph; on two GPUs if there are two.
func TestLaunchCUDA(t *testing.T) {
	m := modeltest.GPUs(t)
	text, err := os.ReadFile("swish.hkt")
	if err != nil {
		t.Fatal(err)
	}
	onGPUs(t, m, "swish.hkt", string(text))
	onGPUs(t, m, "sharded.hkt", sharded, strategies[1:]...)
}

func onGPUs(t *testing.T, m *hocket.Machine, name, text string, strategies ...string) {
	t.Helper()
	prog, err := hocket.Parse(name, text)
	if err != nil {
		t.Fatal(err)
	}
	all := []hocket.LoadOptions{{}, {Graph: true}, {CheckLaunches: true}, {Graph: true, CheckLaunches: true}}
	for _, s := range strategies {
		all = append(all, hocket.LoadOptions{Strategy: s}, hocket.LoadOptions{Strategy: s, Graph: true})
	}
	for _, opts := range all {
		for _, ranks := range []int{1, 2} {
			err := compared(t, m, prog, ranks, opts)
			if ranks > 1 && err != nil && strings.Contains(err.Error(), "at most 1") {
				t.Log(err)
				continue
			}
			if err != nil {
				t.Errorf("%s %s, %d ranks, graph %v, checked %v: %v", name, opts.Strategy, ranks, opts.Graph, opts.CheckLaunches, err)
			}
		}
	}
}

func init() {
	for _, name := range []string{"swish.ptx:swish", "swish.cubin:swish"} {
		hocket.RegisterKernel(name, func(c *hocket.KernelCall) error { return swish(c, 2) })
	}
}

// TestLaunchTriton runs the swish kernel as compiled by Triton, from PTX and from a cubin.
func TestLaunchTriton(t *testing.T) {
	m := modeltest.GPUs(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	if out, err := exec.Command(python, "-c", "import torch, triton").CombinedOutput(); err != nil {
		t.Skipf("no Triton: %s", out)
	}
	dir := t.TempDir()
	if out, err := exec.Command(python, "triton_swish.py", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var meta struct{ Params, Threads, Shared int }
	b, err := os.ReadFile(filepath.Join(dir, "swish.json"))
	if err == nil {
		err = json.Unmarshal(b, &meta)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("swish.hkt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"swish.ptx", "swish.cubin"} {
		call := fmt.Sprintf(`launch "%s":swish(%%h, into %%yi, i32 %%n%s), grid=ceildiv(%%n, 256), block=%d, shared=%d`,
			file, strings.Repeat(", i64 0", meta.Params-3), meta.Threads, meta.Shared)
		onGPUs(t, m, filepath.Join(dir, "swish.hkt"), withLaunch(t, string(text), call))
	}
}

// withLaunch replaces the launch statement of a program by another one.
func withLaunch(t *testing.T, text, call string) string {
	t.Helper()
	from := strings.Index(text, `launch "`)
	to := from + strings.IndexByte(text[max(from, 0):], '\n')
	if from < 0 || to < from {
		t.Fatal("there is no launch")
	}
	return text[:from] + call + text[to:]
}
