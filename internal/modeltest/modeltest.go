// Package modeltest opens machines and loads models for tests of hocket's API.
package modeltest

import (
	"context"
	"os"
	"sync"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/world"
)

var opening sync.Mutex

// Open opens dev as a hocket.Machine. The machine is closed when the test ends.
func Open(t testing.TB, dev device.Machine) *hocket.Machine {
	t.Helper()
	const name = "under test"
	opening.Lock() // a unique name, because another test or goroutine may register a machine, too
	defer opening.Unlock()
	device.Register(device.Kind{Name: name, Open: func(*world.World) (device.Machine, error) { return dev, nil }})
	return open(t, name, false)
}

// GPUs opens the CUDA machine; the test must import package cuda. The test is skipped if there is
// no GPU and none is required.
func GPUs(t testing.TB) *hocket.Machine {
	t.Helper()
	return open(t, "cuda", os.Getenv(devicetest.RequireVariable) == "")
}

// open opens a machine. If the machine cannot be opened, the test is skipped if optional is set, and fails otherwise.
func open(t testing.TB, name string, optional bool) *hocket.Machine {
	t.Helper()
	// The test's own context is cancelled before its cleanup functions run.
	m, err := hocket.Open(context.WithoutCancel(t.Context()), hocket.MachineOptions{Name: name})
	if err != nil && optional {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// Load loads a program's text.
func Load(t testing.TB, m *hocket.Machine, text string, opts hocket.LoadOptions) *hocket.Model {
	t.Helper()
	p, err := hocket.Parse("test.hkt", text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	model, err := m.Load(p, hocket.Binding{}, opts)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return model
}
