package world

import (
	"context"
	"fmt"
)

// NewWires reserves n new numbers of wires, and returns the first. All processes must call NewWires in the same order
// with the same n.
func (w *World) NewWires(n int) uint64 {
	w.wires.Lock()
	defer w.wires.Unlock()
	first := w.wires.next
	w.wires.next += uint64(n)
	return first
}

// Expect announces that the next bytes that a process sends on a wire are to be written to b. The caller must not use b
// until Wait has returned. A wire can have only one unfinished Receipt at a time.
func (w *World) Expect(from int, wire uint64, b []byte) (*Receipt, error) {
	if from < 0 || from >= w.mesh.o.Size {
		return nil, fmt.Errorf("rank %d does not exist in a run of %d processes%s", from, w.mesh.o.Size, w.mesh.o.ofGroup())
	}
	r := &Receipt{wires: &w.wires, detector: w.detector, from: wireEnd{from, wire}, to: b, left: len(b),
		done: make(chan struct{})}
	if len(b) == 0 {
		close(r.done)
		return r, nil
	}
	s := &w.wires
	s.Lock()
	if s.expected[r.from] != nil {
		s.Unlock()
		return nil, fmt.Errorf("wire %d from rank %d is expected to send twice", wire, w.mesh.o.outer(from))
	}
	if s.expected == nil {
		s.expected = map[wireEnd]*Receipt{}
	}
	s.expected[r.from] = r
	s.Unlock()
	if from == w.mesh.o.Rank {
		return r, w.wires.want(wireEnd{from, wire}, len(b))
	}
	return r, w.mesh.sendTo(from, wanted{wire, uint64(len(b))}.encode())
}

// Send waits until a process expects bytes on a wire, and sends b. If the receiving process expects another number of
// bytes, the world ends with a *DisagreeError.
func (w *World) Send(ctx context.Context, to int, wire uint64, b []byte) error {
	if to < 0 || to >= w.mesh.o.Size {
		return fmt.Errorf("rank %d does not exist in a run of %d processes%s", to, w.mesh.o.Size, w.mesh.o.ofGroup())
	}
	if len(b) == 0 {
		return nil
	}
	s, end := &w.wires, wireEnd{to, wire}
	n := 0
	err := w.detector.until(ctx, to, func() <-chan struct{} {
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
		w.mesh.abort(w.mesh.disagree("the bytes of a message", fmt.Sprintf("%d to send", len(b)), to, fmt.Sprintf("%d to receive", n)))
		return w.mesh.err()
	}
	if to == w.mesh.o.Rank {
		return w.wires.arrived(end, b)
	}
	most := w.mesh.linkTo(to).payload()
	packet := make([]byte, 0, dataHeader+min(most, len(b)))
	for len(b) > 0 {
		k := min(most, len(b))
		packet = data{wire, b[:k]}.append(packet[:0])
		if err := w.mesh.sendTo(to, packet); err != nil {
			return err
		}
		b = b[k:]
	}
	return nil
}
