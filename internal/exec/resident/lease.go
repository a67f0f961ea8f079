package resident

import (
	"context"
	"fmt"
	"slices"
)

// A lease is one caller's hold on a set of device tensors. Leases are granted in FIFO order: a lease is granted when no
// earlier lease, granted or waiting, conflicts with it. A lease is granted for all its tensors at once, so callers
// neither starve nor deadlock.
type lease struct {
	reads, writes []*DeviceTensor
	granted       chan struct{} // closed when the lease is granted
}

func (l *lease) isGranted() bool {
	select {
	case <-l.granted:
		return true
	default:
		return false
	}
}

// conflicts reports whether l and o cannot be granted concurrently.
func (l *lease) conflicts(o *lease) bool {
	return common(l.writes, o.writes) || common(l.writes, o.reads) || common(l.reads, o.writes)
}

func common(a, b []*DeviceTensor) bool {
	return slices.ContainsFunc(a, func(t *DeviceTensor) bool { return slices.Contains(b, t) })
}

// Lease waits, until ctx ends, for exclusive use of the tensors in writes and for shared use of the tensors in reads.
// Conflicting leases wait until release is called. Enqueued runs that use the tensors have ended when Lease returns.
func (s *DeviceTensors) Lease(ctx context.Context, reads, writes []*DeviceTensor) (release func(), err error) {
	if release, err = s.LeaseInOrder(ctx, reads, writes); err != nil {
		return nil, err
	}
	if err := s.rest(ctx, slices.Concat(reads, writes)); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// User is a program that may have enqueued runs that use device tensors.
type User interface {
	// Rest waits until the enqueued runs have ended. If the runs failed, the tensors that they use already record it.
	Rest(ctx context.Context) error
}

// rest waits until the enqueued runs that use the tensors have ended.
func (s *DeviceTensors) rest(ctx context.Context, tensors []*DeviceTensor) error {
	for _, t := range tensors {
		s.mu.Lock()
		users := t.users
		t.users = nil
		s.mu.Unlock()
		for u := range users {
			_ = u.Rest(ctx) // if the run failed, the tensor has no contents
			if err := ctx.Err(); err != nil {
				t.UsedBy(u)
				return fmt.Errorf("while waiting for enqueued runs that use a device tensor: %w", err)
			}
		}
	}
	return nil
}

// UsedBy records that enqueued runs of u use the tensor. The caller must hold a lease of it.
func (t *DeviceTensor) UsedBy(u User) {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.users == nil {
		t.users = map[User]bool{}
	}
	t.users[u] = true
}

// LeaseInOrder is like Lease, but does not wait for enqueued runs. LeaseInOrder is for work that streams order after
// these runs.
func (s *DeviceTensors) LeaseInOrder(ctx context.Context, reads, writes []*DeviceTensor) (release func(), err error) {
	if len(reads)+len(writes) == 0 {
		return func() {}, nil
	}
	l := &lease{reads, writes, make(chan struct{})}
	ended := ctx.Done() // this must precede the registration of l, because a nil context panics here
	s.join(l)
	select {
	case <-l.granted:
	case <-ended:
	}
	if l.isGranted() {
		err = s.closedOf(l)
	} else {
		err = fmt.Errorf("while waiting for other users of a device tensor: %w", ctx.Err())
	}
	if err != nil {
		s.leave(l)
		return nil, err
	}
	return func() { s.leave(l) }, nil
}

func (s *DeviceTensors) join(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases = append(s.leases, l)
	s.grant()
}

func (s *DeviceTensors) leave(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases = slices.DeleteFunc(s.leases, func(o *lease) bool { return o == l })
	s.grant()
}

// grant grants all leases that do not conflict with earlier ones. The caller holds s.mu.
func (s *DeviceTensors) grant() {
	for i, l := range s.leases {
		if !l.isGranted() && !slices.ContainsFunc(s.leases[:i], l.conflicts) {
			close(l.granted)
		}
	}
}

// closedOf returns an error if a tensor of l is closed.
func (s *DeviceTensors) closedOf(l *lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range slices.Concat(l.reads, l.writes) {
		if t.closed {
			return t.Errorf("it is %w", ErrClosed)
		}
	}
	return nil
}
