package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/device"
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
	world                   device.Capturer
	graph                   device.Graph // nil until it is recorded
	form                    string       // how it is launched, where there are several ways
	inputs, body, afterward []int        // commands, in order
}

// planReplay looks whether the plan can be run by graph, if that is wanted.
func (p *Program) planReplay() error {
	if !p.opts.Graph {
		return nil
	}
	world, ok := p.world.(device.Capturer)
	if !ok || !p.caps.Graphs {
		return fmt.Errorf("running by graph: %w", device.ErrUnsupported)
	}
	p.replay = &replay{world: world}
	return p.replay.cut(p.plan)
}

// record makes the graph before the first run that can use it: the world is at
// rest then, and a run has gone before.
func (p *Program) record(ctx context.Context) error {
	r := p.replay
	if r == nil || r.graph != nil || p.run == 0 {
		return nil
	}
	var err error
	r.graph, err = r.world.Capture(func() error {
		for _, c := range r.body {
			// Marked, so that faults of later launches have a place; of which run
			// they are is not known.
			if err := p.issueMarked(&p.cmds[c], int64(c), p.run, nil); err != nil {
				return p.issueError(err, int64(c))
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("recording the program as a graph: %w", err)
	}
	p.log.Debug("program recorded as a graph", "func", p.plan.Func, "commands", len(r.body))
	if ways, ok := r.graph.(device.Choices); ok {
		return r.choose(ctx, p, ways)
	}
	return nil
}

// trialRounds is how often each way to launch a graph is measured, the first time
// to warm up.
const trialRounds = 4

// longRun is how long a run takes beside which it does not matter how it is
// launched.
const longRun = 50 * time.Millisecond

// choose takes the fastest way to launch the graph. Each is measured by whole
// runs but for their outputs, in turns, with the inputs of the run to come.
func (r *replay) choose(ctx context.Context, p *Program, ways device.Choices) error {
	names := ways.Choices()
	if len(names) < 2 {
		return nil
	}
	kept, err := p.keepResidents(ctx)
	if errors.Is(err, device.ErrOutOfMemory) {
		p.log.Warn("forms of the graph are not tried: no memory is free to keep what it updates meanwhile", "func", p.plan.Func)
		return r.keep(ways, len(names)-1)
	}
	if err != nil {
		return err
	}
	if err = r.tryAll(ctx, p, ways); err == nil {
		err = p.restore(ctx, kept)
	}
	if err != nil && len(kept) > 0 {
		p.abandoned = kept
		return &SpoiledError{err}
	}
	return errors.Join(err, kept.give())
}

// tryAll measures the ways to launch the graph, and takes the fastest.
func (r *replay) tryAll(ctx context.Context, p *Program, ways device.Choices) error {
	names := ways.Choices()
	least := make([]time.Duration, len(names))
	for round := range trialRounds {
		for i := range names {
			ways.Choose(i)
			took, err := r.time(ctx, p)
			if err != nil {
				return fmt.Errorf("trying the program as a graph in the form %q: %w", names[i], err)
			}
			if took > longRun {
				return r.keep(ways, 0)
			}
			if round == 1 || round > 1 && took < least[i] {
				least[i] = took
			}
		}
	}
	p.log.Debug("forms of the graph", "func", p.plan.Func, "forms", names, "took", least)
	return r.keep(ways, slices.Index(least, slices.Min(least)))
}

func (r *replay) keep(ways device.Choices, i int) error {
	r.form = ways.Choices()[i]
	return ways.Keep(i)
}

// time runs the graph once, from launch to end.
func (r *replay) time(ctx context.Context, p *Program) (time.Duration, error) {
	run := p.run
	p.run++
	upload := func() error { return r.each(p, r.inputs, run*int64(len(p.cmds)), run, p.frames[0]) }
	if err := p.within(ctx, upload); err != nil {
		return 0, err
	}
	if err := p.world.Sync(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := p.within(ctx, func() error { return r.launch(ctx, p, run) }); err != nil {
		return 0, err
	}
	err := p.world.Sync(ctx)
	return time.Since(began), err
}

// cut sorts the commands into inputs, body and outputs, where they stand in that
// order on each rank: what other ranks do meanwhile does not touch a rank's
// parameters, nor results that it has finished. Waits and records among the inputs
// belong to the body: they keep their order to each other, and inputs wait for
// all of the launch before.
func (r *replay) cut(pl *plan.Plan) error {
	worked, ended := make([]bool, pl.Ranks), make([]bool, pl.Ranks)
	for i := range pl.Cmds {
		switch c := &pl.Cmds[i]; c.Kind {
		case plan.Input:
			if worked[c.Rank] {
				return fmt.Errorf("running by graph: %w: input %%%s comes after other work of rank %d", device.ErrUnsupported, pl.Inputs[c.IO].Name, c.Rank)
			}
			r.inputs = append(r.inputs, i)
		case plan.Output:
			ended[c.Rank] = true
			r.afterward = append(r.afterward, i)
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

// issue enqueues one run.
func (r *replay) issue(p *Program, base, run int64, f *frame) error {
	if err := r.each(p, r.inputs, base, run, f); err != nil {
		return err
	}
	if err := r.launch(context.Background(), p, run); err != nil {
		return err
	}
	return r.each(p, r.afterward, base, run, f)
}

// launch launches the graph for a run.
func (r *replay) launch(ctx context.Context, p *Program, run int64) error {
	if p.tracer != nil {
		p.tracer.replayed.Store(run * int64(len(p.cmds)))
	}
	return r.graph.Launch(ctx)
}

func (r *replay) each(p *Program, cmds []int, base, run int64, f *frame) error {
	for _, c := range cmds {
		if err := p.issueMarked(&p.cmds[c], base+int64(c), run, f); err != nil {
			return p.issueError(err, base+int64(c))
		}
	}
	return nil
}
