package cuda

import (
	"fmt"
	"testing"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/devicetest"
)

func TestTeams(t *testing.T) {
	real(t, Options{})
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprint("ranks-per-gpu", ranks), func(t *testing.T) {
			open := func(timeout time.Duration) func(t *testing.T) device.Machine {
				return func(t *testing.T) device.Machine {
					return real(t, Options{RanksPerGPU: ranks, TeamTimeout: timeout})
				}
			}
			devicetest.RunTeams(t, open(10*time.Second), open(200*time.Millisecond))
		})
	}
}
