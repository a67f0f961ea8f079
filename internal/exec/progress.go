package exec

import (
	"sync/atomic"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/trace"
)

// progress remembers what each stream is at, so that a run that does not end
// in time can say what it waited for. It passes marks on to the recorder.
type progress struct {
	at       map[streamKey]*atomic.Int64 // mark of the command begun and not ended; -1 for none
	order    []streamKey
	recorder *trace.Recorder
}

type streamKey struct {
	rank int
	name string
}

// observe starts to watch the world, where it can be watched.
func (p *Program) observe() error {
	p.progress = &progress{at: map[streamKey]*atomic.Int64{}}
	for i, s := range p.streams {
		key := streamKey{int(p.plan.Streams[i].Rank), s.Name()}
		at := &atomic.Int64{}
		at.Store(-1)
		p.progress.at[key] = at
		p.progress.order = append(p.progress.order, key)
	}
	w, ok := p.world.(device.Observable)
	if !ok {
		return nil
	}
	if p.opts.Trace {
		p.recorder = trace.NewRecorder()
		p.progress.recorder = p.recorder
	}
	w.Observe(p.progress)
	return nil
}

// Began implements device.Observer. Marks on streams that are not the plan's,
// side streams of a group, are for errors only.
func (g *progress) Began(rank int, stream string, id int64, ns int64) {
	at := g.at[streamKey{rank, stream}]
	if at == nil {
		return
	}
	at.Store(id)
	if g.recorder != nil {
		g.recorder.Began(rank, stream, id, ns)
	}
}

// Ended implements device.Observer.
func (g *progress) Ended(rank int, stream string, id int64, ns int64) {
	at := g.at[streamKey{rank, stream}]
	if at == nil {
		return
	}
	at.CompareAndSwap(id, -1)
	if g.recorder != nil {
		g.recorder.Ended(rank, stream, id, ns)
	}
}

// stuck lists the streams that are inside a command, by rank.
func (g *progress) stuck() []device.Blocked {
	var list []device.Blocked
	for _, key := range g.order {
		if id := g.at[key].Load(); id >= 0 {
			list = append(list, device.Blocked{Rank: key.rank, Stream: key.name, ID: id})
		}
	}
	return list
}
