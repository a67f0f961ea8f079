package world

import (
	"context"
	"fmt"
	"sync"
)

// A wire transfers bytes from one process to another, on any node, or to the same process. Each Send at one end fills
// the buffer that the other end expects, in order. No bytes are sent before they are expected. Therefore no process has
// to buffer data, and waiting for one wire does not block another.

// wires records the bytes that this process expects from others, and those that others expect from it.
type wires struct {
	sync.Mutex
	next     uint64
	expected map[wireEnd]*Receipt
	wanted   map[wireEnd]int // number of bytes that others expect
	changed  chan struct{}   // closed and replaced when wanted changes
}

// wireEnd identifies a wire and the process at its other end.
type wireEnd struct {
	process int
	wire    uint64
}

// These limits are larger than correct processes need: the number of wires on which bytes are expected at the same
// time, and the number of bytes of one Send.
const (
	maxWanted = 1 << 16
	maxWire   = 1 << 40 // bytes of one Send
)

// Receipt represents bytes that are expected on a wire.
type Receipt struct {
	wires    *wires
	detector *detector
	from     wireEnd
	to       []byte // where to write the next bytes; guarded by wires, and nil once Wait has failed
	left     int    // number of missing bytes; guarded by wires
	done     chan struct{}
}

// want records that another process expects n bytes.
func (s *wires) want(by wireEnd, n int) error {
	s.Lock()
	defer s.Unlock()
	if _, twice := s.wanted[by]; twice || len(s.wanted) == maxWanted {
		return fmt.Errorf("bytes of wire %d are requested twice, or too many are requested", by.wire)
	}
	if s.wanted == nil {
		s.wanted = map[wireEnd]int{}
	}
	s.wanted[by] = n
	s.wake()
	return nil
}

// wake wakes all waiting calls of Send. The caller holds s.
func (s *wires) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// waiting returns a channel that is closed when wanted changes. The caller holds s.
func (s *wires) waiting() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// arrived writes received bytes to the buffer that expects them.
func (s *wires) arrived(from wireEnd, b []byte) error {
	s.Lock()
	defer s.Unlock()
	r := s.expected[from]
	if r == nil || len(b) == 0 || len(b) > r.left {
		return fmt.Errorf("%d unexpected bytes", len(b))
	}
	r.to = r.to[copy(r.to, b):]
	if r.left -= len(b); r.left == 0 {
		delete(s.expected, from)
		close(r.done)
	}
	return nil
}

// Wait waits until all bytes have arrived. Wait fails when ctx or the world ends, and under the conditions of
// Counters.Wait for the sender.
func (r *Receipt) Wait(ctx context.Context) error {
	err := r.detector.until(ctx, r.from.process, func() <-chan struct{} {
		select {
		case <-r.done:
			return nil
		default:
			return r.done
		}
	})
	if err != nil { // the sender does not learn of this error, so bytes may still arrive, and are dropped
		r.wires.Lock()
		defer r.wires.Unlock()
		r.to = nil
	}
	return err
}
