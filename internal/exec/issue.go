package exec

import (
	"context"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/adversary"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/grace"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/laps"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// issuer issues the commands of runs to the machine's streams, and counts runs.
type issuer struct {
	im      *image.Image
	weights *weightCache
	marked  []bool               // by command: whether Begin and End marks enclose it
	adv     *adversary.Adversary // nil unless the machine is virtual
	tracer  *tracer              // nil unless Options.Trace
	replay  *replay              // nil unless Options.Graph
	run     int64                // number of runs issued so far
}

// within calls the function issue, which may wait for other worlds or for transfers, and aborts the world if ctx ends
// before issue returns. After within has returned, the end of ctx no longer aborts the world, so ctx cannot abort a
// later run.
func (s *issuer) within(ctx context.Context, issue func() error) error {
	aborted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		s.im.World.Abort(&device.Expired{Err: ctx.Err(), Cause: context.Cause(ctx)})
		close(aborted)
	})
	err := issue()
	if !stop() {
		<-aborted
	}
	return err
}

// runs enqueues one run for each frame, one after the other.
func (s *issuer) runs(frames []*frame) error {
	for _, f := range frames {
		run := s.run
		s.run++
		issue := s.commands
		if s.replay.ready() {
			issue = s.replayed
		}
		if err := issue(run, f); err != nil {
			return err
		}
	}
	return nil
}

// base returns the offset that is added to the indices of a run's commands to form their marks.
func (s *issuer) base(run int64) int64 { return run * int64(len(s.im.Cmds)) }

// commands enqueues the commands of a run one by one.
func (s *issuer) commands(run int64, f *frame) error {
	base := s.base(run)
	f.uses = s.adv.Begin(f.uses)
	for _, c := range s.im.Own {
		if err := s.command(c, base, run, f); err != nil {
			return err
		}
		if s.adv != nil {
			if err := s.adv.After(c, s.im.Cmds[c].Stream, f.uses, s.weights.skip); err != nil {
				return symbolizer{s.im}.issueError(err, base+int64(c))
			}
		}
	}
	return nil
}

// replayed enqueues a run as a launch of the recorded graph, with its uploads and downloads before and after.
func (s *issuer) replayed(run int64, f *frame) error {
	base := s.base(run)
	if err := s.some(s.weights.uploads(), base, run, f); err != nil {
		return err
	}
	graph := s.replay.graph
	if f.graph != nil {
		graph = f.graph
	}
	if err := s.launch(context.Background(), graph, run); err != nil {
		return err
	}
	return s.some(s.replay.outputs, base, run, f)
}

// launch launches a graph for a run.
func (s *issuer) launch(ctx context.Context, graph device.Graph, run int64) error {
	s.tracer.launches(run)
	err := graph.Launch(ctx)
	laps.Lap("launch of the graph")
	return err
}

// some issues the given commands.
func (s *issuer) some(cmds []int, base, run int64, f *frame) error {
	for _, c := range cmds {
		if err := s.command(c, base, run, f); err != nil {
			return err
		}
	}
	return nil
}

// command issues a command, or the relocated command in f that replaces it. It skips uploads of blocks that are
// already on the devices, and downloads of blocks that remain there.
func (s *issuer) command(i int, base, run int64, f *frame) error {
	c := &s.im.Cmds[i]
	if c.Kind == plan.Input && s.weights.skip[c.Part] || c.Kind == plan.Output && s.im.Stays[c.Part] {
		return nil
	}
	if f != nil && f.lent != nil && c.Kind == plan.Output && f.lent[c.Part] {
		return nil
	}
	if f != nil && f.moved != nil {
		if moved, ok := f.moved.Cmds[i]; ok {
			c = moved
		}
	}
	if c == nil {
		return nil
	}
	return s.mark(i, c, base, run, f)
}

// mark issues command c, which has index i, and the Begin and End marks that enclose the command, if any.
func (s *issuer) mark(i int, c *image.Command, base, run int64, f *frame) error {
	id := base + int64(i)
	var err error
	if s.marked[i] {
		err = c.Stream.Begin(id)
	}
	if err == nil {
		err = issueCommand(c, id, run, f)
	}
	if err == nil && s.marked[i] {
		err = c.Stream.End(id)
	}
	laps.Lap(issuing[c.Kind])
	if err != nil {
		return symbolizer{s.im}.issueError(err, id)
	}
	return nil
}

// issuing holds the names of the phases in which commands are issued, by the commands' kind.
var issuing = func() (names [plan.Output + 1]string) {
	for k := range names {
		names[k] = "issue of " + plan.Kind(k).String()
	}
	return names
}()

// upload uploads input i and waits until the upload has ended, for at most grace.Transfer after ctx ends. A trace shows
// the upload as part of the next run.
func (s *issuer) upload(ctx context.Context, i int, t *tensor.Tensor) error {
	io := &s.im.Inputs[i]
	first := s.im.FirstBlock[io.Name]
	f := &frame{in: make([][]byte, first+len(io.Parts))}
	for j := range io.Parts {
		if !s.im.World.Local(int(io.Parts[j].Ref.Rank)) {
			continue
		}
		var err error
		if f.in[first+j], _, err = blocks.Cut(t, &io.Parts[j], nil); err != nil {
			return err
		}
	}
	late, cancel := grace.After(ctx, grace.Transfer)
	defer cancel()
	base := s.base(s.run)
	err := s.within(late, func() error {
		for _, c := range s.im.Uploads[i] {
			if !s.im.World.Local(int(s.im.Plan.Cmds[c].Rank)) {
				continue
			}
			if err := s.mark(c, &s.im.Cmds[c], base, 0, f); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.im.World.Sync(late)
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
