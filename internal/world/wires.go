package world

import (
	"context"
	"fmt"
	"sync"
	"time"
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
	w    *World
	from wireEnd
	to   []byte // where it goes; guarded by wires, and nil once nobody waits any more
	left int    // bytes that have not come yet; guarded by wires
	done chan struct{}
}

// NewWires returns the first of n numbers of wires that nobody has. All processes call it alike, in one order.
func (w *World) NewWires(n int) uint64 {
	w.wires.Lock()
	defer w.wires.Unlock()
	first := w.wires.next
	w.wires.next += uint64(n)
	return first
}

// Expect has what a process sends next on a wire be written to b, which must be left alone until Wait has
// returned. A wire has one receipt at a time.
func (w *World) Expect(from int, wire uint64, b []byte) (*Receipt, error) {
	if from < 0 || from >= w.o.Size {
		return nil, fmt.Errorf("rank %d is not in a world of %d processes", from, w.o.Size)
	}
	r := &Receipt{w: w, from: wireEnd{from, wire}, to: b, left: len(b), done: make(chan struct{})}
	if len(b) == 0 {
		close(r.done)
		return r, nil
	}
	s := &w.wires
	s.Lock()
	if s.expected[r.from] != nil {
		s.Unlock()
		return nil, fmt.Errorf("wire %d from rank %d is expected to send twice", wire, from)
	}
	if s.expected == nil {
		s.expected = map[wireEnd]*Receipt{}
	}
	s.expected[r.from] = r
	s.Unlock()
	if from == w.o.Rank {
		return r, w.want(wireEnd{from, wire}, len(b))
	}
	return r, w.sendTo(from, wanted{wire, uint64(len(b))}.encode())
}

// want notes that a process expects n bytes.
func (w *World) want(by wireEnd, n int) error {
	s := &w.wires
	s.Lock()
	defer s.Unlock()
	if _, twice := s.wanted[by]; twice || len(s.wanted) == maxWanted {
		return fmt.Errorf("bytes of wire %d are wanted twice, or too many are", by.wire)
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
func (w *World) arrived(from wireEnd, b []byte) error {
	s := &w.wires
	s.Lock()
	defer s.Unlock()
	r := s.expected[from]
	if r == nil || len(b) == 0 || len(b) > r.left {
		return fmt.Errorf("%d bytes that nobody expects", len(b))
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
	err := r.w.until(ctx, r.from.process, func() <-chan struct{} {
		select {
		case <-r.done:
			return nil
		default:
			return r.done
		}
	})
	if err != nil { // what comes all the same, the sender knows nothing of this, is dropped
		r.w.wires.Lock()
		defer r.w.wires.Unlock()
		r.to = nil
	}
	return err
}

// until waits, as Counters.Wait does, until pending returns nil. Else that is closed when it may.
func (w *World) until(ctx context.Context, process int, pending func() <-chan struct{}) error {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for v := (vigil{}); ; {
		c := pending()
		if c == nil {
			return nil
		}
		select {
		case <-c:
			continue
		default:
		}
		if err := w.check(ctx, process, &v); err != nil {
			if pending() == nil { // it sends before it leaves
				return nil
			}
			return err
		}
		select {
		case <-c:
		case <-ctx.Done():
		case <-w.done:
		case <-tick.C:
			v.beats++
		}
	}
}

// Send waits until a process expects bytes of a wire, and sends b. Another number of bytes than it expects ends
// the world with a *DisagreeError.
func (w *World) Send(ctx context.Context, to int, wire uint64, b []byte) error {
	if to < 0 || to >= w.o.Size {
		return fmt.Errorf("rank %d is not in a world of %d processes", to, w.o.Size)
	}
	if len(b) == 0 {
		return nil
	}
	s, end := &w.wires, wireEnd{to, wire}
	n := 0
	err := w.until(ctx, to, func() <-chan struct{} {
		s.Lock()
		defer s.Unlock()
		var ok bool
		if n, ok = s.wanted[end]; !ok {
			return s.waiting()
		}
		delete(s.wanted, end)
		return nil
	})
	if err != nil {
		return err
	}
	if n != len(b) {
		w.Abort(w.disagree("the bytes of a message", fmt.Sprintf("%d to send", len(b)), to, fmt.Sprintf("%d to receive", n)))
		return w.Err()
	}
	if to == w.o.Rank {
		return w.arrived(end, b)
	}
	most := w.linkTo(to).payload()
	packet := make([]byte, 0, dataHeader+min(most, len(b)))
	for len(b) > 0 {
		k := min(most, len(b))
		packet = data{wire, b[:k]}.append(packet[:0])
		if err := w.sendTo(to, packet); err != nil {
			return err
		}
		b = b[k:]
	}
	return nil
}

func (w *World) linkTo(process int) link {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.peers[process].link
}
