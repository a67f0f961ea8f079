package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/resident"
)

// trialRounds is how often each form of a graph is measured, the first time to warm up.
const trialRounds = 4

// longRun is how long a run takes beside which it does not matter how it is
// launched.
const longRun = 50 * time.Millisecond

// chooseForm takes the fastest form of the graph. Each is measured by whole
// runs but for their outputs, in turns, with the inputs of the run to come.
func (p *Program) chooseForm(ctx context.Context, graph device.Graph) error {
	names := graph.Forms()
	if len(names) < 2 {
		return nil
	}
	kept, err := p.keepResidents(ctx)
	if errors.Is(err, device.ErrOutOfMemory) {
		p.opts.Logger.Warn("forms of the graph are not tried: no memory is free to keep what it updates meanwhile",
			"func", p.im.Plan.Func)
		return p.replay.keep(graph, len(names)-1)
	}
	if err != nil {
		return err
	}
	if err = p.tryForms(ctx, graph); err == nil {
		err = p.restore(ctx, kept)
	}
	if err != nil && len(kept) > 0 {
		p.abandoned = kept
		return &SpoiledError{err}
	}
	return errors.Join(err, kept.give())
}

// tryForms measures the forms of the graph, and takes the fastest.
func (p *Program) tryForms(ctx context.Context, graph device.Graph) error {
	names := graph.Forms()
	least := make([]time.Duration, len(names))
	for round := range trialRounds {
		for i := range names {
			graph.Choose(i)
			took, err := p.timeGraph(ctx)
			if err != nil {
				return fmt.Errorf("trying the program as a graph in the form %q: %w", names[i], err)
			}
			if took > longRun {
				return p.replay.keep(graph, 0)
			}
			if round == 1 || round > 1 && took < least[i] {
				least[i] = took
			}
		}
	}
	p.opts.Logger.Debug("forms of the graph", "func", p.im.Plan.Func, "forms", names, "took", least)
	return p.replay.keep(graph, slices.Index(least, slices.Min(least)))
}

func (r *replay) keep(graph device.Graph, i int) error {
	r.form = graph.Forms()[i]
	return graph.Keep(i)
}

// timeGraph runs the graph once, and returns the time from launch to end.
func (p *Program) timeGraph(ctx context.Context) (time.Duration, error) {
	run := p.run
	p.run++
	upload := func() error { return p.issueAll(p.replay.inputs, run*int64(len(p.im.Cmds)), run, p.frames[0]) }
	if err := p.within(ctx, upload); err != nil {
		return 0, err
	}
	if err := p.im.World.Sync(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := p.within(ctx, func() error { return p.launchGraph(ctx, run) }); err != nil {
		return 0, err
	}
	err := p.im.World.Sync(ctx)
	return time.Since(began), err
}

// copies are those of all residents that a program updates.
type copies []*copyOf

// copyOf is a copy of a resident, on the devices.
type copyOf struct {
	of            *resident.DeviceTensor
	loan          *resident.Loan
	there, origin []device.View // by rank: where the copy is, and what it is of
}

func (kept copies) give() error {
	var errs []error
	for _, k := range kept {
		errs = append(errs, k.loan.Give())
	}
	return errors.Join(errs...)
}

// keepResidents copies what the program's runs would update where it lies, on the devices, and
// says that the tensors hold nothing until it is restored. The world is at rest, and is so
// again then.
func (p *Program) keepResidents(ctx context.Context) (kept copies, err error) {
	for i, t := range p.im.Residents {
		if t == nil || !p.im.Inputs[i].Inout {
			continue
		}
		var k *copyOf
		if k, err = p.copyResident(ctx, i, t); k != nil {
			kept = append(kept, k)
		}
		if err != nil {
			break
		}
	}
	if len(kept) == 0 {
		return nil, err
	}
	if serr := p.im.World.Sync(ctx); serr != nil { // copies are under way: memory given back would be others'
		p.abandoned = kept
		return nil, serr
	}
	if err != nil {
		return nil, errors.Join(err, kept.give())
	}
	for _, k := range kept {
		k.of.SetContents(false)
	}
	return kept, nil
}

// restore brings back what was kept.
func (p *Program) restore(ctx context.Context, kept copies) error {
	if len(kept) == 0 {
		return nil
	}
	for _, k := range kept {
		if err := p.copyBlocks(k.origin, k.there); err != nil {
			return err
		}
	}
	if err := p.im.World.Sync(ctx); err != nil {
		return err
	}
	for _, k := range kept {
		k.of.SetContents(true)
	}
	return nil
}

// copyResident begins to copy a resident. What it returns is to be given back, also with an
// error.
func (p *Program) copyResident(ctx context.Context, i int, t *resident.DeviceTensor) (*copyOf, error) {
	n, err := t.Spare(ctx)
	if err != nil {
		return nil, err
	}
	ranks := p.im.Plan.Ranks
	k := &copyOf{of: t, loan: n, there: make([]device.View, ranks), origin: make([]device.View, ranks)}
	for _, part := range p.im.Inputs[i].Parts {
		r := int(part.Ref.Rank)
		mem, err := p.im.World.Device(r).Borrow(n.Block(r))
		if err != nil {
			return k, err
		}
		k.there[r] = device.Dense(mem, part.Ref.DType, part.Ref.Shape)
		k.origin[r] = p.im.View(part.Ref)
	}
	return k, p.copyBlocks(k.there, k.origin)
}

// copyBlocks begins to copy a block on each rank.
func (p *Program) copyBlocks(to, from []device.View) error {
	for r := range to {
		if err := p.im.Streams[p.im.Plan.Main[r]].Copy(to[r], from[r]); err != nil {
			return err
		}
	}
	return nil
}
