package exec

import (
	"context"
	"fmt"
	"slices"
)

// use is somebody's of device tensors. It begins when no use that came before it and still
// goes on, or waits, has to do with what it is to write, nor writes what it is to read: so
// nobody is passed by for ever, and who waits for one tensor has no other meanwhile.
type use struct {
	reads, writes []*DeviceTensor
	begun         chan struct{} // closed then
}

func (u *use) hasBegun() bool {
	select {
	case <-u.begun:
		return true
	default:
		return false
	}
}

// meets reports whether u and v cannot go on at once.
func (u *use) meets(v *use) bool {
	return common(u.writes, v.writes) || common(u.writes, v.reads) || common(u.reads, v.writes)
}

func common(a, b []*DeviceTensor) bool {
	return slices.ContainsFunc(a, func(t *DeviceTensor) bool { return slices.Contains(b, t) })
}

// Hold waits until tensors can be read and written, as long as ctx lasts, and has others
// wait for the same until release is called.
func (s *DeviceTensors) Hold(ctx context.Context, reads, writes []*DeviceTensor) (release func(), err error) {
	if len(reads)+len(writes) == 0 {
		return func() {}, nil
	}
	u, ended := &use{reads, writes, make(chan struct{})}, ctx.Done() // which a nil context has not: nobody must wait for that
	s.join(u)
	select {
	case <-u.begun:
	case <-ended:
	}
	if u.hasBegun() {
		err = s.closedOf(u)
	} else {
		err = fmt.Errorf("other uses of a device tensor were waited for: %w", ctx.Err())
	}
	if err != nil {
		s.leave(u)
		return nil, err
	}
	return func() { s.leave(u) }, nil
}

func (s *DeviceTensors) join(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses = append(s.uses, u)
	s.admit()
}

func (s *DeviceTensors) leave(u *use) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses = slices.DeleteFunc(s.uses, func(v *use) bool { return v == u })
	s.admit()
}

// admit begins what waits and can. The caller holds s.mu.
func (s *DeviceTensors) admit() {
	for i, u := range s.uses {
		if !u.hasBegun() && !slices.ContainsFunc(s.uses[:i], u.meets) {
			close(u.begun)
		}
	}
}

// closedOf returns an error where a tensor of u is closed.
func (s *DeviceTensors) closedOf(u *use) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range slices.Concat(u.reads, u.writes) {
		if t.closed {
			return t.errorf("it is %w", ErrClosed)
		}
	}
	return nil
}
