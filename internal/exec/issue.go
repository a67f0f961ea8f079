package exec

import (
	"context"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
)

// issueWhole is issue, with nothing between that a machine must keep out.
func (p *Program) issueWhole(ctx context.Context, k int) error {
	return p.within(ctx, func() error {
		if w, ok := p.world.(device.Batcher); ok {
			return w.Batch(func() error { return p.issue(k) })
		}
		return p.issue(k)
	})
}

// within calls issue, and ends the world if ctx ends before it returns: it may wait for
// other worlds, or for transfers under way. Whether it has is known then: no later run of
// the world is ended.
func (p *Program) within(ctx context.Context, issue func() error) error {
	aborted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		p.world.Abort(&device.Expired{Err: ctx.Err(), Cause: context.Cause(ctx)})
		close(aborted)
	})
	err := issue()
	if !stop() {
		<-aborted
	}
	return err
}

// issue enqueues k runs, one after the other. A command's mark is its index in
// the plan plus the run's number times their count.
func (p *Program) issue(k int) error {
	for i := range k {
		run, f := p.run, p.frames[i]
		p.run++
		base := run * int64(len(p.cmds))
		if p.replay.ready() {
			if err := p.replay.issue(p, base, run, f); err != nil {
				return err
			}
			continue
		}
		p.adv.begin(f)
		for c := range p.cmds {
			if err := p.issueMarked(&p.cmds[c], base+int64(c), run, f); err != nil {
				return p.issueError(err, base+int64(c))
			}
			if p.adv != nil {
				if err := p.adv.after(c, p.cmds[c].stream, f, p.lasting.rests); err != nil {
					return p.issueError(err, base+int64(c))
				}
			}
		}
	}
	return nil
}

// issueMarked issues a command, unless it brings what is on the devices, or takes what is
// to stay there.
func (p *Program) issueMarked(c *command, id, run int64, f *frame) error {
	if c.kind == plan.Input && p.lasting.rests[c.part] || c.kind == plan.Output && p.stays[c.part] {
		return nil
	}
	return p.mark(c, id, run, f)
}

// mark issues a command, in marks if it is to have them.
func (p *Program) mark(c *command, id, run int64, f *frame) error {
	if !c.marked {
		return c.issue(p, id, run, f)
	}
	if err := c.stream.Begin(id); err != nil {
		return err
	}
	if err := c.issue(p, id, run, f); err != nil {
		return err
	}
	return c.stream.End(id)
}

func (c *command) issue(p *Program, id, run int64, f *frame) error {
	switch c.kind {
	case plan.Compute:
		if c.launch == nil {
			return nil
		}
		return c.stream.Launch(c.launch)
	case plan.Copy:
		if c.launch != nil {
			return c.stream.Launch(c.launch)
		}
		return c.stream.Copy(c.dst, c.src)
	case plan.Collective:
		return c.channel.Issue(c.seq, c.part, run)
	case plan.Group:
		return c.group.Issue(id, run)
	case plan.Record:
		return c.stream.Record(c.event)
	case plan.WaitEvent:
		return c.stream.Wait(c.event)
	case plan.Signal:
		return c.stream.Signal(c.counters, c.elem, 1)
	case plan.WaitCounter:
		return c.stream.WaitCounter(c.counters, c.elem, run*c.perRun+c.value)
	case plan.Input:
		if f.direct.in != nil && f.direct.in[c.part].Mem != nil {
			return c.stream.Copy(c.dst, f.direct.in[c.part])
		}
		return c.stream.Upload(c.dst, f.in[c.part])
	case plan.Output:
		if f.direct.out != nil && f.direct.out[c.part].Mem != nil {
			return c.stream.Copy(f.direct.out[c.part], c.src)
		}
		return c.stream.Download(f.get[c.part], c.src)
	}
	return fmt.Errorf("command of kind %d: %w", c.kind, device.ErrUnsupported)
}
