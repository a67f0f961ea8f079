package process

import (
	"fmt"
	"testing"

	"hocket.example/hocket/internal/device/cuda/doctor"
)

func TestQueues(t *testing.T) {
	for streams, want := range map[int32]int{0: 32, 1: 8, 8: 8, 9: 9, 20: 20, 32: 32, 100: 32, -3: 32} {
		if got := queues(streams); got != want {
			t.Errorf("%d streams: %d queues, want %d", streams, got, want)
		}
	}
}

func TestMulticastAsked(t *testing.T) {
	for v, want := range map[string]string{"": "false <nil>", "off": "false <nil>", "on": "true <nil>", "1": "false HOCKET_MULTICAST=1: it is on or off", "ON": "false HOCKET_MULTICAST=ON: it is on or off"} {
		t.Setenv(doctor.MulticastVariable, v)
		asked, err := multicastAsked()
		if got := fmt.Sprint(asked, " ", err); got != want {
			t.Errorf("%q: %s, want %s", v, got, want)
		}
	}
}
