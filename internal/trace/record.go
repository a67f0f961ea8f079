package trace

import "sync"

// Recorder collects marks at the starts and ends of commands on the streams of a world. It is a device.Observer. The
// methods of a Recorder may be called from several goroutines at once.
type Recorder struct {
	mu    sync.Mutex
	spans []span
	open  map[mark]int // index in spans of each command that has not ended
}

// mark identifies one command on one stream.
type mark struct {
	rank   int
	stream string
	id     int64
}

type span struct {
	mark
	start, end int64
	ended      bool
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder { return &Recorder{open: map[mark]int{}} }

// Began records that the command id started on a stream.
func (r *Recorder) Began(rank int, stream string, id int64, ns int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := mark{rank, stream, id}
	r.open[m] = len(r.spans)
	r.spans = append(r.spans, span{mark: m, start: ns})
}

// Ended records that the command id has ended. Ended ignores the end of a command that was not started.
func (r *Recorder) Ended(rank int, stream string, id int64, ns int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := mark{rank, stream, id}
	if i, ok := r.open[m]; ok {
		r.spans[i].end, r.spans[i].ended = ns, true
		delete(r.open, m)
	}
}

// Drain returns an event for every command that has ended, and deletes all marks. The function describe returns the
// event for an id; Drain then sets its Rank, Stream, Start and End.
func (r *Recorder) Drain(describe func(id int64) Event) []Event {
	r.mu.Lock()
	spans := r.spans
	r.spans = nil
	clear(r.open)
	r.mu.Unlock()
	events := make([]Event, 0, len(spans))
	for _, s := range spans {
		if !s.ended {
			continue
		}
		e := describe(s.id)
		e.Rank, e.Stream, e.Start, e.End = s.rank, s.stream, s.start, s.end
		events = append(events, e)
	}
	return events
}
