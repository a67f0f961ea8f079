package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"hocket.example/hocket"
)

// reference evaluates the reference of every repetition, once.
func (j *job) reference(ctx context.Context) error {
	for len(j.refs) < len(j.batch) {
		ref, err := j.model.Reference(ctx, j.batch[len(j.refs)])
		if err != nil {
			return ofMachine(err)
		}
		j.refs = append(j.refs, ref)
	}
	return nil
}

// compare compares one report for each repetition and keeps the weakest
// verdict. A result that differs is an error.
func (j *job) compare(ctx context.Context, reports []*hocket.Report) error {
	if err := j.reference(ctx); err != nil {
		return err
	}
	for i, rep := range reports {
		c := j.refs[i].Compare(rep)
		if err := c.Err(); err != nil {
			j.app.out.Compare = &comparison{Verdict: c.Verdict, Against: c.Against}
			if len(reports) > 1 {
				err = fmt.Errorf("repetition %d of %d: %w", i+1, len(reports), err)
			}
			return ofMachine(err)
		}
		if j.verdict.Verdict != "within" {
			j.verdict = c
		}
	}
	j.app.out.Compare = &comparison{Verdict: j.verdict.Verdict, Against: j.verdict.Against}
	return nil
}

// explore runs the batch under many schedules and compares each.
func (j *job) explore(ctx context.Context) (*hocket.Report, error) {
	if err := j.reference(ctx); err != nil {
		return nil, err
	}
	guarded, dog := watch(ctx, j.flags.timeout)
	defer dog.stop()
	next := j.flags.seed // the schedule under way
	var last *hocket.Report
	opts := hocket.ExploreOptions{Schedules: j.flags.schedules, Seed: j.flags.seed}
	err := j.model.Explore(guarded, j.batch, opts, func(seed int64, reports []*hocket.Report) error {
		dog.alive()
		next = seed
		if err := j.compare(ctx, reports); err != nil {
			return fmt.Errorf("schedule %d: %w", seed, err)
		}
		next, last = seed+1, reports[len(reports)-1]
		return nil
	})
	if err != nil {
		return nil, j.again(next, dog.explain(guarded, err))
	}
	return last, nil
}

// again adds how to run a schedule alone that went wrong. The inputs' seed has
// to be said, since --seed now draws another schedule.
func (j *job) again(seed int64, err error) error {
	err = ofMachine(err)
	var f *failure
	if !errors.As(err, &f) || f.code != exitHocket && f.code != exitMachine {
		return err
	}
	args := []string{"hocket run", j.arg, "--schedules 1", fmt.Sprintf("--seed %d", seed)}
	if j.flags.repeat > 1 {
		args = append(args, fmt.Sprintf("--repeat %d", j.flags.repeat))
	}
	if !j.inputs.fixed {
		args = append(args, "--in "+j.inputs.rest.String())
	}
	shown := *f
	shown.err = err
	return shown.helping("run it alone: %s, and this run's other flags", strings.Join(args, " "))
}
