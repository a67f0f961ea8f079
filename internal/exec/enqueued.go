package exec

import (
	"context"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
)

// enqueued holds the state of runs on the caller's streams.
type enqueued struct {
	im       *image.Image
	callers  device.Callers                  // the machine's device.Callers; nil until a run is enqueued
	inFlight bool                            // whether some runs may not have ended
	ended    chan struct{}                   // closed when these runs have ended; nil if no call waits for them
	captured bool                            // whether a graph of the caller contains a run
	left     map[*resident.DeviceTensor]bool // device tensors that runs in flight write
	updates  bool                            // whether a run in flight updates a device tensor in place
}

// open prepares the world for work on streams of the caller.
func (e *enqueued) open() (err error) {
	if e.callers == nil {
		e.callers, err = e.im.World.Callers()
		e.left = map[*resident.DeviceTensor]bool{}
	}
	return err
}

// byRank returns the caller's streams by rank. The caller passes streams only for this process's ranks, in the order of
// the ranks.
func (e *enqueued) byRank(streams []uintptr, capturing bool) ([]uintptr, error) {
	all, n := make([]uintptr, e.im.Plan.Ranks), 0
	for r := range all {
		if !e.im.World.Local(r) {
			continue
		}
		if n < len(streams) {
			all[r] = streams[n]
		}
		n++
	}
	if capturing && n > 1 {
		return nil, fmt.Errorf("%w: a run of %d ranks of one process cannot be captured in the caller's graph: start one "+
			"process for each rank",
			device.ErrUnsupported, n)
	}
	if n != len(streams) {
		return nil, fmt.Errorf("%w: %d streams were passed for %d ranks of this process: pass one for each rank",
			blocks.ErrInput, len(streams),
			n)
	}
	return all, nil
}

// leaves records the device tensors that a run writes, until the run has ended.
func (e *enqueued) leaves(a Args) {
	for _, t := range a.DeviceOut {
		e.left[t] = true
	}
	e.updates = e.updates || updates([]Args{a})
}

// issued records that a run is in flight. Later waits include this run.
func (e *enqueued) issued() { e.inFlight, e.ended = true, nil }

// wait waits until runs have ended. If ctx ends first, wait returns its error and the runs continue.
func (e *enqueued) wait(ctx context.Context) error {
	if e.ended == nil {
		e.ended = make(chan struct{})
		go func(w device.World, ended chan struct{}) {
			defer close(ended)
			_ = w.Sync(context.Background()) // the world records its error
		}(e.im.World, e.ended)
	}
	select {
	case <-e.ended:
	case <-ctx.Done():
		return fmt.Errorf("while waiting for enqueued runs: %w", ctx.Err())
	}
	e.inFlight, e.ended = false, nil
	return nil
}

// outcome returns the error of the runs that have ended, and whether that error has made the program's state invalid.
func (e *enqueued) outcome() (spoiled bool, err error) {
	err = e.callers.Err()
	if err != nil {
		for t := range e.left {
			t.SetContents(false)
		}
	}
	spoiled = err != nil && e.updates
	clear(e.left)
	e.updates = false
	return spoiled, err
}
