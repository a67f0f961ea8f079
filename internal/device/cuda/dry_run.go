package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/nvlib"
)

// dryWorld is a world that nothing was opened for: no context, no memory, no stream.
// Contexts take the driver a second and more, compiling as long: who knows what will
// be launched has it compiled meanwhile.
type dryWorld struct {
	*world
	allocs *int // so far
}

// DryRun implements device.Machine.
func (m *machine) DryRun(ranks int) (device.World, error) {
	if most := m.Caps().MaxRanks; ranks < 1 || ranks > most {
		return nil, fmt.Errorf("cuda: a dry run of %d ranks: 1 to %d are possible", ranks, most)
	}
	w := &world{m: m, drv: m.sys.Driver}
	w.guard, w.wired.w, w.flight.w = m.guard(w), w, w
	if m.opts.Peers != nil {
		var err error
		if w.peers, err = m.opts.Peers.Spread(ranks); err != nil {
			return nil, fmt.Errorf("cuda: %w", err)
		}
	}
	if err := w.place(ranks); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	for i, a := range w.all {
		for _, b := range w.all[:i] {
			if why := m.sys.ApartNow(a.gpu, b.gpu); why != nil { // as far as that is known without a trial
				a.keepFrom(b, why)
				b.keepFrom(a, why)
			}
		}
	}
	return dryWorld{w, new(int)}, nil
}

func (s dryWorld) Device(rank int) device.Device {
	if rank < 0 || rank >= len(s.devices) {
		return nil
	}
	d := s.devices[rank]
	if s.Local(rank) {
		return dryDevice{d, s.allocs}
	}
	return dryForeign{foreignDev{d}, s.allocs}
}

// OpenTeam makes a team for questions and PrepareAhead.
func (s dryWorld) OpenTeam(members []device.Member) (device.Team, error) {
	t := &team{w: s.world, regions: map[string]coll.Area{}}
	if err := t.join(members); err != nil {
		return nil, fmt.Errorf("a team: %w", err)
	}
	s.teams = append(s.teams, t)
	return t, nil
}

// dryDevice is a device of a dry run.
type dryDevice struct {
	*dev
	allocs *int
}

func (d dryDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	s := &stream{dev: d.dev, name: o.Name, index: len(d.w.flight.streams)}
	d.w.flight.streams = append(d.w.flight.streams, s)
	return s, nil
}

func (d dryDevice) Alloc(bytes int64, kind device.MemKind) (device.Memory, error) {
	return dryMemory(d.dev, d.allocs, bytes, kind), nil
}

// dryForeign is the device of another process in a dry run.
type dryForeign struct {
	foreignDev
	allocs *int
}

func (d dryForeign) Alloc(bytes int64, kind device.MemKind) (device.Memory, error) {
	return dryMemory(d.dev, d.allocs, bytes, kind), nil
}

// dryMemory names memory that is nowhere, and begins as memory does.
func dryMemory(d *dev, allocs *int, bytes int64, kind device.MemKind) *memory {
	*allocs++
	return &memory{dev: d, kind: kind, addr: nvlib.Ptr(*allocs) << 40, bytes: bytes}
}

var _ device.Machine = (*machine)(nil)
