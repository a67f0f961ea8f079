package exec

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
)

// replay is a recorded run. The graph of a replay contains the commands between the inputs and the outputs. Inputs and
// outputs are issued one by one, since their host memory differs from run to run.
//
// One graph serves all runs, although the counter value for which a command waits depends on the number of the run.
// Launches follow each other. A signal of the previous run for which a run waits has therefore always been issued. All
// other waits are for signals of the same run.
type replay struct {
	graph         device.Graph // nil until it is recorded
	form          string       // name of the selected form, if there are several
	body, outputs []int        // indices of commands, in order
}

// newReplay partitions an image's commands for a graph.
func newReplay(im *image.Image) (*replay, error) {
	if !im.Caps.Graphs {
		return nil, fmt.Errorf("running as a graph: %w", device.ErrUnsupported)
	}
	r := &replay{}
	if err := r.cut(im.Plan, im.Own); err != nil {
		return nil, err
	}
	return r, nil
}

// cut partitions the commands of this process's ranks into body and outputs. On each rank, inputs must come first, then
// other commands, then outputs. The order between ranks does not matter, because other ranks do not access a rank's
// parameters and finished results. Waits and records between inputs belong to the body: they keep their relative order,
// and inputs wait for the whole previous launch.
func (r *replay) cut(pl *plan.Plan, own []int) error {
	worked, ended := make([]bool, pl.Ranks), make([]bool, pl.Ranks)
	for _, i := range own {
		switch c := &pl.Cmds[i]; c.Kind {
		case plan.Input:
			if worked[c.Rank] {
				return fmt.Errorf("running as a graph: %w: input %%%s follows other work of rank %d",
					device.ErrUnsupported, pl.Inputs[c.IO].Name, c.Rank)
			}
		case plan.Output:
			ended[c.Rank] = true
			r.outputs = append(r.outputs, i)
		default:
			if ended[c.Rank] && !orders(c.Kind) {
				return fmt.Errorf("running as a graph: %w: rank %d has work after an output", device.ErrUnsupported, c.Rank)
			}
			worked[c.Rank] = worked[c.Rank] || !orders(c.Kind)
			r.body = append(r.body, i)
		}
	}
	return nil
}

// orders reports whether a command does nothing except order streams.
func orders(k plan.Kind) bool {
	switch k {
	case plan.Record, plan.WaitEvent, plan.Signal, plan.WaitCounter:
		return true
	}
	return false
}

// ready reports whether runs are replayed from now on.
func (r *replay) ready() bool { return r != nil && r.graph != nil }

// keep discards all forms of the graph except the form with index i.
func (r *replay) keep(i int) error {
	r.form = r.graph.Forms()[i]
	return r.graph.Keep(i)
}

// keepOf makes another graph of the same commands keep only the form that was the fastest.
func (r *replay) keepOf(graph device.Graph) error {
	if i := slices.Index(graph.Forms(), r.form); i >= 0 {
		return graph.Keep(i)
	}
	return nil
}
