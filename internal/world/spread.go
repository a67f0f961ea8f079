package world

import (
	"context"
	"fmt"
)

// Spread assigns a machine's ranks to the processes of a world. A Spread contains the data that all kinds of machines
// need for this.
type Spread struct {
	*World
	Name   string          // the same in all processes; set by Begin
	Ctx    context.Context // cancelled when the machine's world ends; limits waits for peers
	owners []int
	cancel context.CancelFunc
}

// Spread computes which process owns each of the given number of ranks. It does not communicate.
func (w *World) Spread(ranks int) (*Spread, error) {
	owners, err := w.Owners(ranks)
	return &Spread{World: w, owners: owners}, err
}

// Begin compares the number of ranks in all processes, under a name that no other Spread of the
// world has. A difference ends the world.
func (s *Spread) Begin(ctx context.Context, name string) error {
	s.Name = name
	if err := s.Same(ctx, name, fmt.Sprintf("%d ranks", len(s.owners))); err != nil {
		s.Abort(err)
		return err
	}
	s.Ctx, s.cancel = context.WithCancel(ctx)
	return nil
}

// Owner returns the process that owns a rank.
func (s *Spread) Owner(rank int) int { return s.owners[rank] }

// Local reports whether this process owns a rank. If the Spread is nil, this process owns all ranks.
func (s *Spread) Local(rank int) bool { return s == nil || s.owners[rank] == s.Process() }

// Node returns the node of a rank's process.
func (s *Spread) Node(rank int) int {
	if s == nil {
		return 0
	}
	return s.World.Node(s.owners[rank])
}

// Watch waits until the world of processes ends, and then calls end with the reason. Watch returns without calling end
// if the machine's world ends first.
func (s *Spread) Watch(end func(error)) {
	select {
	case <-s.Done():
		end(s.Err())
	case <-s.Ctx.Done():
	}
}

// End ends the world in the other processes too, if busy reports that operations were in progress, because the other
// processes may wait for them.
func (s *Spread) End(cause error, busy bool) {
	if busy {
		s.Abort(cause)
	}
	s.cancel()
}
