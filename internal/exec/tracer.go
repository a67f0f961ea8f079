package exec

import (
	"sync/atomic"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/trace"
)

// tracer passes the marks of the plan's streams on to the recorder. Those on
// other streams, side streams of a group, are for errors only.
type tracer struct {
	streams  map[streamKey]bool
	recorder *trace.Recorder
	// A graph's marks have the numbers of run 0, of cmds commands; replayed is what
	// the marks of the run launched last have more.
	cmds     int64
	replayed atomic.Int64
}

type streamKey struct {
	rank int
	name string
}

// observe starts to watch the world, where that is wanted and can be.
func (p *Program) observe() error {
	w, ok := p.world.(device.Observable)
	if !ok || !p.opts.Trace {
		return nil
	}
	t := &tracer{streams: map[streamKey]bool{}, recorder: trace.NewRecorder(), cmds: int64(len(p.cmds))}
	for i, s := range p.streams {
		t.streams[streamKey{int(p.plan.Streams[i].Rank), s.Name()}] = true
	}
	p.tracer = t
	p.keepEnds()
	w.Observe(t)
	return nil
}

// keepEnds takes the marks off all commands but the first and the last of each
// part on each stream, where Options.Ends tells parts.
func (p *Program) keepEnds() {
	if p.opts.Ends == nil {
		return
	}
	type place struct {
		stream int32
		part   int
	}
	ends := map[place][2]int{}
	for i := range p.cmds {
		if c := &p.cmds[i]; c.marked {
			c.marked = false
			at := place{p.plan.Cmds[i].Stream, p.opts.Ends(i)}
			e, begun := ends[at]
			if !begun {
				e[0] = i
			}
			e[1] = i
			ends[at] = e
		}
	}
	for at, e := range ends {
		if at.part >= 0 {
			p.cmds[e[0]].marked, p.cmds[e[1]].marked = true, true
		}
	}
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

// ofRun is the number of a mark with its run in it.
func (t *tracer) ofRun(id int64) int64 {
	if id < t.cmds {
		return id + t.replayed.Load()
	}
	return id
}
