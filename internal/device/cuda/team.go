package cuda

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/device/cuda/nccl"
	"hocket.example/hocket/internal/device/cuda/signal"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// A team runs a collective as one kernel on each member. Unlike the machine's other work, these kernels wait for each
// other on the devices (see the package comment). Three rules prevent deadlocks. First, all members issue the launches
// of a team in the same order, each member on one stream, and the kernels of one launch are issued to the devices as a
// group (see the method together). Second, the thread blocks of a kernel fit on the device together with the blocks of
// all other teams' kernels that may run at the same time (see Room). Third, every wait has a time limit.

// team holds the devices (members) that run collectives together, each on one stream.
type team struct {
	w        *world
	members  []*member
	own      []*member            // members of this process
	regions  map[string]coll.Area // by name: the largest memory that was reserved for a Want of that name
	memory   []*memory
	joints   []*gpu.Multicast // areas of multicast memory; the last is the largest
	bytes    int64            // size in bytes of the memory that the team has on each member
	named    int              // number of areas in regions whose addresses are in the members' control memory
	closed   bool
	nccl     *nccl.Group // nil until it is needed
	ncclTeam *nccl.Team  // nil until it is needed
	kernels  []string    // texts that describe the kernels of all members, in a world of several processes; see matched
}

// member holds the state of one rank in a team.
type member struct {
	team    *team
	index   int
	dev     *dev
	stream  *stream       // nil for a rank of another process
	given   device.Stream // the stream passed by the caller; for a stream of another process, a substitute
	control nvlib.Ptr
	record  nvlib.Ptr // in pinned memory
	sides   []*stream // additional streams for copies (see sideStream)
	id      int64     // the mark (command) within which a launch was issued most recently
	doing   string    // the name of the most recent launch
}

// teamTimeout is the default limit on how long a kernel waits for a peer.
const teamTimeout = 30 * time.Second

func (w *world) TeamAlgorithms() []device.Algorithm { return coll.Infos() }

// OpenTeam opens a team and allocates the members' control memory.
func (w *world) OpenTeam(members []device.Member) (device.Team, error) {
	defer w.guard.Exclusive()()
	if err := w.err(); err != nil {
		return nil, err
	}
	t := &team{w: w, regions: map[string]coll.Area{}}
	if err := t.open(members); err != nil {
		return nil, errors.Join(fmt.Errorf("a team: %w", err), t.free())
	}
	w.teams = append(w.teams, t)
	return t, nil
}

// join checks the given members and adds them to the team.
func (t *team) join(members []device.Member) error {
	if len(members) == 0 || len(members) > kernels.TeamMost {
		return fmt.Errorf("%w: a team of %d members; teams have 1 to %d", device.ErrUnsupported, len(members), kernels.TeamMost)
	}
	for i, m := range members {
		x := &member{team: t, index: i, given: m.Stream, id: -1}
		switch s := m.Stream.(type) {
		case *stream:
			if s != nil {
				x.dev, x.stream = s.dev, s
				t.own = append(t.own, x)
			}
		case *foreignStream:
			if s != nil {
				x.dev = s.dev
			}
		}
		if x.dev == nil || x.dev.w != t.w || x.dev.rank != m.Rank {
			return fmt.Errorf("member %d: its stream is not a stream of rank %d", i, m.Rank)
		}
		for _, o := range t.members {
			if o.dev == x.dev {
				return fmt.Errorf("members %d and %d are the same rank, %d", o.index, i, m.Rank)
			}
		}
		t.members = append(t.members, x)
	}
	return waitsFit(t.w, t)
}

func (t *team) open(members []device.Member) error {
	if err := t.join(members); err != nil {
		return err
	}
	if err := openAbort(t.w); err != nil {
		return err
	}
	control, err := t.alloc(kernels.ControlBytes, 0)
	if err != nil {
		return err
	}
	for i, m := range t.members {
		m.control = control[i]
	}
	for _, m := range t.own {
		if err := m.set(m.control+kernels.ControlEpochs, kernels.FirstEpoch, kernels.BlocksMost); err != nil {
			return err
		}
		if m.record, err = m.dev.site.take(device.Pinned, kernels.FaultBytes); err != nil {
			return err
		}
		clear(cabi.Bytes(uintptr(m.record), kernels.FaultBytes))
	}
	return nil
}

// alloc reserves shared memory on every member and fills it with the given 32-bit word.
func (t *team) alloc(bytes int64, word uint32) ([]nvlib.Ptr, error) {
	var at []nvlib.Ptr
	for _, m := range t.members {
		mem, err := m.dev.alloc(bytes, device.Shared)
		if err != nil {
			return nil, err
		}
		t.memory = append(t.memory, mem)
		at = append(at, mem.addr)
	}
	for _, m := range t.own { // other processes fill the memory of their members
		if err := m.set(at[m.index], word, (bytes+3)/4); err != nil {
			return nil, err
		}
	}
	t.bytes += bytes
	return at, nil
}

// set fills memory with n copies of a 32-bit word and waits until they are written.
func (m *member) set(at nvlib.Ptr, v uint32, n int64) error {
	return m.dev.bound(func() error { return signal.Fill(m.dev.w.drv, at, v, n) })
}

