package exec

import (
	"fmt"
	"slices"

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
	graph         device.Graph // nil until it is recorded
	form          string       // how it is launched, where there are several ways
	body, outputs []int        // commands, in order
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

// cut sorts own commands into body and outputs, where those and inputs stand in that
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

// keep keeps one form of the graph.
func (r *replay) keep(i int) error {
	r.form = r.graph.Forms()[i]
	return r.graph.Keep(i)
}

// keepOf keeps, of a graph of the same commands, the form that was found fastest.
func (r *replay) keepOf(graph device.Graph) error {
	if i := slices.Index(graph.Forms(), r.form); i >= 0 {
		return graph.Keep(i)
	}
	return nil
}
