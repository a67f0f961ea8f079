package exec

import (
	"fmt"
	"sync/atomic"

	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/trace"
)

// tracer passes the marks of the plan's streams to the recorder. Marks on the side streams of groups are used only for
// errors.
type tracer struct {
	symbols  symbolizer
	records  map[int32]int // by event: index of the command that records the event
	streams  map[streamKey]bool
	recorder *trace.Recorder
	// cmds is the number of commands. A graph reports the marks of run 0. replayed is the difference between these
	// marks and the marks of the run that was launched last.
	cmds     int64
	replayed atomic.Int64
}

type streamKey struct {
	rank int
	name string
}

// observe starts to observe the world.
func observe(im *image.Image) *tracer {
	t := &tracer{symbols: symbolizer{im}, streams: map[streamKey]bool{}, recorder: trace.NewRecorder(),
		records: map[int32]int{}, cmds: int64(len(im.Cmds))}
	for i := range im.Plan.Cmds {
		if c := &im.Plan.Cmds[i]; c.Kind == plan.Record {
			t.records[c.Event] = i
		}
	}
	for i, s := range im.Streams {
		t.streams[streamKey{int(im.Plan.Streams[i].Rank), s.Name()}] = true
	}
	im.World.Observe(t)
	return t
}

// markedOf returns the commands to enclose in Begin and End marks, so that errors can be located.
func markedOf(im *image.Image) []bool {
	marked := make([]bool, len(im.Cmds))
	for i := range im.Cmds {
		marked[i] = im.Cmds[i].Marked
	}
	return marked
}

// endsOf returns the first and the last marked command of each part on each stream.
func endsOf(im *image.Image, marked []bool, parts func(cmd int) int) []bool {
	type place struct {
		stream int32
		part   int
	}
	ends := map[place][2]int{}
	for i := range im.Cmds {
		if !marked[i] {
			continue
		}
		at := place{im.Plan.Cmds[i].Stream, parts(i)}
		e, begun := ends[at]
		if !begun {
			e[0] = i
		}
		e[1] = i
		ends[at] = e
	}
	kept := make([]bool, len(im.Cmds))
	for at, e := range ends {
		if at.part >= 0 {
			kept[e[0]], kept[e[1]] = true, true
		}
	}
	return kept
}

// Began implements device.Observer.
func (t *tracer) Began(rank int, stream string, id int64, ns int64) {
	if t.streams[streamKey{rank, stream}] {
		t.recorder.Began(rank, stream, t.ofRun(id), ns)
	}
}

// Ended implements device.Observer.
func (t *tracer) Ended(rank int, stream string, id int64, ns int64) {
	if t.streams[streamKey{rank, stream}] {
		t.recorder.Ended(rank, stream, t.ofRun(id), ns)
	}
}

// ofRun returns the mark of a replayed command with the number of its run included.
func (t *tracer) ofRun(id int64) int64 {
	if id < t.cmds {
		return id + t.replayed.Load()
	}
	return id
}

// traces returns the traces of n runs that have ended, beginning with run number first.
func (t *tracer) traces(first int64, n int) []*trace.Trace {
	im, list := t.symbols.im, make([]*trace.Trace, n)
	for i := range list {
		list[i] = &trace.Trace{Ranks: im.Plan.Ranks, Virtual: im.Caps.Virtual}
		for rank := range im.Plan.Ranks {
			if im.Caps.DeviceClocks {
				list[i].Clocks = append(list[i].Clocks, rank)
			}
		}
	}
	for _, e := range t.recorder.Drain(t.describe) {
		if i := e.Run - first; i >= 0 && i < int64(n) {
			list[i].Events = append(list[i].Events, e)
		}
	}
	for _, tr := range list {
		tr.Sort()
	}
	return list
}

// describe returns the trace event of a mark, without its times.
func (t *tracer) describe(id int64) trace.Event {
	e := t.symbols.describe(id)
	p := t.symbols.im.Plan
	c := &p.Cmds[e.ID]
	counter := func() string { return fmt.Sprintf("%s[%d]", p.Counters[c.Counter].Name, c.Elem) }
	switch c.Kind {
	case plan.WaitEvent:
		record := t.records[c.Event]
		e.Tie = &trace.Tie{Stream: p.Streams[p.Cmds[record].Stream].Name, Until: int64(record), Peer: -1}
	case plan.WaitCounter:
		e.Tie = &trace.Tie{Counter: counter(), Count: c.Value, Peer: -1}
	case plan.Signal:
		e.Tie = &trace.Tie{Counter: counter(), Peer: int(c.Peer)}
	case plan.Copy:
		if c.Peer >= 0 && c.Peer != c.Rank {
			e.Tie = &trace.Tie{Peer: int(c.Peer)}
		}
	}
	return e
}

// forget discards the events since the last trace.
func (t *tracer) forget() { t.recorder.Drain(t.describe) }

// launches records that the graph is launched for a run.
func (t *tracer) launches(run int64) {
	if t != nil {
		t.replayed.Store(run * t.cmds)
	}
}