// kernel returns the step that launches k on the member. It fills in the fields of k that describe the team.
func (m *member) kernel(k kernels.Meeting) (step, error) {
	t, s := m.team, m.dev.site
	k.Team = m.place()
	var st kernels.Step
	err := s.w.guard.Compiling(func() (err error) {
		st, err = s.w.m.opts.Kernels.Meeting(s.target(), k)
		return err
	})
	if err != nil {
		return nil, err
	}
	step := &kernelStep{meets: true}
	if t.alone() && !t.w.m.opts.teamsLate {
		step.f = always
	}
	err = m.dev.bound(func() (err error) {
		step.l, err = s.gpu.Load(s.w.drv, st)
		return err
	})
	return step, err
}

// place returns the description of the team that is passed to the member's kernels.
func (m *member) place() kernels.Team {
	t := m.team
	p := kernels.Team{Rank: m.index, Abort: t.w.abort, Record: m.record, Timeout: t.w.m.opts.teamTimeout().Nanoseconds()}
	for _, o := range t.members {
		p.Control = append(p.Control, o.control)
	}
	return p
}

// copySteps returns the steps of a copy on the member's device.
func (m *member) copySteps(dst, src strided.View) (steps []step, err error) {
	err = m.dev.bound(func() error {
		steps, err = m.dev.copySteps(dst, src)
		return err
	})
	return steps, err
}

// roomForOthers is the number of multiprocessors of a device that kernels of teams leave free for other kernels, if
// the device has streams that no team uses. Without these free multiprocessors, a team's kernel could occupy the whole
// device while it waits for a peer, and the peer could wait for a kernel that cannot start on this device.
const roomForOthers = 4

// Room returns the largest number of thread blocks that a launch of the team may have, for blocks of the given number
// of threads. So many blocks can run at once, together with those of the other streams of the device that teams use.
// Room leaves some multiprocessors free for kernels on streams that no team uses. Teams and streams created later are
// not counted, so callers must create all of them before they prepare launches.
func (t *team) Room(threads int) int {
	least := kernels.BlocksMost
	for _, m := range t.members {
		s := m.dev.site
		sms := s.gpu.SMs
		if hasOtherStreams(t.w, s) {
			sms = max(1, sms-roomForOthers)
		}
		least = min(least, sms*max(1, coll.TeamThreads/threads)/teamStreams(t.w, s))
	}
	return max(1, least)
}

// hasOtherStreams reports whether a device has streams that no team uses and whose kernels need multiprocessors.
// Streams on which only a team member's copies run do not count. The driver may make such copies with kernels, and
// these can use the multiprocessors of the member's own kernels, which wait for the copies.
func hasOtherStreams(w *world, s *site) bool {
	n := s.foreignStreams
	for _, st := range w.flight.streams {
		if st.dev.site == s && st != s.origin && !st.engine {
			n++
		}
	}
	return n > teamStreams(w, s)
}

// waitsFit returns an error if teams would use more streams of a device than the number of waiting kernels that are
// certain to run concurrently.
func waitsFit(w *world, t *team) error {
	for _, m := range t.members {
		if s := m.dev.site; teamStreams(w, s, t) > mostWaits {
			return fmt.Errorf("%w: kernels on %d streams of GPU %d wait for each other, but only %d streams are certain to run concurrently; put fewer ranks on a GPU",
				device.ErrUnsupported, teamStreams(w, s, t), s.gpu.Device, mostWaits)
		}
	}
	return nil
}

// teamStreams returns the number of streams of a device that teams use. The teams in more count, too.
func teamStreams(w *world, s *site, more ...*team) int {
	streams := map[device.Stream]bool{}
	for _, t := range slices.Concat(w.teams, more) {
		for _, m := range t.members {
			if m.dev.site == s {
				streams[m.given] = true
			}
		}
	}
	return len(streams)
}

// alone reports whether the members' devices have only the members' own streams. Only in this case may a launch begin
// early, because otherwise its waiting blocks would occupy multiprocessors that work on other streams needs.
func (t *team) alone() bool {
	return !slices.ContainsFunc(t.members, func(m *member) bool { return !m.dev.site.alone() })
}

// alone reports whether no kernel of a team waits on the device while a kernel of another stream runs.
func (s *site) alone() bool {
	teams := teamStreams(s.w, s)
	return s.foreignStreams == 0 && (teams == 0 || teams == 1 && !hasOtherStreams(s.w, s))
}

func (t *team) Bytes() int64 {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	return t.bytes
}

func (t *team) Supports(tune device.Tuning, c *device.Collective) error {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	_, _, err := t.check(tune, c)
	return err
}

func (t *team) Close() error {
	defer t.w.guard.Exclusive()()
	if t.closed || t.w.cause == errClosed {
		return t.w.err()
	}
	for i, o := range t.w.teams {
		if o == t {
			t.w.teams = append(t.w.teams[:i:i], t.w.teams[i+1:]...)
			break
		}
	}
	err := t.free()
	trimNCCL(t.w, nccl.IdleMost)
	return err
}

func (t *team) free() error {
	t.closed = true
	leaveNCCL(t, t.w.cause == nil)
	errs := []error{freeJoints(t)}
	for _, mem := range t.memory {
		errs = append(errs, mem.giveBack())
	}
	for _, m := range t.members {
		m.dev.sides = append(m.dev.sides, m.sides...)
		m.sides = nil
		if m.record != 0 && !m.dev.site.lost() {
			errs = append(errs, m.dev.bound(func() error { return m.dev.site.heaps[device.Pinned].Free(m.record, kernels.FaultBytes) }))
		}
	}
	return t.w.excuse(errors.Join(errs...))
}

var (
	_ device.World = (*world)(nil)
	_ device.Team  = (*team)(nil)
)
