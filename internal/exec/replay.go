package exec

import (
	"context"
	"fmt"
	"weak"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
)

// replay is a recorded run: what lies between the inputs and the outputs is a
// graph. Inputs and outputs are issued as ever, since they go to other host
// memory in every run.
//
// One graph serves all runs though waits for counters name the run's number:
// launches follow each other, so that what a run waits for in the run before has
// always happened, and within a run every wait is for something in it.
type replay struct {
	graph                 device.Graph // nil until it is recorded
	form                  string       // how it is launched, where there are several ways
	inputs, body, outputs []int        // commands, in order
}

// newReplay sorts an image's commands for a graph.
func newReplay(im *image.Image) (*replay, error) {
	if !im.Caps.Graphs {
		return nil, fmt.Errorf("running by graph: %w", device.ErrUnsupported)
	}
	r := &replay{}
	if err := r.cut(im.Plan, im.Own); err != nil {
		return nil, err
	}
	return r, nil
}

// cut sorts own commands into inputs, body and outputs, where they stand in that
// order on each rank: what other ranks do meanwhile does not touch a rank's
// parameters, nor results that it has finished. Waits and records among the inputs
// belong to the body: they keep their order to each other, and inputs wait for
// all of the launch before.
func (r *replay) cut(pl *plan.Plan, own []int) error {
	worked, ended := make([]bool, pl.Ranks), make([]bool, pl.Ranks)
	for _, i := range own {
		switch c := &pl.Cmds[i]; c.Kind {
		case plan.Input:
			if worked[c.Rank] {
				return fmt.Errorf("running by graph: %w: input %%%s comes after other work of rank %d",
					device.ErrUnsupported, pl.Inputs[c.IO].Name, c.Rank)
			}
			r.inputs = append(r.inputs, i)
		case plan.Output:
			ended[c.Rank] = true
			r.outputs = append(r.outputs, i)
		default:
			if ended[c.Rank] && !orders(c.Kind) {
				return fmt.Errorf("running by graph: %w: rank %d has work after an output", device.ErrUnsupported, c.Rank)
			}
			worked[c.Rank] = worked[c.Rank] || !orders(c.Kind)
			r.body = append(r.body, i)
		}
	}
	return nil
}

// orders reports whether a command only orders streams.
func orders(k plan.Kind) bool {
	switch k {
	case plan.Record, plan.WaitEvent, plan.Signal, plan.WaitCounter:
		return true
	}
	return false
}

// ready reports whether runs are replayed already.
func (r *replay) ready() bool { return r != nil && r.graph != nil }

// record makes the graph before the first run that can use it: the world is at
// rest then, and a run has gone before.
func (p *Program) record(ctx context.Context) error {
	r := p.replay
	if r == nil || r.graph != nil || p.run == 0 {
		return nil
	}
	var err error
	r.graph, err = p.im.World.Capture(func() error {
		// Marked, so that faults of later launches have a place; of which run
		// they are is not known.
		return p.issueAll(r.body, 0, p.recordedRun(), nil)
	})
	if err != nil {
		return fmt.Errorf("recording the program as a graph: %w", err)
	}
	p.opts.Logger.Debug("program recorded as a graph", "func", p.im.Plan.Func, "commands", len(r.body))
	return p.chooseForm(ctx, r.graph)
}

// recordedRun is the number of the run that graphs are recorded as.
func (p *Program) recordedRun() int64 {
	if p.peers == nil {
		return p.run
	}
	if p.firstRecorded == 0 {
		p.firstRecorded = p.run
	}
	return p.firstRecorded
}

// issueReplay enqueues a run by graph.
func (p *Program) issueReplay(base, run int64, f *frame) error {
	inputs := p.replay.inputs
	if p.settled.of != (weak.Pointer[Weights]{}) {
		inputs = p.settled.inputs
	}
	if err := p.issueAll(inputs, base, run, f); err != nil {
		return err
	}
	if err := p.launchGraph(context.Background(), run); err != nil {
		return err
	}
	return p.issueAll(p.replay.outputs, base, run, f)
}

// launchGraph launches the graph for a run.
func (p *Program) launchGraph(ctx context.Context, run int64) error {
	if p.tracer != nil {
		p.tracer.replayed.Store(run * int64(len(p.im.Cmds)))
	}
	return p.replay.graph.Launch(ctx)
}

// issueAll issues some of the commands.
func (p *Program) issueAll(cmds []int, base, run int64, f *frame) error {
	for _, c := range cmds {
		if err := p.issueMarked(c, base+int64(c), run, f); err != nil {
			return p.issueError(err, base+int64(c))
		}
	}
	return nil
}
