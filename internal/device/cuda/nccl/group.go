// Package nccl manages NCCL's communicators. A Group is the communicators of one team: Open takes it from the
// process's Pool, or creates it together with other processes, and Leave returns it. Exercise runs a collective once
// on scratch memory, so that NCCL connects and loads its kernels. Issue issues all calls of a collective as one.
// Package coll plans the calls; package cuda orders them among other work.
package nccl

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/nvlib"
	procs "hocket.example/hocket/internal/world"
)

// Team is what communicators are made for, and what they need of the world that uses them. Its functions are called by
// who holds the world exclusively.
type Team struct {
	Members []Member
	System  *gpu.System
	Peers   *procs.Spread // nil where all members are this process's
	Calls   *nvlib.Watch  // shows the calls of the world's
	// Patience bounds how long NCCL may take to be ready, and for a trial; Longer says how to have it wait longer.
	Patience time.Duration
	Longer   string

	GivenUp func() error             // why the world was given up; nil while it was not
	Ended   func() bool              // reports whether the world has ended
	Aside   func(func() error) error // runs a function while others use the world, and may end it
	Apart   func() error             // why members do not reach each other's memory; nil where they do
}

// Member is one GPU of a team.
type Member struct {
	Rank    int
	Device  nvlib.Device
	Foreign bool // another process drives it
	Stream  nvlib.Stream
	Bound   func(func() error) error // runs a function with the GPU's context current
}

// Group is a team's communicators, one for each member. Making them takes long, so that some are kept from team to
// team and from world to world, as contexts are (see IdleMost).
type Group struct {
	lib       *nvlib.NCCL // for who uses them
	own       *nvlib.NCCL // for ends, which nobody waits for
	key       string      // the devices, in order
	comms     []nvlib.Comm
	exercised map[string]bool
	joined    bool // with other processes: calls do not block, see settle; comms of theirs are 0
	used      bool // was given work
	failed    bool // not to be used again
	ended     bool // aborted
}

// Open returns communicators for t: of p, or joined with other processes, where t is of several.
func (p *Pool) Open(t *Team) (*Group, error) {
	open := p.take
	if t.Peers != nil {
		open = p.join
	}
	g, err := open(t)
	if err == nil {
		g.lib = g.own.Watched(t.Calls)
	}
	return g, err
}

// Issue gives NCCL the shares of this process's members as one group. member returns that of one, and false where it
// has none.
func (g *Group) Issue(t *Team, w *coll.NCCLWork, member func(i int) (coll.NCCLCall, bool)) error {
	g.used = true
	err := g.lib.GroupStart()
	if err != nil {
		return err
	}
	for i := range g.comms {
		if call, ok := member(i); ok && err == nil && g.comms[i] != 0 {
			err = w.Issue(g.lib, g.comms[i], i, call, t.Members[i].Stream)
		}
	}
	if err = errors.Join(err, g.lib.GroupEnd()); err == nil && g.joined {
		err = g.settle(t)
	}
	return err
}

// Trial is what an exercise runs on.
type Trial struct {
	// Reserve returns so many bytes, zeros, on every member; of foreign ones any address.
	Reserve func(bytes int64) ([]nvlib.Ptr, error)
	// Drop gives back what Reserve took. It is not called where NCCL may still use it.
	Drop func()
	// Issued notes that the members' streams were given work.
	Issued func()
	// Idle reports whether these have done all they were given. The world is not held.
	Idle func() (bool, error)
}

// trialMost bounds the memory of an exercise: beyond, NCCL does what it does at
// this size.
const trialMost = 64 << 20

// Exercise runs the call once on memory of its own, so that NCCL makes its connections and loads its kernels now. What
// it has run before it does not run again.
func (g *Group) Exercise(t *Team, w *coll.NCCLWork, x Trial) error {
	trial := *w
	n := int64(len(g.comms))
	if most := trialMost / w.DType.Size() / n; trial.Count > most {
		trial.Count = most
	}
	key := fmt.Sprint(w.Op, w.Red, w.DType, w.Root, bits.Len64(uint64(trial.Count)))
	if g.exercised[key] {
		return nil
	}
	bytes := trial.Count * w.DType.Size() * n
	at, err := x.Reserve(2 * bytes)
	inUse := false
	defer func() {
		if !inUse {
			x.Drop() // else it goes with the world
		}
	}()
	if err != nil {
		return err
	}
	issue := func() error {
		return g.Issue(t, &trial, func(i int) (coll.NCCLCall, bool) {
			return coll.NCCLCall{In: at[i], Out: at[i] + nvlib.Ptr(bytes)}, w.TakesPart(i)
		})
	}
	if err := t.firstOwn().Bound(issue); err != nil {
		return fmt.Errorf("a trial run: %w", err)
	}
	inUse = true
	x.Issued()
	if err := t.Aside(func() error { return t.awaitTrial(x.Idle) }); err != nil {
		g.failed = true
		return fmt.Errorf("a trial run: %w", err)
	}
	g.exercised[key], inUse = true, false
	return nil
}

// firstOwn is the first member of this process; of a team that has none the first.
func (t *Team) firstOwn() *Member {
	for i := range t.Members {
		if !t.Members[i].Foreign {
			return &t.Members[i]
		}
	}
	return &t.Members[0]
}

// awaitTrial waits until the members' streams have done a trial, but not for ever: where GPUs or processes are kept
// apart in a way that NCCL does not see, it may never end.
func (t *Team) awaitTrial(idle func() (bool, error)) error {
	for began := time.Now(); !t.Ended(); gpu.Pause(time.Since(began)) {
		done, err := idle()
		if done || err != nil {
			return err
		}
		if time.Since(began) > t.Patience {
			return fmt.Errorf("NCCL has not completed it after %v; set NCCL_DEBUG=INFO to see what NCCL does; "+
				"a new process with %s=off does not use peers' memory; %s",
				t.Patience, gpu.P2PVariable, t.Longer)
		}
	}
	return nil
}

// Failure returns what NCCL says of work that it was given and that failed, and of which member; nil for nothing.
func (g *Group) Failure() (member int, err error) {
	if !g.used || g.ended {
		return 0, nil
	}
	for i, c := range g.comms {
		if c == 0 {
			continue
		}
		if err := g.lib.AsyncError(c); err != nil {
			g.failed = true
			return i, err
		}
	}
	return 0, nil
}

// Abort ends what runs, unfinished.
func (g *Group) Abort() { g.end(g.own.Abort) }

// destroy frees idle communicators.
func (g *Group) destroy() { g.end(g.own.Destroy) }

// endPatience bounds how long an end is waited for: an abort may wait itself for
// kernels that nothing ends.
const endPatience = 2 * time.Second

// end calls last for every communicator, from a thread of its own, since one's end
// may wait for another's; it stays with the process where that takes too long.
func (g *Group) end(last func(nvlib.Comm) error) {
	if g.ended {
		return
	}
	g.ended = true
	own := slices.DeleteFunc(slices.Clone(g.comms), func(c nvlib.Comm) bool { return c == 0 })
	done := make(chan struct{}, len(own))
	for _, c := range own {
		go func() {
			_ = last(c) // there is nobody left to care
			done <- struct{}{}
		}()
	}
	late := time.After(endPatience)
	for range own {
		select {
		case <-done:
		case <-late:
			return
		}
	}
}
