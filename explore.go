package hocket

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device/cpu"
	"hocket.example/hocket/internal/exec"
)

// ExploreOptions selects the schedules that Explore tries.
type ExploreOptions struct {
	// Schedules is the number of schedules. The random order of schedule i is drawn with the seed Seed+i.
	Schedules int
	Seed      int64
}

// Explore executes the runs of a batch back to back under many schedules of the scheduled CPU machine
// (MachineOptions.Scheduled). It calls visit with the reports of each schedule, and stops if visit returns an error. If
// opts.Schedules is 0, Explore only plans and proves the program. If a run fails, the error names the seed of its
// schedule. Explore does not accept device tensors, because they are on the machine on which the model is loaded. It
// leaves the tensors in Args.Out unchanged.
func (m *Model) Explore(ctx context.Context, batch []Args, opts ExploreOptions, visit func(seed int64, reports []*Report) error) error {
	if len(batch) == 0 {
		return nil
	}
	if slices.ContainsFunc(m.params.current().take(batch), Args.onDevices) {
		return fmt.Errorf("device tensors cannot be used with explored schedules, which run on separate machines: %w; pass the tensors in Args.In", ErrUnsupported)
	}
	weights, release, err := m.params.hold(batch...)
	if err != nil {
		return err
	}
	defer release()
	batch = slices.Clone(batch)
	for i := range batch {
		batch[i].Out = nil
	}
	padded, cutBack, err := m.padded(batch)
	if err != nil {
		return err
	}
	ins, err := batched(padded, weights)
	if err != nil {
		return err
	}
	b, err := m.fn.dimsOf(ins[0])
	if err == nil {
		err = m.fn.setDims(b, padded[0].Dims)
	}
	if err != nil {
		return err
	}
	p, err := m.fn.unit.PlanWithin(ctx, b.ir())
	if err != nil {
		return m.fn.blame(b, err)
	}
	proof, err := m.loader.prove(p, b)
	if err != nil {
		return err
	}
	for i := range opts.Schedules {
		seed := opts.Seed + int64(i)
		dev := cpu.New(cpu.Options{Mode: cpu.Scheduled, Seed: seed})
		prog, err := exec.Load(ctx, dev, p, exec.Options{Options: m.loader.opts.image()})
		if err != nil {
			return err
		}
		results, err := prog.RunBatch(ctx, exec.Inputs(ins), exec.NewWeights(weights))
		if err != nil {
			return errors.Join(fmt.Errorf("schedule %d: %w", seed, ofProved(err, proof)), prog.Close())
		}
		reporter, reports := newReporter(p, results[0].Algorithms, proof), make([]*Report, len(results))
		for k, r := range results {
			reports[k] = reporter.report(r)
		}
		if err := errors.Join(cutBack(reports), prog.Close()); err != nil {
			return err
		}
		if err := visit(seed, reports); err != nil {
			return err
		}
	}
	return nil
}
