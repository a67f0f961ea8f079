// Package nccl manages NCCL's communicators. A Group holds the NCCL communicators of one team. Open takes it from the
// process's Pool, or creates it together with other processes. Leave returns it. Exercise runs a collective once on
// scratch memory, so that NCCL connects and loads its kernels. Issue issues all calls of a collective as one NCCL
// group. Package coll plans the calls; package cuda orders them with respect to other work.
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

// Team describes the GPUs for which NCCL communicators are created, and provides functions of the world that uses them.
// The functions of a Team are called while the world's mutex is held.
type Team struct {
	Members []Member
	System  *gpu.System
	Peers   *procs.Spread // connects this process to the others; nil if all members are of this process
	Calls   *nvlib.Watch  // monitors the calls of the world
	// Patience limits how long NCCL may take to initialize, and to complete a trial. Longer is a hint for error
	// messages: it says how to raise the limit.
	Patience time.Duration
	Longer   string

	GivenUp func() error             // returns the reason why the world was abandoned; nil if it was not
	Ended   func() bool              // reports whether the world has ended
	Aside   func(func() error) error // runs a function while the world's mutex is unlocked; the world may end meanwhile
	Apart   func() error             // returns the reason why members cannot access each other's memory; nil if they can
}

// Member is one GPU of a team.
type Member struct {
	Rank    int
	Device  nvlib.Device
	Foreign bool // another process drives the GPU
	Stream  nvlib.Stream
	Bound   func(func() error) error // runs a function with the GPU's context current
}

// Group holds a team's communicators, one for each member. Creating them takes long, so a Pool keeps some of them for
// later teams and worlds (see IdleMost).
type Group struct {
	lib       *nvlib.NCCL // the library for calls that the world's nvlib.Watch monitors
	own       *nvlib.NCCL // the library for calls that destroy communicators, which are not monitored
	key       string      // identifies the GPUs and their order
	comms     []nvlib.Comm
	exercised map[string]bool
	joined    bool // created with other processes: calls do not block (see settle); communicators of foreign members are 0
	used      bool // some work was issued
	failed    bool // must not be used again
	ended     bool // aborted
}

// Open returns communicators for t. If all members belong to this process, the communicators are from the pool p.
// Otherwise p creates them together with the other processes.
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

// Issue issues the NCCL calls of this process's members as one group. The function member returns the call of member
// i, or false if the member has no call.
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

// Trial provides the memory and the streams on which Exercise runs.
type Trial struct {
	// Reserve returns the addresses of zeroed memory of the given size on every member. The address for a member of
	// another process is arbitrary.
	Reserve func(bytes int64) ([]nvlib.Ptr, error)
	// Drop frees the memory that Reserve returned. It is not called if NCCL may still use this memory.
	Drop func()
	// Issued records that work was issued to the members' streams.
	Issued func()
	// Idle reports whether the members' streams have completed all their work. It is called without the world's mutex.
	Idle func() (bool, error)
}

// trialMost is the largest number of bytes that Exercise transfers. For larger data, NCCL uses the same connections and
// kernels.
const trialMost = 64 << 20

// Exercise runs the call w once on scratch memory, so that NCCL connects and loads its kernels now. It does nothing for
// a kind of call that the group has already exercised.
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
			x.Drop() // otherwise NCCL may still use the memory, which is freed when the world is closed
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

// firstOwn returns the team's first member in this process, or the first of all members if this process has none.
func (t *Team) firstOwn() *Member {
	for i := range t.Members {
		if !t.Members[i].Foreign {
			return &t.Members[i]
		}
	}
	return &t.Members[0]
}

// awaitTrial waits until the members' streams have completed a trial call of NCCL. The wait has a time limit, because a
// trial never ends if GPUs or processes are isolated from each other and NCCL does not detect this.
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

// Failure returns an error that NCCL reports for work on the devices, and the member that it occurred on; nil if no
// work failed.
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

// Abort stops running work and frees the communicators.
func (g *Group) Abort() { g.end(g.own.Abort) }

// destroy frees idle communicators.
func (g *Group) destroy() { g.end(g.own.Destroy) }

// endPatience limits how long end waits. An abort of NCCL may itself wait for kernels that never end.
const endPatience = 2 * time.Second

// end calls the function last, which frees a communicator, for every communicator. Each call runs in a separate
// goroutine, because one call may wait for another. end returns after endPatience even if some calls have not returned.
func (g *Group) end(last func(nvlib.Comm) error) {
	if g.ended {
		return
	}
	g.ended = true
	own := slices.DeleteFunc(slices.Clone(g.comms), func(c nvlib.Comm) bool { return c == 0 })
	done := make(chan struct{}, len(own))
	for _, c := range own {
		go func() {
			_ = last(c) // no caller could receive the error
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
