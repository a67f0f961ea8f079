package cuda

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// Communicators of a team whose members are of several processes. The process of the first member makes a name for
// them, which all processes of the world learn by agreement, since all prepare the same collectives in one order. Then
// each joins for its own members. None of NCCL's calls blocks: it returns, and the host looks at the communicators
// until they are ready, for a bounded time, and no longer than the world lasts. When that ends they are aborted, as
// those of one process are.

// firstOwn is the first member of this process; of a team that has none the first.
func (t *team) firstOwn() *member {
	for _, m := range t.members {
		if !m.dev.site.foreign {
			return m
		}
	}
	return t.members[0]
}

// joinNCCL makes the team's communicators together with the other processes. The caller holds the world exclusively,
// and others go on while this process waits.
func joinNCCL(t *team) (*communicators, error) {
	p := t.w.peers
	lib, err := t.w.m.sys.NCCL()
	if err != nil {
		return nil, err
	}
	if err := t.w.m.sys.tellJoined(t); err != nil {
		return nil, err
	}
	watched := lib.Watched(&t.w.hung.calls)
	var name []byte
	first := t.members[0].dev
	if !first.site.foreign {
		var id nvlib.UniqueID
		if err := first.bound(func() (err error) { id, err = watched.NewUniqueID(); return err }); err != nil {
			name = []byte("no name: " + err.Error())
		} else {
			name = id[:]
		}
	}
	var names [][]byte
	err = t.w.aside(func() (err error) {
		names, err = p.Agree(p.Ctx, p.Name+": NCCL's communicators", name)
		return err
	})
	if err != nil {
		return nil, err
	}
	name = names[p.Owner(first.rank)]
	var id nvlib.UniqueID
	if len(name) != len(id) {
		return nil, fmt.Errorf("NCCL's communicators: process %d has %s", p.Owner(first.rank),
			strings.ToValidUTF8(string(name), "?"))
	}
	copy(id[:], name)
	g := &communicators{own: lib, lib: watched, joined: true, comms: make([]nvlib.Comm, len(t.members)),
		exercised: map[string]bool{}}
	if err := g.join(t, id); err != nil {
		g.abort()
		return nil, fmt.Errorf("NCCL's communicators of ranks of several processes: %w", err)
	}
	return g, nil
}

// join joins for the members of this process.
func (g *communicators) join(t *team, id nvlib.UniqueID) error {
	made := cabi.NewBlock(8 * len(t.members))
	defer made.Free()
	err := g.lib.GroupStart()
	if err != nil {
		return err
	}
	for i, m := range t.members {
		if err == nil && !m.dev.site.foreign {
			err = m.dev.bound(func() error { return g.lib.InitRankAside(made.Addr(8*i), len(t.members), id, i) })
		}
	}
	err = errors.Join(err, g.lib.GroupEnd())
	for i := range g.comms {
		g.comms[i] = nvlib.Comm(cabi.Load[uintptr](made.Addr(8 * i)))
	}
	if err != nil {
		return err
	}
	return t.w.aside(func() error { return g.settle(t) })
}

// settle waits until the communicators' last calls have done what they do on the host.
func (g *communicators) settle(t *team) error {
	limit := t.w.m.opts.teamTimeout()
	for began := time.Now(); ; gpu.Pause(time.Since(began)) {
		all := true
		for _, c := range g.comms {
			if c == 0 {
				continue
			}
			done, err := g.lib.Settled(c)
			if err != nil {
				g.failed = true
				return err
			}
			all = all && done
		}
		switch {
		case all:
			return nil
		case t.w.ended.Load() || t.w.peers.Err() != nil:
			g.failed = true
			return errors.Join(errors.New("the world has ended"), t.w.peers.Err())
		case time.Since(began) > limit:
			g.failed = true
			return fmt.Errorf("NCCL is not ready after %v: a process may have failed, or nodes may not reach each other by "+
				"its network; NCCL_DEBUG=INFO has NCCL tell what it does, NCCL_SOCKET_IFNAME names the interface, and "+
				"%s=%v waits longer", limit, TimeoutVariable, 10*limit)
		}
	}
}

// tellJoined is tellNCCL for communicators that are not kept.
func (s *system) tellJoined(t *team) error {
	if !t.w.hung.calls.Hold(&s.pool.mu) {
		return t.w.hung.why()
	}
	defer t.w.hung.calls.Release(&s.pool.mu)
	return s.tellNCCL(t)
}
