package cuda

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/fakedriver"
	"hocket.example/hocket/internal/kernels"
)

// TestTeamGivesUp makes a kernel report a timeout. The error must name the member for which it waited, and how to
// increase the timeout. A member that waits for packets in its own memory cannot know which member writes them.
func TestTeamGivesUp(t *testing.T) {
	for _, c := range []struct {
		peer, begun uint64 // the member that was waited for, and the number of launches it has begun
		parts       []string
	}{
		{0, 0, []string{"after 2s member 0 (rank 0)", "had not begun the team's launch 3"}},
		{0, 3, []string{"after 2s member 0 (rank 0), now there, had not begun the team's launch 3"}},
		{1, 3, []string{"had not arrived after 2s, although all members had begun the team's launch 3"}},
	} {
		f := fakedriver.New(t, 2)
		w, err := newMachine(system(f), Options{Kernels: f, TeamTimeout: 2 * time.Second}).Open(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		r := newTeamRig(t, w, "late", []int{0, 1})
		m := r.team.(*team).members[1]
		m.doing = "all_reduce by ll"
		for _, o := range m.team.members {
			begun := cabi.Bytes(uintptr(o.control)+kernels.ControlBegun, 4)
			binary.LittleEndian.PutUint32(begun, kernels.FirstEpoch+uint32(c.begun))
		}
		record := cabi.Bytes(uintptr(m.record), kernels.FaultBytes)
		words := []uint64{uint64(kernels.FaultTimeout) | 1, 0, kernels.FirstEpoch + 3, c.peer, uint64(2 * time.Second)}
		for i, v := range words {
			binary.LittleEndian.PutUint64(record[8*i:], v)
		}
		err = w.Sync(t.Context())
		var fault *device.Fault
		if !errors.As(err, &fault) || fault.Rank != 1 || !errors.Is(err, errLate) {
			t.Fatalf("got %v", err)
		}
		for _, part := range append(c.parts, "all_reduce by ll: ",
			"HOCKET_TEAM_TIMEOUT=20s to wait longer than 2s, which --timeout does not change") {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v lacks %q", err, part)
			}
		}
		r.must(w.Close())
	}
}
