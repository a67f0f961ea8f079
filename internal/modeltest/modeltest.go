// Package modeltest opens machines and loads models for tests of hocket's API.
package modeltest

import (
	"context"
	"os"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/devicetest"
	"hocket.example/hocket/internal/world"
)

// Open opens dev for hocket's API. It is closed when the test ends.
func Open(t testing.TB, dev device.Machine) *hocket.Machine {
	t.Helper()
	const name = "under test"
	device.Register(device.Kind{Name: name, Open: func(*world.World) (device.Machine, error) { return dev, nil }})
	return open(t, name, false)
}

// GPUs opens the CUDA machine, which the test imports, or skips the test where there is none and none is required.
func GPUs(t testing.TB) *hocket.Machine {
	t.Helper()
	return open(t, "cuda", os.Getenv(devicetest.RequireVariable) == "")
}

// open opens a machine. Where it cannot be opened the test ends, skipped if that is optional.
func open(t testing.TB, name string, optional bool) *hocket.Machine {
	t.Helper()
	// The test's own context is over when what it cleans up runs.
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
