package world

import (
	"context"
	"fmt"
)

// Spread is a machine's ranks, spread over the processes of a world: what the machines have in common of it.
type Spread struct {
	*World
	Name   string          // the same in all processes, once they have agreed
	Ctx    context.Context // ends waits for peers when the machine's world ends
	owners []int
	cancel context.CancelFunc
}

// Spread says which process owns which of so many ranks. Nothing is agreed.
func (w *World) Spread(ranks int) (*Spread, error) {
	owners, err := w.Owners(ranks)
	return &Spread{World: w, owners: owners}, err
}

// Begin agrees on the ranks, by a name that no other spread of the world has. A disagreement ends the world.
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

// Local reports whether this process owns a rank; all of a nil Spread, which is this process's alone.
func (s *Spread) Local(rank int) bool { return s == nil || s.owners[rank] == s.Process() }

// Node returns the node of a rank's process.
func (s *Spread) Node(rank int) int {
	if s == nil {
		return 0
	}
	return s.World.Node(s.owners[rank])
}

// Watch calls end with why the world of processes has ended, unless the machine's ends before.
func (s *Spread) Watch(end func(error)) {
	select {
	case <-s.Done():
		end(s.Err())
	case <-s.Ctx.Done():
	}
}

// End has the other processes end, too, where something was under way: what they wait for will not come.
func (s *Spread) End(cause error, busy bool) {
	if busy {
		s.Abort(cause)
	}
	s.cancel()
}
