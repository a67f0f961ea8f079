package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

// group describes a world that consists of some processes of another world.
type group struct {
	of      *World
	name    string
	members []int // by rank in the group
	mesh    atomic.Pointer[mesh]
}

// outer returns the rank of a process in the world in which it was started.
func (o *Options) outer(rank int) int {
	if o.group == nil {
		return rank
	}
	return o.group.members[rank]
}

// ofGroup is a suffix for names in a group's errors.
func (o *Options) ofGroup() string {
	if o.group == nil {
		return ""
	}
	return " of group " + o.group.name
}

// JoinGroup creates a world of some processes of w. All these processes call it with the same name and the same
// members, in the order of their ranks in w. A process may belong to several groups, and may use these in any order in
// which no processes wait for each other in a circle. Errors name processes by their ranks in w. If a group ends
// because of a failure, w and all its other groups end too. Leave ends only the group.
func JoinGroup(ctx context.Context, w *World, name string, members []int) (*World, error) {
	own := slices.Index(members, w.Process())
	for i, r := range members {
		switch {
		case r < 0 || r >= w.Processes() || slices.Contains(members[:i], r):
			return nil, fmt.Errorf("cannot make a group of ranks %v among %d processes: each rank must exist and be listed only once", members, w.Processes())
		case !w.mesh.near(r):
			return nil, fmt.Errorf("cannot make a group of ranks %v, which are on several nodes: %w", members, errors.ErrUnsupported)
		}
	}
	switch {
	case own < 0:
		return nil, fmt.Errorf("rank %d is not in the group of ranks %v", w.Process(), members)
	case w.mesh.o.group != nil:
		return nil, fmt.Errorf("cannot make a group within a group: %w", errors.ErrUnsupported)
	case w.Err() != nil:
		return nil, w.Err()
	}
	o := w.mesh.o
	o.Rank, o.Size, o.Local, o.LocalSize = own, len(members), own, len(members)
	o.ID = fmt.Sprintf("%s, group %s of %v", o.ID, name, members)
	o.Meet, o.MeetFD, o.Launcher, o.Ranks = "", 0, "", nil
	o.group = &group{of: w, name: name, members: slices.Clone(members)}
	w.grouped.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-w.Done():
			cancel()
		case <-ended:
		}
	}()
	defer w.waits.begin(openWait{o.group, everyOther})()
	g, err := Join(ctx, o)
	if err != nil {
		w.Abort(err)
		return nil, w.Err() // all processes return the first cause
	}
	w.mesh.running.Go(func() { shareEnd(w, g) })
	return g, nil
}

// shareEnd makes a failure of a world also end its group, and a failure of the group also end the world.
func shareEnd(w, g *World) {
	select {
	case <-g.Done():
		if err := g.Err(); !errors.Is(err, ErrLeft) {
			w.Abort(err)
		}
	case <-w.Done():
		if err := w.Err(); errors.Is(err, ErrLeft) {
			_ = g.Leave()
		} else {
			g.Abort(err)
		}
	}
}

// Seat returns the index of a process of a group among the processes of its node in the world that
// the group belongs to; -1 if w is not a group.
func Seat(w *World, process int) int {
	if w.mesh.o.group == nil {
		return -1
	}
	seat, of := 0, w.mesh.o.group
	for r := range of.members[process] {
		if of.of.Node(r) == of.of.Node(of.members[process]) {
			seat++
		}
	}
	return seat
}
