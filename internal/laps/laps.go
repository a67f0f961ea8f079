// Package laps measures how long the host spends in each phase of the calls of a process. It measures nothing until
// Start is called. A call of Lap takes about 0.1 µs after Start, and about a nanosecond otherwise.
//
// The phases of all goroutines are recorded in one sequence, since a call continues in other goroutines. Measure while
// only one call is in progress.
package laps

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

var (
	on atomic.Bool

	mu    sync.Mutex
	open  bool // a call is in progress
	last  time.Time
	names []string // names of the phases, in the order in which calls first reached them
	spent map[string][]time.Duration
	call  map[string]time.Duration // times of the call in progress, by phase
)

// Start discards all samples and begins to measure.
func Start() {
	mu.Lock()
	defer mu.Unlock()
	open, names, spent = false, nil, map[string][]time.Duration{}
	on.Store(true)
}

// Begin records the start of a call.
func Begin() {
	if !on.Load() {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	open, call, last = true, map[string]time.Duration{}, time.Now()
}

// Lap records the end of a phase, which began at the end of the previous one. The times of phases that have the same
// name within a call are added.
func Lap(phase string) {
	if !on.Load() {
		return
	}
	lap(phase)
}

func lap(phase string) {
	now := time.Now()
	mu.Lock()
	defer mu.Unlock()
	if !open {
		return
	}
	if !slices.Contains(names, phase) {
		names = append(names, phase)
	}
	call[phase] += now.Sub(last)
	last = time.Now()
}

// End records the end of a call and of its last phase.
func End(phase string) {
	if !on.Load() {
		return
	}
	lap(phase)
	mu.Lock()
	defer mu.Unlock()
	if !open {
		return
	}
	open = false
	for name, d := range call {
		spent[name] = append(spent[name], d)
	}
}

// Phase is the time of a phase over all measured calls.
type Phase struct {
	Name   string  `json:"name"`
	Calls  int     `json:"calls"`  // number of calls that had the phase
	Median float64 `json:"median"` // in microseconds
	Late   float64 `json:"late"`   // the 90th percentile, in microseconds
}

// Stop ends the measurement, and returns the phases in the order in which calls first reached them.
func Stop() []Phase {
	on.Store(false)
	mu.Lock()
	defer mu.Unlock()
	open = false
	list := []Phase{}
	for _, name := range names {
		d := slices.Sorted(slices.Values(spent[name]))
		if len(d) == 0 { // no call that had the phase has ended
			continue
		}
		list = append(list, Phase{name, len(d), micros(d[len(d)/2]), micros(d[len(d)*9/10])})
	}
	return list
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
