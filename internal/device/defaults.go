package device

import (
	"context"
	"fmt"

	"hocket.example/hocket/internal/world"
)

// These are defaults for what a machine lacks: they return "unsupported", or do nothing if that is correct. A machine
// embeds them and overrides what it has; Caps says which that is.

func lacks(what string) error { return fmt.Errorf("%s: %w", what, ErrUnsupported) }

// DefaultMachine is one process's, and knows nothing of worlds that are not open.
type DefaultMachine struct{}

// Peers are none.
func (DefaultMachine) Peers() *world.World { return nil }

// Capturing is false: there are no streams of the caller's.
func (DefaultMachine) Capturing(uintptr) (bool, error) { return false, nil }

// DryRun is unsupported.
func (DefaultMachine) DryRun(int) (World, error) {
	return nil, lacks("the machine tells nothing of worlds that are not open")
}

// DefaultWorld has no graphs, teams or marks, and tells nothing of itself.
type DefaultWorld struct{}

// Local is true: all ranks are this process's.
func (DefaultWorld) Local(int) bool { return true }

// Node is 0: there is one.
func (DefaultWorld) Node(int) int { return 0 }

// Transport is none.
func (DefaultWorld) Transport() string { return "" }

// Do calls f: calls of the host's own return.
func (DefaultWorld) Do(_ context.Context, f func()) error {
	f()
	return nil
}

// Batch calls issue.
func (DefaultWorld) Batch(issue func() error) error { return issue() }

// Stage does nothing.
func (DefaultWorld) Stage([]int64, int) error { return nil }

// OpenCalls is unsupported.
func (DefaultWorld) OpenCalls() (Calls, error) {
	return nil, lacks("collectives on streams of the caller's")
}

// Callers is unsupported.
func (DefaultWorld) Callers() (Callers, error) { return nil, lacks("work on streams of the caller's") }

// Settle has nothing to do.
func (DefaultWorld) Settle(context.Context) ([]string, error) { return nil, nil }

// Capture is unsupported.
func (DefaultWorld) Capture(func() error) (Graph, error) { return nil, lacks("recording graphs") }

// Observe does nothing.
func (DefaultWorld) Observe(Observer) {}

// Profile is unsupported.
func (DefaultWorld) Profile(func(int64) string) error { return lacks("the range of a profiler") }

// TeamAlgorithms are none.
func (DefaultWorld) TeamAlgorithms() []Algorithm { return nil }

// Identity is empty.
func (DefaultWorld) Identity() string { return "" }

// OpenTeam is unsupported.
func (DefaultWorld) OpenTeam([]Member) (Team, error) { return nil, lacks("collectives as launches") }

// Held is zero.
func (DefaultWorld) Held() Held { return Held{} }

// Standings are none.
func (DefaultWorld) Standings() []Standing { return nil }

// Guesses are none.
func (DefaultWorld) Guesses() []string { return nil }

// Apart is nil: all devices reach each other.
func (DefaultWorld) Apart(int, int) error { return nil }

// Detours are none.
func (DefaultWorld) Detours() []string { return nil }

// DefaultDevice compiles nothing, and lends no memory.
type DefaultDevice struct{}

// PrepareAhead does nothing.
func (DefaultDevice) PrepareAhead(Kernel) {}

// PrepareCopy does nothing.
func (DefaultDevice) PrepareCopy(View, View) error { return nil }

// PrepareMove is unsupported.
func (DefaultDevice) PrepareMove(View, View, int) (Launch, error) {
	return nil, lacks("copies by kernels")
}

// Borrow is unsupported.
func (DefaultDevice) Borrow(Memory) (Memory, error) { return nil, lacks("borrowing memory") }

// DefaultStream calls nobody.
type DefaultStream struct{}

// Call is unsupported.
func (DefaultStream) Call(func()) error { return lacks("calls of the host") }

// PrepareLaunches does nothing.
func (DefaultStream) PrepareLaunches([]Launch) error { return nil }

// DefaultMemory is out of the process's reach.
type DefaultMemory struct{}

// Address is 0.
func (DefaultMemory) Address() uintptr { return 0 }

// Host is nil.
func (DefaultMemory) Host() []byte { return nil }

// Poison does nothing.
func (DefaultMemory) Poison(int64, int64) {}

// DefaultGraph has one form.
type DefaultGraph struct{}

// Forms are none.
func (DefaultGraph) Forms() []string { return nil }

// Choose does nothing.
func (DefaultGraph) Choose(int) {}

// Keep does nothing.
func (DefaultGraph) Keep(int) error { return nil }

// DefaultTeam runs collectives alone, and compiles nothing ahead.
type DefaultTeam struct{}

// PrepareAhead does nothing.
func (DefaultTeam) PrepareAhead(Tuning, *Collective) {}

// NormAlgorithm is none.
func (DefaultTeam) NormAlgorithm() Algorithm { return Algorithm{} }

// SupportsNorm is unsupported.
func (DefaultTeam) SupportsNorm(*Norm) error { return lacks("normalised sums") }

// PrepareNorm is unsupported.
func (DefaultTeam) PrepareNorm(*Norm) ([]Launch, error) { return nil, lacks("normalised sums") }

// PrepareNormAhead does nothing.
func (DefaultTeam) PrepareNormAhead(*Norm) {}
