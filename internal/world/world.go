// Package world is a set of processes that run one program together. The package establishes which processes belong to
// the set, compares values that must be equal in all of them, provides memory and counters that they share, and reports
// the failure of a process to the others.
//
// The processes of a world are on one node or several. Processes of the same node share memory. Every two processes are
// connected: by a local socket on one node, over TCP between nodes. If a connection ends without a goodbye, its process
// has died, and the world ends for all. A heartbeat, in shared memory or over TCP, distinguishes a stopped process from
// a busy one. Every wait is bounded, and every error names the process that caused it.
package world

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// World is the view that one process has of a set of processes to which it belongs. Several goroutines may call its
// methods, but all processes must make the calls of Agree, Same and Step in the same order.
//
// A World consists of a mesh of links to the other processes (mesh.go), which a rendezvous creates (meet_linux.go,
// nodes_linux.go); a failure detector, which all waits use (detector.go); and wires (wires.go).
type World struct {
	mesh     *mesh
	detector *detector
	joining  *rendezvous
	wires    wires
	ranks    map[int]int // for each rank of the program: the process that owns it; nil for an even split

	agreeing chan struct{} // locked during a call of Agree
	agreed   uint64        // number of calls of Agree; guarded by agreeing

	call atomic.Pointer[entry] // the arguments of the latest call of Calls

	waits   waits       // waits of this process, in this world and its groups
	grouped atomic.Bool // whether this world has ever had a group

	steps struct {
		sync.Mutex
		n uint64 // number of calls of Step
	}
}

// Process returns the rank of this process in the world.
func (w *World) Process() int { return w.mesh.o.Rank }

// Processes returns the number of processes in the world.
func (w *World) Processes() int { return w.mesh.o.Size }

// Local returns the rank of this process among those of its node.
func (w *World) Local() int { return w.mesh.o.Local }

// Node returns the node of a process. Nodes are numbered in the order of their first processes.
func (w *World) Node(process int) int { return w.mesh.node(process) }

// Nodes returns the number of nodes that have processes of the world.
func (w *World) Nodes() int {
	if w.mesh.nodes == nil {
		return 1
	}
	return 1 + slices.Max(w.mesh.nodes)
}

// OnHost returns the number of processes on this process's host, including this one.
func (w *World) OnHost() int {
	w.mesh.mu.Lock()
	defer w.mesh.mu.Unlock()
	n := 1
	for _, p := range w.mesh.peers {
		if p != nil && p.Host == w.mesh.self.Host {
			n++
		}
	}
	return n
}

// StallTimeout returns the time limit of waits for other processes (see Options.StallTimeout).
func (w *World) StallTimeout() time.Duration { return w.mesh.o.StallTimeout }

// Done returns a channel that is closed when the world has ended: by Abort in any process, by a failure, or by Leave.
func (w *World) Done() <-chan struct{} { return w.mesh.done }

// Err returns the reason why the world has ended; nil if it has not ended.
func (w *World) Err() error { return w.mesh.err() }

// Abort ends the world for all processes, unless it has already ended. If cause is a *PeerError or
// a *DisagreeError, other processes get that error; otherwise they get a *PeerError that blames
// this process.
func (w *World) Abort(cause error) { w.mesh.abort(cause) }

// Leave leaves the world and releases its resources. The other processes can continue, but waits for this process fail.
// Leave returns the reason why the world had ended before; nil if it had not ended. Segments and counters must not be
// used afterwards.
func (w *World) Leave() error { return w.mesh.leave() }

// Owners returns the process that owns each of the program's ranks.
func (w *World) Owners(ranks int) ([]int, error) {
	if w.ranks == nil {
		if ranks < w.mesh.o.Size {
			return nil, fmt.Errorf("%d ranks for %d processes: each process needs at least one", ranks, w.mesh.o.Size)
		}
		owners := make([]int, ranks)
		for p := range w.mesh.o.Size {
			for r := p * ranks / w.mesh.o.Size; r < (p+1)*ranks/w.mesh.o.Size; r++ {
				owners[r] = p
			}
		}
		return owners, nil
	}
	if len(w.ranks) != ranks {
		return nil, fmt.Errorf("the program has %d ranks, but the processes are assigned %d", ranks, len(w.ranks))
	}
	owners := make([]int, ranks)
	for r := range owners {
		p, ok := w.ranks[r]
		if !ok {
			return nil, fmt.Errorf("rank %d of the program is not assigned to a process", r)
		}
		owners[r] = p
	}
	return owners, nil
}

// Blame returns an error about a process that did not arrive. The text why describes the missing action. If another
// process sends no heartbeats, or has not begun this process's step, the error blames that process instead.
func (w *World) Blame(process int, why string) *PeerError {
	mine := w.mesh.page.steps(w.mesh.o.Rank)
	for r := range w.mesh.o.Size {
		if r != w.mesh.o.Rank && w.mesh.page.steps(r) < mine {
			process = r
		}
	}
	return w.detector.blame(process, "%s", why)
}

// handle handles a message of a peer, with the files received with it.
func (w *World) handle(p *peer, m message, fds []int) error {
	defer closeAll(fds) // close all files that no case below takes over
	switch m := m.(type) {
	case malformed:
		return m
	case aborted:
		w.mesh.end(m.cause, m.cause.err())
		return nil
	case bye:
		w.mesh.mu.Lock()
		defer w.mesh.mu.Unlock()
		p.left = true
		p.link.hangUp()
		w.mesh.notify()
		return nil
	case ready:
		return w.joining.isReady(p, fds)
	case pulse:
		return w.detector.receivePulse(p, m)
	case wanted:
		if m.bytes == 0 || m.bytes > maxWire {
			return fmt.Errorf("%d bytes are wanted", m.bytes)
		}
		return w.wires.want(wireEnd{p.Rank, m.wire}, int(m.bytes))
	case data:
		return w.wires.arrived(wireEnd{p.Rank, m.wire}, m.bytes)
	case agreement:
		w.mesh.mu.Lock()
		defer w.mesh.mu.Unlock()
		if len(p.inbox) == maxInbox {
			return errors.New("too many values to agree on")
		}
		p.inbox = append(p.inbox, m)
		w.mesh.notify()
		return nil
	case export:
		if len(fds) != 1 {
			return errors.New("an export lacks its file")
		}
		w.mesh.mu.Lock()
		defer w.mesh.mu.Unlock()
		if _, twice := p.files[m.key]; twice || len(p.files) == maxFiles {
			return fmt.Errorf("export of %q: exported twice, or too many", m.key)
		}
		if p.files == nil {
			p.files = map[string]*os.File{}
		}
		p.files[m.key] = os.NewFile(uintptr(take(&fds[0])), m.key)
		w.mesh.notify()
		return nil
	}
	return fmt.Errorf("an unexpected %T", m)
}

// Late returns a process that has not begun the current step of this process, or that left before it; -1 if there is
// none.
func (w *World) Late() int { return w.detector.late(Any, w.mesh.page.steps(w.mesh.o.Rank)) }
