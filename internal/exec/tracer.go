package exec

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/trace"
)

// tracer passes the marks of the plan's streams on to the recorder. Those on
// other streams, side streams of a group, are for errors only.
type tracer struct {
	streams  map[streamKey]bool
	recorder *trace.Recorder
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
	t := &tracer{map[streamKey]bool{}, trace.NewRecorder()}
	for i, s := range p.streams {
		t.streams[streamKey{int(p.plan.Streams[i].Rank), s.Name()}] = true
	}
	p.recorder = t.recorder
	w.Observe(t)
	return nil
}

// Began implements device.Observer.
func (t *tracer) Began(rank int, stream string, id int64, ns int64) {
	if t.streams[streamKey{rank, stream}] {
		t.recorder.Began(rank, stream, id, ns)
	}
}

// Ended implements device.Observer.
func (t *tracer) Ended(rank int, stream string, id int64, ns int64) {
	if t.streams[streamKey{rank, stream}] {
		t.recorder.Ended(rank, stream, id, ns)
	}
}
