package exec

import (
	"context"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
)

// enqueued is the state of runs on the caller's streams.
type enqueued struct {
	im       *image.Image
	callers  device.Callers                  // nil until a run is enqueued
	inFlight bool                            // runs may not have ended
	ended    chan struct{}                   // closed once they have ended; nil if no call waits
	captured bool                            // a graph of the caller's has a run
	left     map[*resident.DeviceTensor]bool // what runs in flight leave results in
	updates  bool                            // some of it is state
}

// open opens what work on streams of the caller's takes.
func (e *enqueued) open() (err error) {
	if e.callers == nil {
		e.callers, err = e.im.World.Callers()
		e.left = map[*resident.DeviceTensor]bool{}
	}
	return err
}

// byRank are streams of this process's ranks, in their order, by rank.
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
		return nil, fmt.Errorf("%w: a graph of the caller's with %d ranks of one process: start a process for each",
			device.ErrUnsupported, n)
	}
	if n != len(streams) {
		return nil, fmt.Errorf("%w: %d streams are given for %d ranks of this process", blocks.ErrInput, len(streams),
			n)
	}
	return all, nil
}

// leaves notes that a run leaves results in device tensors.
func (e *enqueued) leaves(a Args) {
	for _, t := range a.DeviceOut {
		e.left[t] = true
	}
	e.updates = e.updates || updates([]Args{a})
}

// issued notes that a run is in flight.
func (e *enqueued) issued() { e.inFlight, e.ended = true, nil } // later waits include this run

// wait waits until runs have ended. Where ctx ends first they go on.
func (e *enqueued) wait(ctx context.Context) error {
	if e.ended == nil {
		e.ended = make(chan struct{})
		go func(w device.World, ended chan struct{}) {
			defer close(ended)
			_ = w.Sync(context.Background()) // its error is the world's
		}(e.im.World, e.ended)
	}
	select {
	case <-e.ended:
	case <-ctx.Done():
		return fmt.Errorf("enqueued runs were waited for: %w", ctx.Err())
	}
	e.inFlight, e.ended = false, nil
	return nil
}

// outcome returns the error of runs that have ended, and whether it has made the program's state invalid.
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
