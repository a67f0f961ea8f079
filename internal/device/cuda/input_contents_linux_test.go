package cuda

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/modeltest"
)

// TestInputContents tests that the values of inputs are checked before executions on fake GPUs: ids, positions, lengths
// and counts.
func TestInputContents(t *testing.T) {
	for _, graph := range []bool{false, true} {
		t.Run(fmt.Sprint("graph ", graph), func(t *testing.T) {
			f := fakedriver.New(t, 1)
			gpus := newMachine(system(f), Options{Kernels: f, RanksPerGPU: 2})
			modeltest.InputContents(t, modeltest.Open(t, gpus), hocket.LoadOptions{Graph: graph}, byDriver{gpus})
		})
	}
}

// TestInputContentsOnGPU is TestInputContents on real GPUs, on which several ranks may share one.
func TestInputContentsOnGPU(t *testing.T) {
	for _, graph := range []bool{false, true} {
		t.Run(fmt.Sprint("graph ", graph), func(t *testing.T) {
			gpus := real(t, Options{RanksPerGPU: 2})
			modeltest.InputContents(t, modeltest.Open(t, gpus), hocket.LoadOptions{Graph: graph}, byDriver{gpus})
		})
	}
}

// TestEnqueueInputContents checks an enqueued execution that reads a wrong id from device memory. The wrong id is
// reported as an InputError that says that the execution had begun. Later calls report that the state is lost, until it
// is bound again.
func TestEnqueueInputContents(t *testing.T) {
	c := &caller{T: t, f: fakedriver.New(t, 2)}
	c.f.Queue()
	c.sys = system(c.f)
	c.m = modeltest.Open(t, newMachine(c.sys, Options{Kernels: c.f}))
	c.model = modeltest.Load(t, c.m, "mesh tp[2]\nfunc f(%ids: i32[2], %e: f32[5, 2], %n: inout f32[2, 2]) -> f32[2, 2] {\n"+
		"  %x = embedding %ids, %e\n  %y = add %n, %x\n  copy %y into %n\n  return %x\n}\n", hocket.LoadOptions{})
	c.in = map[string]map[int]uintptr{"ids": c.block(2), "e": c.block(10)}
	c.out = map[string]map[int]uintptr{"x": c.block(4)}
	n := c.block(4)
	bind := func() {
		d, err := c.model.DeviceTensorAt(t.Context(), "n", nil, n)
		if err == nil {
			err = c.model.BindDevice("n", d)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for r := range 2 {
		store(c.in["e"][r], []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
		store(n[r], make([]float32, 4))
	}
	bind()
	c.makeStreams()
	run := func(ids ...int32) error {
		for r := range 2 {
			store(c.in["ids"][r], ids)
		}
		if err := c.enqueue(); err != nil {
			return fmt.Errorf("enqueue: %w", err)
		}
		return c.model.Sync(t.Context())
	}
	if err := run(1, 4); err != nil {
		t.Fatal(err)
	}
	err := run(1, 7)
	var e *hocket.InputError
	if !errors.As(err, &e) || !e.Begun || fmt.Sprint(e.Param, e.Index, e.Value, e.Low, e.High) != "ids[1] 7 0 5" ||
		!strings.Contains(err.Error(), "undefined contents") {
		t.Fatalf("a wrong id: %v", err)
	}
	if err := run(1, 4); !errors.Is(err, hocket.ErrNoContents) || errors.Is(err, hocket.ErrInput) {
		t.Errorf("after it: %v", err)
	}
	for r := range 2 {
		store(n[r], make([]float32, 4))
	}
	bind()
	if err := run(2, 0); err != nil {
		t.Fatal(err)
	}
	for r := range 2 {
		if got := load[float32](n[r], 4); fmt.Sprint(got) != "[4 5 0 1]" {
			t.Errorf("rank %d: %v", r, got)
		}
	}
}
