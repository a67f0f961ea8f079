package hocket_test

import (
	"errors"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/modeltest"
)

// TestEnqueueOnCPU checks that Enqueue returns an error on the CPU machine, which cannot use the caller's streams, and
// that the model stays usable.
func TestEnqueueOnCPU(t *testing.T) {
	m, err := hocket.Open(t.Context(), hocket.MachineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	model := modeltest.Load(t, m, "func f(%x: f32[4]) -> f32[4] {\n  %y = add %x, %x\n  return %y\n}\n",
		hocket.LoadOptions{})
	at := map[string]map[int]uintptr{"x": {0: 64}}
	a := hocket.EnqueueArgs{Streams: []uintptr{0}, In: at, Out: map[string]map[int]uintptr{"y": {0: 64}}}
	if err := model.Enqueue(t.Context(), a); !errors.Is(err, hocket.ErrUnsupported) {
		t.Errorf("enqueued: %v", err)
	}
	if _, err := model.DeviceTensorAt(t.Context(), "x", nil, at["x"]); !errors.Is(err, hocket.ErrUnsupported) {
		t.Errorf("a device tensor in the caller's memory: %v", err)
	}
	if err := model.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	in, err := model.RandomInputs("ints:1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := model.Run(t.Context(), hocket.Args{In: in}); err != nil {
		t.Error(err)
	}
}
