package world

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"

	"hocket.example/hocket/internal/ranklist"
)

// Join makes this process a member of a world of o.Size processes, and returns when all have joined. Join fails after
// JoinTimeout, or when ctx ends, with an error that names the absent processes. Join fails immediately if a process
// that has already connected fails.
func Join(ctx context.Context, o Options) (*World, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "this host"
	}
	m := &mesh{
		o:       o,
		self:    member{Rank: o.Rank, PID: os.Getpid(), Host: host, Outer: o.outer(o.Rank)},
		changed: make(chan struct{}),
		peers:   make([]*peer, o.Size),
		done:    make(chan struct{}),
	}
	d := &detector{mesh: m, silent: make([]atomic.Int32, o.Size)}
	w := &World{mesh: m, detector: d, joining: &rendezvous{mesh: m, detector: d}, agreeing: make(chan struct{}, 1)}
	d.world = w
	if o.group != nil {
		o.group.mesh.Store(m)
	}
	m.handle = w.handle
	m.release = func() { w.joining.claim.release() }
	m.launched = dialLauncher(m)
	if o.Size > 1 {
		err = w.joining.meet(ctx)
	} else {
		m.page, err = newPage(1)
	}
	if err == nil {
		err = w.agreeMembers(ctx)
	}
	if err != nil {
		m.abort(err)
		err = m.err() // if another process has failed first, return its cause
		m.leave()
		return nil, err
	}
	m.launched.joined()
	return w, nil
}

// agreeMembers compares the builds of all processes, and collects the ranks of the program that each process owns.
func (w *World) agreeMembers(ctx context.Context) error {
	text, err := membership{thisBuild(), w.mesh.o.Ranks}.encode()
	if err != nil {
		return err
	}
	texts, err := w.Agree(ctx, "the ranks that processes own", text)
	if err != nil {
		return err
	}
	members := make([]membership, len(texts))
	for p, text := range texts {
		if members[p], err = decodeMembership(text); err != nil {
			return w.mesh.member(p).failed("sent a malformed list of ranks: %v", err)
		}
	}
	if err := w.sameBuild(members); err != nil {
		return err
	}
	var without []int
	for p, m := range members {
		if len(m.Ranks) == 0 {
			without = append(without, p)
			continue
		}
		if w.ranks == nil {
			w.ranks = map[int]int{}
		}
		for _, r := range m.Ranks {
			if q, taken := w.ranks[r]; taken {
				return fmt.Errorf("processes %d and %d are both assigned rank %d of the program", q, p, r)
			}
			w.ranks[r] = p
		}
	}
	if w.ranks != nil && without != nil {
		return fmt.Errorf("processes %s are assigned no ranks of the program, but other processes are: assign ranks in all processes or in none", ranklist.String(without))
	}
	return nil
}
