package cuda

import "testing"

func TestQueues(t *testing.T) {
	for streams, want := range map[int32]int{0: 32, 1: 8, 8: 8, 9: 9, 20: 20, 32: 32, 100: 32, -3: 32} {
		if got := queues(streams); got != want {
			t.Errorf("%d streams: %d queues, want %d", streams, got, want)
		}
	}
}
