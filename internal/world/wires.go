package world

import (
	"context"
	"fmt"
	"sync"
)

// A wire carries bytes from one process to another, of any node, or of the same process: each Send of
// one end fills what the other end expects, in order. Nothing is sent before it is expected, so that no
// process keeps what others send, and none waits for a wire in order to read another.

// wires are what a process expects, and what others expect of it.
type wires struct {
	sync.Mutex
	next     uint64
	expected map[wireEnd]*Receipt
	wanted   map[wireEnd]int // bytes
	changed  chan struct{}   // closed and replaced when wanted changes
}

// wireEnd is a wire, and the process at its other end.
type wireEnd struct {
	process int
	wire    uint64
}

// What a sound process does not go beyond: how many wires are wanted at a time, and how much of one.
const (
	maxWanted = 1 << 16
	maxWire   = 1 << 40 // bytes of one Send
)

// Receipt is what is expected of a wire.
type Receipt struct {
	wires    *wires
	detector *detector
	from     wireEnd
	to       []byte // the destination; guarded by wires, and nil once no receiver waits
	left     int    // bytes that have not come yet; guarded by wires
	done     chan struct{}
}

// want notes that a process expects n bytes.
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

// wake wakes whoever waits in Send. It is called with s locked.
func (s *wires) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// waiting returns what is closed when wanted changes. It is called with s locked.
func (s *wires) waiting() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// arrived writes bytes that a process has sent to where they are expected.
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

// Wait waits until all has come. It fails with ctx, with the world, and where the sender cannot be waited for
// as in Counters.Wait.
func (r *Receipt) Wait(ctx context.Context) error {
	err := r.detector.until(ctx, r.from.process, func() <-chan struct{} {
		select {
		case <-r.done:
			return nil
		default:
			return r.done
		}
	})
	if err != nil { // what comes all the same, the sender knows nothing of this, is dropped
		r.wires.Lock()
		defer r.wires.Unlock()
		r.to = nil
	}
	return err
}
