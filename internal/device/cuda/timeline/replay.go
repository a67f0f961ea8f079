package timeline

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/nvlib"
)

// Replay holds the begins and ends of commands within a graph that was recorded for an observer. For each of them, a
// node of the graph records an event. The times of these events can be read after a launch of the graph has ended. The
// next launch overwrites them, so only the last of several consecutive launches is reported.
type Replay struct {
	nodes  []node
	latest map[*Track]place
}

// node is a begin or end of a command within a graph.
type node struct {
	clock  *Clock
	rank   int
	stream string
	began  bool
	id     int64
	ev     nvlib.Event
	shared bool // the event is the same as that of the previous node of the stream
}

// place is a position in a stream, directly after an event.
type place struct {
	pos int64
	ev  nvlib.Event
}

// Note adds a begin or an end of a command, at position pos of a rank's stream, whose track is t. It returns the event
// that the caller records with a graph node, or 0 if none is needed. The context is current.
func (r *Replay) Note(t *Track, c *Clock, rank int, stream string, began bool, id, pos int64) (nvlib.Event, error) {
	n := node{clock: c, rank: rank, stream: stream, began: began, id: id}
	if at, ok := r.latest[t]; ok && at.pos == pos { // the end of a command and the begin of the next share an event
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

// Tell reports to the observer o the begins and ends of commands in the last launch. The launch has ended.
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

// Free returns the events of all nodes to their clocks.
func (r *Replay) Free() {
	for _, n := range r.nodes {
		if !n.shared {
			n.clock.FreeTimed(n.ev)
		}
	}
	r.nodes, r.latest = nil, nil
}
