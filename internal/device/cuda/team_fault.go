package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/kernels"
)

// openAbort allocates the word of memory by which the host makes teams' kernels stop waiting.
func openAbort(w *world) error {
	if w.abort != 0 {
		return nil
	}
	at, err := w.sites[0].take(device.Pinned, 8)
	if err != nil {
		return err
	}
	cabi.Store(uintptr(at), uint64(0))
	w.abort = at
	w.guard.AbortBy(uintptr(at))
	return nil
}

// endTeams makes kernels that wait for peers stop. The caller holds mu.
func endTeams(w *world) {
	if w.abort != 0 {
		cabi.StoreAtomic(uintptr(w.abort), 1)
	}
}

// readTeams ends the world if a kernel of a team has reported a fault. The caller holds mu.
func readTeams(w *world) {
	for _, t := range w.teams {
		for _, m := range t.own {
			told, ok := kernels.ReadFault(cabi.Bytes(uintptr(m.record), kernels.FaultBytes))
			if ok && w.cause == nil {
				w.end(&device.Fault{Rank: m.dev.rank, Stream: m.stream.name, ID: m.id, Err: m.explain(told)})
			}
		}
	}
}

// errLate means that a member timed out while it waited for another member of its team; its error wraps errLate.
var errLate = errors.New("gave up waiting for a member of the team")

// explain returns an error for the member m, which timed out in a launch of the team. The error names the members that
// had not begun this launch.
func (m *member) explain(told kernels.Fault) error {
	epoch := uint32(told.Words[0])
	waited := time.Duration(told.Words[2]).Round(time.Millisecond)
	var late []string
	owner := m.dev.site.owner
	for _, o := range m.team.members {
		if begun, err := o.begun(m.dev); err == nil && int32(begun-epoch) < 0 {
			late = append(late, fmt.Sprintf("member %d (rank %d)", o.index, o.dev.rank))
			owner = o.dev.site.owner
		}
	}
	longer, launch := m.team.w.m.opts.longer(), epoch-kernels.FirstEpoch
	if len(late) == 0 && told.Words[1] == int64(m.index) { // the kernel cannot identify the writer of the packets
		return fmt.Errorf("%s: %w: packets of another member had not arrived after %v, although all members had begun the team's "+
			"launch %d; %s", m.doing, errLate, waited, launch, longer)
	}
	if len(late) == 0 { // by now all members have begun the launch, at least one of them too late
		p := m.team.members[told.Words[1]]
		owner = p.dev.site.owner
		late = append(late, fmt.Sprintf("member %d (rank %d), now there,", p.index, p.dev.rank))
	}
	err := fmt.Errorf("%s: %w: after %v %s had not begun the team's launch %d: every launch of a team must be issued on all members. %s",
		m.doing, errLate, waited, strings.Join(late, ", "), launch, longer)
	return m.team.w.blame(err, owner)
}

// TimeoutVariable names the environment variable that sets Options.TeamTimeout: the limit on how long a kernel waits
// for another GPU, and on how long NCCL may take to load.
const TimeoutVariable = "HOCKET_TEAM_TIMEOUT"

// longer returns advice on how to raise the time limit, for the errors of waits that timed out.
func (o *Options) longer() string {
	limit := o.teamTimeout()
	return fmt.Sprintf("set %s=%v to wait longer than %v, which --timeout does not change; tools that run kernels one after the other (some profilers and sanitizers) make these waits time out",
		TimeoutVariable, 10*limit, limit)
}

// begun returns the number of the member's most recent launch that has begun. It reads the number through another
// device, by, which can access the member's memory.
func (m *member) begun(by *dev) (begun uint32, err error) {
	err = by.bound(func() error {
		word, err := signal.Read(by.w.drv, by.site.heaps[device.Pinned], m.control+kernels.ControlBegun, 4)
		if err == nil {
			begun = binary.LittleEndian.Uint32(word)
		}
		return err
	})
	return begun, err
}
