package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/coll"
)

// dryWorld implements a world without contexts, memory or streams. The driver needs a second or more to create
// contexts. Meanwhile, a caller that knows which kernels a program launches can compile them with a dryWorld.
type dryWorld struct{ *world }

// DryRun implements device.Machine.
func (m *machine) DryRun(ranks int) (device.World, error) {
	if most := m.Caps().MaxRanks; ranks < 1 || ranks > most {
		return nil, fmt.Errorf("cuda: a dry run with %d ranks is not possible: use 1 to %d", ranks, most)
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
	err := findReach(w, func(a, b *site) (why, err error) {
		if w.hosted || a.gpu == b.gpu {
			return apart(a, b)
		}
		return m.sys.ApartNow(a.gpu, b.gpu), nil // an earlier test's result: a dry run makes no test transfers
	})
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	return dryWorld{w}, nil
}

func (s dryWorld) Device(rank int) device.Device {
	if rank < 0 || rank >= len(s.devices) {
		return nil
	}
	return dryDevice{s.world.Device(rank), s.devices[rank]}
}

// OpenTeam opens a team that answers queries and supports PrepareAhead, but cannot launch work.
func (s dryWorld) OpenTeam(members []device.Member) (device.Team, error) {
	t := &team{w: s.world, regions: map[string]coll.Area{}}
	if err := t.join(members); err != nil {
		return nil, fmt.Errorf("a team: %w", err)
	}
	s.teams = append(s.teams, t)
	return t, nil
}

// dryDevice implements a device of a dry run.
type dryDevice struct {
	device.Device
	dev *dev
}

func (d dryDevice) NewStream(o device.StreamOptions) (device.Stream, error) {
	if f, ok := d.Device.(foreignDev); ok {
		return f.NewStream(o)
	}
	flight := &d.dev.w.flight
	s := &stream{dev: d.dev, name: o.Name, index: len(flight.streams)}
	flight.streams = append(flight.streams, s)
	return s, nil
}

// Alloc returns a memory object with no storage.
func (d dryDevice) Alloc(bytes int64, kind device.MemKind) (device.Memory, error) {
	return d.dev.nameless(&memory{dev: d.dev, kind: kind, bytes: bytes}), nil
}

var _ device.Machine = (*machine)(nil)
