package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hocket.example/hocket/internal/device"
)

// trialRounds is the number of times that each form of a graph is run; the first time is a warm-up.
const trialRounds = 4

// longRun is the duration of a run above which the time of its launch is negligible.
const longRun = 50 * time.Millisecond

// graphRecorder records a program as a graph, and selects the graph's fastest form.
type graphRecorder struct {
	issuer *issuer
	peers  bool  // whether other processes record the program too
	first  int64 // run number with which all processes record the graph; 0 if not yet known
	backup backup
	moves  *moves
	lender *lender
}

// runNumber returns the run number with which graphs are recorded.
func (g *graphRecorder) runNumber() int64 {
	if !g.peers {
		return g.issuer.run
	}
	if g.first == 0 {
		g.first = g.issuer.run
	}
	return g.first
}

// wanted reports whether the graph must be recorded now. It is recorded after the first run.
func (g *graphRecorder) wanted() bool {
	r := g.issuer.replay
	return r != nil && r.graph == nil && g.issuer.run > 0
}

// record records the graph before the first run that can use the graph, the run with frame f. The world is idle.
func (g *graphRecorder) record(ctx context.Context, f *frame) error {
	if !g.wanted() {
		return nil
	}
	r, im := g.issuer.replay, g.issuer.im
	var err error
	if r.graph, err = g.capture(nil); err != nil {
		return err
	}
	im.Logger().Debug("program recorded as a graph", "func", im.Plan.Func, "commands", len(r.body))
	if err := g.chooseForm(ctx, f); err != nil {
		return err
	}
	return g.recordMoves(ctx)
}

// capture records a run with frame f as a graph. If f is nil, all blocks of the run are in the arena.
func (g *graphRecorder) capture(f *frame) (device.Graph, error) {
	graph, err := g.issuer.im.World.Capture(func() error {
		// Commands have marks so that faults of later launches can be located. The number of the run in which a launch
		// fails is not known.
		return g.issuer.some(g.issuer.replay.body, 0, g.runNumber(), f)
	})
	if err != nil {
		return nil, fmt.Errorf("recording the program as a graph: %w", err)
	}
	return graph, nil
}

// recordMoves records graphs of runs that use the caller's blocks in place.
func (g *graphRecorder) recordMoves(ctx context.Context) error {
	r := g.issuer.replay
	for _, v := range g.moves.toRecord(g.peers) {
		f := &frame{}
		if v != nil {
			f.moved = v.cmds
		}
		if err := g.issuer.im.World.Sync(ctx); err != nil { // the previous graph launch may still be uploading
			return err
		}
		graph, err := g.capture(f)
		switch {
		case err != nil:
			return err
		case v == nil:
			err = graph.Close()
		default:
			v.graph, err = graph, r.keepOf(graph)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// chooseForm selects the fastest form of the graph. The forms are measured alternately, in complete runs except for
// outputs, with the inputs of the next run.
func (g *graphRecorder) chooseForm(ctx context.Context, f *frame) error {
	r, im := g.issuer.replay, g.issuer.im
	names := r.graph.Forms()
	if len(names) < 2 {
		return nil
	}
	if g.lender.lent { // the caller's streams may still read a lent result, and trials would not wait for these streams
		return r.keep(len(names) - 1)
	}
	err := g.backup.take(ctx)
	if errors.Is(err, device.ErrOutOfMemory) {
		im.Logger().Warn("forms of the graph are not measured, because no memory is free for a copy of the tensors that a "+
			"run updates",
			"func", im.Plan.Func)
		return r.keep(len(names) - 1)
	}
	if err != nil {
		return err
	}
	if err = g.tryForms(ctx, f); err == nil {
		err = g.backup.restore(ctx)
	}
	if err != nil && len(g.backup.copies) > 0 { // a failed world may still access the copies
		return &SpoiledError{err}
	}
	return errors.Join(err, g.backup.give())
}

// tryForms measures the forms of the graph, and selects the fastest form.
func (g *graphRecorder) tryForms(ctx context.Context, f *frame) error {
	r, im := g.issuer.replay, g.issuer.im
	names := r.graph.Forms()
	least := make([]time.Duration, len(names))
	for round := range trialRounds {
		for i := range names {
			r.graph.Choose(i)
			took, err := g.timeGraph(ctx, f)
			if err != nil {
				return fmt.Errorf("measuring the program's graph in the form %q: %w", names[i], err)
			}
			if took > longRun {
				return r.keep(0)
			}
			if round == 1 || round > 1 && took < least[i] {
				least[i] = took
			}
		}
	}
	im.Logger().Debug("forms of the graph", "func", im.Plan.Func, "forms", names, "took", least)
	return r.keep(slices.Index(least, slices.Min(least)))
}

// timeGraph runs the graph once, and returns the time from launch to end.
func (g *graphRecorder) timeGraph(ctx context.Context, f *frame) (time.Duration, error) {
	s := g.issuer
	run := s.run
	s.run++
	upload := func() error { return s.some(s.weights.inputs, s.base(run), run, f) }
	if err := s.within(ctx, upload); err != nil {
		return 0, err
	}
	if err := s.im.World.Sync(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := s.within(ctx, func() error { return s.launch(ctx, s.replay.graph, run) }); err != nil {
		return 0, err
	}
	err := s.im.World.Sync(ctx)
	return time.Since(began), err
}
