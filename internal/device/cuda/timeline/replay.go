package timeline

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Replay is the begins and ends within a graph that was recorded where someone observes: a node for each records an
// event. What these say can be read once a launch has ended, and the next launch writes over it: of launches in a row
// the last is told of.
type Replay struct {
	nodes  []node
	latest map[*Track]place
}

// node is a begin or end within a graph.
type node struct {
	clock  *Clock
	rank   int
	stream string
	began  bool
	id     int64
	ev     nvlib.Event
	shared bool // the event is the node's before, of that stream
}

// place is the position of a stream, after an event.
type place struct {
	pos int64
	ev  nvlib.Event
}

// Note records a begin or end on a rank's stream, whose track is t, at position pos. It returns the event for which
// the stream gets a node, or 0 for none. The context is current.
func (r *Replay) Note(t *Track, c *Clock, rank int, stream string, began bool, id, pos int64) (nvlib.Event, error) {
	n := node{clock: c, rank: rank, stream: stream, began: began, id: id}
	if at, ok := r.latest[t]; ok && at.pos == pos { // an end and the next begin
		n.ev, n.shared = at.ev, true
		r.nodes = append(r.nodes, n)
		return 0, nil
	}
	var err error
	if n.ev, err = c.Event(true); err != nil {
		return 0, err
	}
	r.nodes = append(r.nodes, n)
	if r.latest == nil {
		r.latest = map[*Track]place{}
	}
	r.latest[t] = place{pos + 1, n.ev}
	return n.ev, nil
}

// Tell tells o of the launch that has ended.
func (r *Replay) Tell(o device.Observer) {
	for _, n := range r.nodes {
		ns, err := n.clock.at(n.ev)
		if err != nil {
			return
		}
		tell := o.Ended
		if n.began {
			tell = o.Began
		}
		tell(n.rank, n.stream, n.id, ns)
	}
}

// Free gives the events back.
func (r *Replay) Free() {
	for _, n := range r.nodes {
		if !n.shared {
			n.clock.FreeTimed(n.ev)
		}
	}
	r.nodes, r.latest = nil, nil
}
