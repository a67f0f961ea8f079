package nccl

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
)

// The functions of this file create communicators of teams with members in several processes. The process of the first
// member creates a unique ID and sends it to all processes. Then each process initializes the communicators of its
// members. NCCL's calls do not block here: the host polls the communicators until they are ready. After a time limit,
// or when the world ends, the host stops polling and aborts the communicators.

// join creates the team's communicators together with the other processes. The world's mutex is released while this
// process waits.
func (p *Pool) join(t *Team) (*Group, error) {
	lib, err := t.System.NCCL()
	if err != nil {
		return nil, err
	}
	if err := p.tellLocked(t); err != nil {
		return nil, err
	}
	watched := lib.Watched(t.Calls)
	id, err := t.agreeName(watched)
	if err != nil {
		return nil, err
	}
	g := &Group{own: lib, lib: watched, joined: true, comms: make([]nvlib.Comm, len(t.Members)),
		exercised: map[string]bool{}}
	if err := g.join(t, id); err != nil {
		g.Abort()
		return nil, fmt.Errorf("creating NCCL's communicators of ranks of several processes: %w", err)
	}
	return g, nil
}

// tellLocked calls tell while the pool is locked.
func (p *Pool) tellLocked(t *Team) error {
	if !t.Calls.Hold(&p.mu) {
		return t.GivenUp()
	}
	defer t.Calls.Release(&p.mu)
	return p.tell(t)
}

// agreeName exchanges the unique ID that the process of the first member has created, and returns it in all processes.
func (t *Team) agreeName(lib *nvlib.NCCL) (id nvlib.UniqueID, err error) {
	var name []byte
	first := &t.Members[0]
	if !first.Foreign {
		if err := first.Bound(func() (err error) { id, err = lib.NewUniqueID(); return err }); err != nil {
			name = []byte("no name: " + err.Error())
		} else {
			name = id[:]
		}
	}
	var names [][]byte
	err = t.Aside(func() (err error) {
		names, err = t.Peers.Agree(t.Peers.Ctx, t.Peers.Name+": NCCL's communicators", name)
		return err
	})
	if err != nil {
		return id, err
	}
	owner := t.Peers.Owner(first.Rank)
	if name = names[owner]; len(name) != len(id) {
		return id, fmt.Errorf("NCCL's communicators: process %d has %s", owner, strings.ToValidUTF8(string(name), "?"))
	}
	copy(id[:], name)
	return id, nil
}

// join initializes the NCCL communicators of this process's members.
func (g *Group) join(t *Team, id nvlib.UniqueID) error {
	made := cabi.NewBlock(8 * len(t.Members))
	defer made.Free()
	err := g.lib.GroupStart()
	if err != nil {
		return err
	}
	for i, m := range t.Members {
		if err == nil && !m.Foreign {
			err = m.Bound(func() error { return g.lib.InitRankAside(made.Addr(8*i), len(t.Members), id, i) })
		}
	}
	err = errors.Join(err, g.lib.GroupEnd())
	for i := range g.comms {
		g.comms[i] = nvlib.Comm(cabi.Load[uintptr](made.Addr(8 * i)))
	}
	if err != nil {
		return err
	}
	return t.Aside(func() error { return g.settle(t) })
}

// settle waits until NCCL has completed, on the host, the most recent calls on all communicators.
func (g *Group) settle(t *Team) error {
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
		case t.Ended() || t.Peers.Err() != nil:
			g.failed = true
			return errors.Join(errors.New("the world has ended"), t.Peers.Err())
		case time.Since(began) > t.Patience:
			g.failed = true
			return fmt.Errorf("NCCL is not ready after %v: a process may have failed, or nodes may be unable to connect by "+
				"NCCL's network; set NCCL_DEBUG=INFO to see what NCCL does, or NCCL_SOCKET_IFNAME to select the interface; %s",
				t.Patience, t.Longer)
		}
	}
}
