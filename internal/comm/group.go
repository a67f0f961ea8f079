package comm

import (
	"fmt"

	"hocket.example/hocket/internal/device"
)

// Group is a set of sends and receives of one rank that are posted together and completed together. The group first
// signals "ready" for all its sends, then executes its receives, and then waits until its sends have been received.
// This order prevents a deadlock in a ring of groups. Receives do not wait for each other: each receive except the
// first runs on a separate stream, which is forked from the group's stream and joined to it.
type Group struct {
	pairs  *Pairs
	stream device.Stream
	sends  []int // indices into Pairs.pairs
	recvs  []int
	sides  []lane
	fork   device.Event
}

// lane is a side stream and the event that joins it to the group's stream.
type lane struct {
	stream device.Stream
	joined device.Event
}

// Group prepares a group of posts of the given rank, to be issued on stream s.
func (p *Pairs) Group(rank int, s device.Stream, posts []Post) (*Group, error) {
	g := &Group{pairs: p, stream: s}
	for _, t := range posts {
		if t.Send {
			g.sends = append(g.sends, t.Pair)
		} else {
			g.recvs = append(g.recvs, t.Pair)
		}
	}
	if len(g.recvs) < 2 {
		return g, nil
	}
	if err := p.widen(rank, s, len(g.recvs)-1); err != nil {
		return nil, fmt.Errorf("side streams of a group: %w", err)
	}
	g.sides = p.lanes[s][:len(g.recvs)-1]
	var err error
	g.fork, err = p.world.Device(rank).NewEvent()
	return g, err
}

// widen ensures that stream s has at least n side streams. All groups of a stream share its side streams.
func (p *Pairs) widen(rank int, s device.Stream, n int) error {
	d := p.world.Device(rank)
	for len(p.lanes[s]) < n {
		name := fmt.Sprintf("%s, receive %d", s.Name(), len(p.lanes[s])+2)
		st, err := d.NewStream(device.StreamOptions{Name: name})
		if err != nil {
			return err
		}
		e, err := d.NewEvent()
		if err != nil {
			return err
		}
		p.lanes[s] = append(p.lanes[s], lane{st, e})
	}
	return nil
}

// Issue enqueues the group in run number run, counted from 0. id labels the work on side streams; the caller labels the
// work on the group's own stream.
func (g *Group) Issue(id, run int64) error {
	p := g.pairs
	for _, i := range g.sends {
		if err := g.stream.Signal(p.counters[p.pairs[i].DstRank], p.ready[i], 1); err != nil {
			return err
		}
	}
	if len(g.sides) > 0 {
		if err := g.stream.Record(g.fork); err != nil {
			return err
		}
	}
	for k, l := range g.sides {
		if err := g.receiveOn(l, g.recvs[k+1], id, run); err != nil {
			return err
		}
	}
	if len(g.recvs) > 0 {
		if err := p.receive(g.stream, g.recvs[0], run); err != nil {
			return err
		}
	}
	for _, l := range g.sides {
		if err := g.stream.Wait(l.joined); err != nil {
			return err
		}
	}
	for _, i := range g.sends {
		if err := g.stream.WaitCounter(p.counters[p.pairs[i].SrcRank], p.done[i], run+1); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) receiveOn(l lane, pair int, id, run int64) error {
	if err := l.stream.Wait(g.fork); err != nil {
		return err
	}
	if err := l.stream.Begin(id); err != nil {
		return err
	}
	if err := g.pairs.receive(l.stream, pair, run); err != nil {
		return err
	}
	if err := l.stream.End(id); err != nil {
		return err
	}
	return l.stream.Record(l.joined)
}

func (p *Pairs) receive(s device.Stream, i int, run int64) error {
	pr := &p.pairs[i]
	if err := s.WaitCounter(p.counters[pr.DstRank], p.ready[i], run+1); err != nil {
		return err
	}
	if pr.Src.Elements() > 0 {
		if err := s.Copy(pr.Dst, pr.Src); err != nil {
			return err
		}
	}
	return s.Signal(p.counters[pr.SrcRank], p.done[i], 1)
}
