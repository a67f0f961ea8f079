package exec

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/laps"
	"hocket.example/hocket/internal/tensor"
)

// ErrCapturing reports that a run needs preparation, which is impossible while a stream of the caller is being
// captured.
var ErrCapturing = errors.New("the run needs preparation, which is impossible while a graph is being captured: " +
	"enqueue the run once before the capture")

// Enqueue adds one run to the caller's streams, one stream for each rank of this process. The run begins after earlier
// work on these streams, and later work on them begins after the run. Enqueue returns without waiting, except the first
// time for given arguments, and when cached addresses are evicted. While a stream is being captured (capturing is set),
// the run becomes part of the captured graph. The graph may be launched as long as the program is open, in order with
// other runs of the program.
//
// Errors of the run are returned by a later call. Arguments are as for RunBatch, except that they must be weights or
// data on the devices.
func (p *Program) Enqueue(
	ctx context.Context, a Args, weights *Weights, streams []uintptr, capturing bool,
) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return p.broken
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before the run: %w", err)
	}
	p.flight.begin(p.issuer.run, 1)
	lost, err := p.do(ctx, func(context.Context) error { return p.enqueue(ctx, a, weights, streams, capturing) })
	laps.Lap("way out of the world")
	p.flight.end(err)
	if lost {
		return spoiled([]Args{a}, err)
	}
	return err
}

// enqueue implements Enqueue for a usable program.
func (p *Program) enqueue(
	ctx context.Context, a Args, weights *Weights, streams []uintptr, capturing bool,
) error {
	laps.Lap("way into the world")
	defer p.binder.trim()
	if capturing && p.enqueued.callers == nil {
		return ErrCapturing // a world cannot be opened for streams that are being captured
	}
	if err := p.enqueued.open(); err != nil {
		return err
	}
	if err := p.enqueued.callers.Err(); err != nil {
		return p.breakDown(err)
	}
	streams, err := p.enqueued.byRank(streams, capturing)
	if err != nil {
		return err
	}
	batch := []Args{a}
	ins, known := p.weights.unsettled(batch, weights)
	if err := p.binder.bind(batch, weights, ins); err != nil {
		return err
	}
	if err := p.binder.hostUploads(ins); err != nil {
		return err
	}
	if wrong, err := p.inputs.wrong(ctx, &Batch{batch, weights}, ins, false); err != nil {
		return err
	} else if wrong != nil {
		return wrong
	}
	laps.Lap("checks")
	if err := p.lender.lend(a, p.binder.frames[0]); err != nil {
		return err
	}
	var v *move
	if !capturing {
		if p.moves.outdated() {
			if err := p.rest(ctx); err != nil {
				return err
			}
			p.moves.forget()
		}
		v = p.moves.of(a, p.binder.frames[0], p.issuer.replay.ready())
	}
	brings := false
	if !known {
		i, _ := p.weights.missing(0, func(name string) *tensor.Tensor { return a.host(name, weights) })
		brings = i >= 0
	}
	if !capturing {
		err = p.makeReady(ctx, batch, weights, known, brings)
	} else if p.issuer.run == 0 || brings || p.issuer.tracer != nil {
		err = ErrCapturing
	} else if p.peers != nil && p.issuer.replay == nil {
		// With several processes, later runs are launched as a graph, because counters count from the beginning of
		// each launch of the graph.
		p.issuer.replay, err = newReplay(p.im)
	}
	if err != nil {
		return err
	}
	p.moves.use(v, p.binder.frames[0], p.issuer.replay != nil)
	laps.Lap("preparation")
	if err := p.announce(1); err != nil {
		return p.breakDown(err)
	}
	laps.Lap("announcement")
	if err = p.give(ctx, a, streams, capturing); err != nil {
		setContents(batch, false)
		if err = p.breakDown(err); updates(batch) {
			err = &SpoiledError{err}
		}
		return err
	}
	setContents(batch, true)
	p.enqueued.leaves(a)
	return nil
}

// makeReady prepares the resources that later runs reuse. It waits only if no earlier run has prepared some resource.
func (p *Program) makeReady(ctx context.Context, batch []Args, weights *Weights, known, brings bool) error {
	if brings || p.recorder.wanted() {
		if err := p.rest(ctx); err != nil {
			return err
		}
	}
	if !known {
		if err := p.bring(ctx, batch, weights); err != nil {
			return err
		}
	}
	return p.prepareRuns(ctx, 1)
}

// give enqueues the prepared run on the caller's streams, or adds it to the graph that is being captured.
func (p *Program) give(ctx context.Context, a Args, streams []uintptr, capturing bool) error {
	e, frames := p.enqueued, p.binder.frames[:1]
	if capturing {
		run := p.recorder.runNumber()
		err := e.callers.CaptureInto(ctx, streams, func() { p.moves.capture(a, frames[0]) },
			func() error { return p.issuer.some(p.im.Own, 0, run, frames[0]) })
		e.captured = e.captured || err == nil
		return err
	}
	err := p.issuer.within(ctx, func() error {
		return e.callers.Between(streams, func() error { return p.issuer.runs(frames) })
	})
	e.issued()
	return err
}

// Rest waits until enqueued runs have ended, and returns their errors.
func (p *Program) Rest(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return p.broken
	}
	if p.enqueued.callers == nil {
		return nil
	}
	_, err := p.do(ctx, func(context.Context) error {
		p.enqueued.inFlight = p.enqueued.inFlight || p.enqueued.captured // launches of the caller's graphs are not counted in inFlight
		return p.rest(ctx)
	})
	return err
}

// Captured reports whether a graph of the caller contains a run of the program. The program must then not be unloaded.
func (p *Program) Captured() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.enqueued.captured && p.broken == nil
}
