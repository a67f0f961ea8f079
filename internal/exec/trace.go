package exec

import (
	"fmt"
	"sync/atomic"

	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
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

// observe starts to watch the world.
func observe(im *image.Image) *tracer {
	t := &tracer{streams: map[streamKey]bool{}, recorder: trace.NewRecorder(), cmds: int64(len(im.Cmds))}
	for i, s := range im.Streams {
		t.streams[streamKey{int(im.Plan.Streams[i].Rank), s.Name()}] = true
	}
	im.World.Observe(t)
	return t
}

// markedOf tells which commands are bracketed by marks, so that errors have a place.
func markedOf(im *image.Image) []bool {
	marked := make([]bool, len(im.Cmds))
	for i := range im.Cmds {
		marked[i] = im.Cmds[i].Marked
	}
	return marked
}

// endsOf keeps, of the marked commands, the first and the last of each part on each stream.
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

// ofRun is the number of a mark with its run in it.
func (t *tracer) ofRun(id int64) int64 {
	if id < t.cmds {
		return id + t.replayed.Load()
	}
	return id
}

func (p *Program) addTraces(results []*Result, first int64) {
	for _, r := range results {
		r.Trace = &trace.Trace{Ranks: p.im.Plan.Ranks, Virtual: p.im.Caps.Virtual}
		if p.im.Caps.DeviceClocks {
			for rank := range p.im.Plan.Ranks {
				r.Trace.Clocks = append(r.Trace.Clocks, rank)
			}
		}
	}
	for _, e := range p.tracer.recorder.Drain(p.describe) {
		if i := e.Run - first; i >= 0 && i < int64(len(results)) {
			t := results[i].Trace
			t.Events = append(t.Events, e)
		}
	}
	for _, r := range results {
		r.Trace.Sort()
	}
}

// describe tells the trace what a mark stands for.
func (p *Program) describe(id int64) trace.Event {
	n := int64(len(p.im.Plan.Cmds))
	i := id % n
	c := &p.im.Plan.Cmds[i]
	e := trace.Event{Run: id / n, ID: i, Name: p.name(c), Detail: p.im.Plan.Where(i),
		Group: trace.NoGroup, Class: class(c)}
	if g := p.im.Groups[int(i)]; g != nil {
		e.Name = g.Name
	}
	switch c.Kind {
	case plan.Copy:
		e.Bytes = c.Outs[0].Bytes()
	case plan.Collective:
		cmd := &p.im.Cmds[i]
		e.Group, e.Bytes = int(c.Coll), cmd.Channel.Moved(cmd.Seq, cmd.Part)
		e.Detail += ", by " + p.im.Algorithms[c.Coll]
	case plan.Group:
		for _, t := range c.Group {
			if !t.Send {
				e.Bytes += p.im.Plan.Pairs[t.Pair].Dst.Bytes()
			}
		}
	case plan.Input:
		e.Bytes = p.im.Inputs[c.IO].Of(c.Rank).Ref.Bytes()
	case plan.Output:
		e.Bytes = p.im.Outputs[c.IO].Of(c.Rank).Ref.Bytes()
	}
	return e
}

func class(c *plan.Cmd) trace.Class {
	switch c.Kind {
	case plan.Compute:
		return trace.Compute
	case plan.Collective, plan.Group:
		return trace.Comm
	case plan.Copy:
		if c.Peer >= 0 && c.Peer != c.Rank {
			return trace.Comm
		}
		return trace.Compute
	case plan.Input, plan.Output:
		return trace.IO
	}
	return trace.Sync
}

// profiled is what a profiler calls the work of a mark, or of the graph, which is mark -1.
func (p *Program) profiled(id int64) string {
	if id < 0 {
		return p.im.Plan.Func + " as one graph"
	}
	c := &p.im.Plan.Cmds[id%int64(len(p.im.Plan.Cmds))]
	at := &p.im.Plan.Sites[c.Site]
	text := at.Text
	if c.Kind == plan.Input || c.Kind == plan.Output || text == "" {
		text = p.name(c)
	}
	return fmt.Sprintf("%s (line %d, rank %d)", text, at.Pos.Line, c.Rank)
}

// name is the word that the program has for the command.
func (p *Program) name(c *plan.Cmd) string {
	switch c.Kind {
	case plan.Compute:
		return p.im.Plan.Called(c)
	case plan.Collective:
		return p.im.Plan.Colls[c.Coll].Op.String()
	case plan.WaitEvent, plan.WaitCounter:
		return ir.OpWait.String()
	case plan.Input, plan.Output:
		return c.Kind.String()
	}
	if op := p.im.Plan.Sites[c.Site].Op; op != ir.InvalidOp {
		return op.String()
	}
	return c.Kind.String()
}
