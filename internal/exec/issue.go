package exec

import (
	"context"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
)

// issueWhole is issue, with nothing between that a machine must keep out.
func (p *Program) issueWhole(ctx context.Context, k int) error {
	return p.within(ctx, func() error {
		return p.im.World.Batch(func() error { return p.issue(k) })
	})
}

// within calls issue, and ends the world if ctx ends before it returns: it may wait for
// other worlds, or for transfers under way. Whether it has is known then: no later run of
// the world is ended.
func (p *Program) within(ctx context.Context, issue func() error) error {
	aborted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		p.im.World.Abort(&device.Expired{Err: ctx.Err(), Cause: context.Cause(ctx)})
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
		base := run * int64(len(p.im.Cmds))
		issueRun := p.issueCommands
		if p.replay.ready() {
			issueRun = p.issueReplay
		}
		if err := issueRun(base, run, f); err != nil {
			return err
		}
	}
	return nil
}

// issueCommands enqueues a run command by command.
func (p *Program) issueCommands(base, run int64, f *frame) error {
	p.adv.begin(f)
	for _, c := range p.im.Own {
		if err := p.issueMarked(c, base+int64(c), run, f); err != nil {
			return p.issueError(err, base+int64(c))
		}
		if p.adv != nil {
			if err := p.adv.after(c, p.im.Cmds[c].Stream, f, p.uploaded.skip); err != nil {
				return p.issueError(err, base+int64(c))
			}
		}
	}
	return nil
}

// issueMarked issues a command, unless it brings what is on the devices, or takes what is
// to stay there.
func (p *Program) issueMarked(i int, id, run int64, f *frame) error {
	c := &p.im.Cmds[i]
	if c.Kind == plan.Input && p.uploaded.skip[c.Part] || c.Kind == plan.Output && p.im.Stays[c.Part] {
		return nil
	}
	return p.mark(i, id, run, f)
}

// mark issues a command, in marks if it is to have them.
func (p *Program) mark(i int, id, run int64, f *frame) error {
	c := &p.im.Cmds[i]
	if !p.marked[i] {
		return issueCommand(c, id, run, f)
	}
	if err := c.Stream.Begin(id); err != nil {
		return err
	}
	if err := issueCommand(c, id, run, f); err != nil {
		return err
	}
	return c.Stream.End(id)
}

func issueCommand(c *image.Command, id, run int64, f *frame) error {
	switch c.Kind {
	case plan.Compute:
		if c.Launch == nil {
			return nil
		}
		return c.Stream.Launch(c.Launch)
	case plan.Copy:
		if c.Launch != nil {
			return c.Stream.Launch(c.Launch)
		}
		return c.Stream.Copy(c.Dst, c.Src)
	case plan.Collective:
		return c.Channel.Issue(c.Seq, c.Part, run)
	case plan.Group:
		return c.Group.Issue(id, run)
	case plan.Record:
		return c.Stream.Record(c.Event)
	case plan.WaitEvent:
		return c.Stream.Wait(c.Event)
	case plan.Signal:
		return c.Stream.Signal(c.Counters, c.Elem, 1)
	case plan.WaitCounter:
		return c.Stream.WaitCounter(c.Counters, c.Elem, run*c.PerRun+c.Value)
	case plan.Input:
		if f.deviceIn != nil && f.deviceIn[c.Part].Mem != nil {
			return c.Stream.Copy(c.Dst, f.deviceIn[c.Part])
		}
		return c.Stream.Upload(c.Dst, f.in[c.Part])
	case plan.Output:
		if f.deviceOut != nil && f.deviceOut[c.Part].Mem != nil {
			return c.Stream.Copy(f.deviceOut[c.Part], c.Src)
		}
		return c.Stream.Download(f.get[c.Part], c.Src)
	}
	return fmt.Errorf("command of kind %d: %w", c.Kind, device.ErrUnsupported)
}
