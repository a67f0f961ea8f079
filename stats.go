package hocket

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"hocket.example/hocket/internal/exec"
)

// ErrOverloaded is wrapped by the errors of runs that LoadOptions.MaxWaiting refuses.
var ErrOverloaded = errors.New("overloaded")

// ErrLate is wrapped by the error of a run that succeeded, and updated its state, only after its context had ended.
var ErrLate = exec.ErrLate

var errPanicked = errors.New("the run panicked")

// Stats holds statistics on the use of the machine's resources.
type Stats struct {
	Plans PlanStats
	Runs  RunStats
}

// PlanStats holds the counters of a machine's plan cache since the machine was opened.
type PlanStats struct {
	// Hits is the number of runs and calls of Prepare that found their plan loaded, and Misses is the number that did not.
	// Reloads is the number of misses whose plan had been loaded before and was evicted.
	Hits, Misses, Reloads int64
	// Evictions is the number of plans that were unloaded to make room, either because of LoadOptions.Cache or because
	// memory was short.
	Evictions int64
	// Plans is the number of plans that are loaded now, and Bytes is the memory that they hold, see LoadOptions.Cache.
	// MostBytes is the largest value of Bytes so far. Device is the part of Bytes that is device memory; for each plan,
	// the device on which the plan holds the most memory counts. The rest of Bytes is pinned host memory.
	Plans                    int
	Bytes, Device, MostBytes int64
}

// RunStats holds the counters of the calls of Run and RunBatch since the machine was opened. Enqueue is not counted.
type RunStats struct {
	// Succeeded is the number of calls that returned results. All other calls that have returned are counted once: in
	// Failed if the error is a RunError, in Refused if it wraps ErrInput, in Overloaded if it wraps ErrOverloaded, in
	// Expired if it wraps the error of the call's context, and otherwise in Failed. A run that is aborted after its context
	// has ended thus counts as failed. Expired counts runs that did not begin, and runs that ended within the grace.
	Succeeded, Refused, Overloaded, Expired, Failed int64
	// Waiting is the number of calls that wait now for other runs or loads of their model or for device tensors.
	// Running is the number of calls that no longer wait and have not returned.
	Waiting, Running int
	// WaitTime and RunTime are the times that calls have spent waiting and running. Running includes loading plans.
	WaitTime, RunTime time.Duration
}

// Exchange describes how the processes of a node exchange data between their GPUs: by peer access, or through host
// memory, with the reason. It is empty if there is only one process, and for the CPU machine.
func (m *Machine) Exchange() string { return m.dev.Exchange() }

// Stats returns the machine's statistics.
func (m *Machine) Stats() Stats {
	m.runs.mu.Lock()
	defer m.runs.mu.Unlock()
	return Stats{PlanStats(m.plans.Stats()), m.runs.stats}
}

// runStats counts the runs of a machine's models.
type runStats struct {
	mu    sync.Mutex
	stats RunStats
	calls map[*loader]int // by model: number of calls that have not returned
}

// runCall is a call of Run or RunBatch that has not returned.
type runCall struct {
	loader *loader
	since  time.Time // start of the wait or, if the call runs, end of the wait
	runs   bool
}

// enter counts a new call, unless too many calls of the model wait.
func (l *loader) enter() (*runCall, error) {
	s := &l.machine.runs
	s.mu.Lock()
	defer s.mu.Unlock()
	if most := l.opts.MaxWaiting; most > 0 && s.calls[l] > most { // one of the calls runs and does not wait
		s.stats.Overloaded++
		return nil, fmt.Errorf("%w: %d runs wait for the model, and LoadOptions.MaxWaiting allows no more", ErrOverloaded, most)
	}
	s.calls[l]++
	s.stats.Waiting++
	return &runCall{loader: l, since: time.Now()}, nil
}

// starts counts the end of the call's wait.
func (c *runCall) starts() {
	s := &c.loader.machine.runs
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.stats.Waiting--
	s.stats.Running++
	s.stats.WaitTime += now.Sub(c.since)
	c.since, c.runs = now, true
}

// returns counts the end of the call with the given error.
func (c *runCall) returns(ctx context.Context, err error) {
	s := &c.loader.machine.runs
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[c.loader]--; s.calls[c.loader] == 0 {
		delete(s.calls, c.loader)
	}
	if c.runs {
		s.stats.Running--
		s.stats.RunTime += time.Since(c.since)
	} else {
		s.stats.Waiting--
		s.stats.WaitTime += time.Since(c.since)
	}
	var failed *RunError
	switch {
	case err == nil:
		s.stats.Succeeded++
	case errors.As(err, &failed):
		s.stats.Failed++
	case errors.Is(err, ErrInput):
		s.stats.Refused++
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		s.stats.Expired++
	default:
		s.stats.Failed++
	}
}
