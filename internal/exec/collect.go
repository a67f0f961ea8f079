package exec

import (
	"fmt"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

// collect makes the results of k runs that have ended.
func (p *Program) collect(first int64, k int, direct []Direct) ([]*Result, error) {
	results := make([]*Result, k)
	for i := range results {
		outs, err := assemble(p.frames[i], directOf(direct, i))
		if err != nil {
			if k > 1 {
				err = fmt.Errorf("run %d of %d: %w", i+1, k, err)
			}
			return nil, err
		}
		results[i] = &Result{Outputs: outs}
	}
	if p.tracer != nil {
		p.addTraces(results, first)
	}
	return results, nil
}

func (p *Program) addTraces(results []*Result, first int64) {
	for _, r := range results {
		r.Trace = &trace.Trace{Ranks: p.plan.Ranks, Virtual: p.caps.Virtual}
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
	n := int64(len(p.plan.Cmds))
	i := id % n
	c := &p.plan.Cmds[i]
	e := trace.Event{Run: id / n, ID: i, Name: p.name(c), Detail: p.where(i), Group: trace.NoGroup, Class: class(c)}
	if f := p.chains[int(i)]; f != nil {
		e.Name = f.name
	}
	switch c.Kind {
	case plan.Copy:
		e.Bytes = c.Outs[0].Bytes()
	case plan.Collective:
		cmd := &p.cmds[i]
		e.Group, e.Bytes = int(c.Coll), cmd.channel.Moved(cmd.seq, cmd.part)
		e.Detail += ", by " + p.algorithms[c.Coll]
	case plan.Group:
		for _, t := range c.Group {
			if !t.Send {
				e.Bytes += p.plan.Pairs[t.Pair].Dst.Bytes()
			}
		}
	case plan.Input:
		e.Bytes = partOf(&p.inputs[c.IO], c.Rank).Ref.Bytes()
	case plan.Output:
		e.Bytes = partOf(&p.outputs[c.IO], c.Rank).Ref.Bytes()
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

// name is the word that the program has for the command.
func (p *Program) name(c *plan.Cmd) string {
	switch c.Kind {
	case plan.Compute:
		return c.Op.String()
	case plan.Collective:
		return p.plan.Colls[c.Coll].Op.String()
	case plan.WaitEvent, plan.WaitCounter:
		return ir.OpWait.String()
	case plan.Input, plan.Output:
		return c.Kind.String()
	}
	if op := p.plan.Sites[c.Site].Op; op != ir.InvalidOp {
		return op.String()
	}
	return c.Kind.String()
}
