package acceptance_test

import (
	"context"
	"fmt"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/modeltest"
)

// TestDeviceTensors performs random operations on device tensors, on the machine of -soak.machine.
func TestDeviceTensors(t *testing.T) {
	count := 400
	if testing.Short() {
		count = 100
	}
	if *soakMachine != "cpu" {
		m, err := hocket.Open(context.WithoutCancel(t.Context()), hocket.MachineOptions{Name: *soakMachine})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for _, graph := range []bool{false, true} {
			t.Run(fmt.Sprint("graph ", graph), func(t *testing.T) {
				modeltest.DeviceTensors(t, m, hocket.LoadOptions{Graph: graph}, nil, 7, count)
			})
		}
		return
	}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("concurrent ", seed), func(t *testing.T) {
			modeltest.DeviceTensors(t, modeltest.Open(t, cpu.New(cpu.Options{})), hocket.LoadOptions{}, nil, seed,
				count)
		})
		t.Run(fmt.Sprint("scheduled ", seed), func(t *testing.T) {
			dev := cpu.New(cpu.Options{Mode: cpu.Scheduled, Seed: int64(seed)})
			modeltest.DeviceTensors(t, modeltest.Open(t, dev), hocket.LoadOptions{}, nil, seed+100, count)
		})
	}
}
