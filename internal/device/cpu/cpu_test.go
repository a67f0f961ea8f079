package cpu_test

import (
	"fmt"
	"testing"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/device/devicetest"
)

func TestConcurrent(t *testing.T) {
	for _, workers := range []int{0, 3} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			devicetest.Run(t, func(*testing.T) device.Machine { return cpu.New(cpu.Options{Workers: workers}) })
		})
		if testing.Short() {
			break
		}
	}
}

func TestScheduled(t *testing.T) {
	seeds := int64(16)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			suite := devicetest.RunOrders
			if seed == 0 {
				suite = devicetest.Run
			}
			suite(t, func(*testing.T) device.Machine { return cpu.New(cpu.Options{Mode: cpu.Scheduled, Seed: seed}) })
		})
	}
}
