package device

import (
	"context"
	"fmt"

	"hocket.example/hocket/internal/world"
)

// The following types implement the features that a machine may lack. Their methods return an error that wraps
// ErrUnsupported, or do nothing where that is correct. A machine embeds these types and overrides the methods of the
// features that it supports; Caps lists these features.

func lacks(what string) error { return fmt.Errorf("%s: %w", what, ErrUnsupported) }

// DefaultMachine has one process and no dry runs.
type DefaultMachine struct{}

// Peers returns nil.
func (DefaultMachine) Peers() *world.World { return nil }

// Exchange returns "".
func (DefaultMachine) Exchange() string { return "" }

// Capturing returns false, since there are no streams of the caller.
func (DefaultMachine) Capturing(uintptr) (bool, error) { return false, nil }

// DryRun returns ErrUnsupported.
func (DefaultMachine) DryRun(int) (World, error) {
	return nil, lacks("dry runs")
}

// DefaultWorld has no graphs, teams or marks, and reports no status.
type DefaultWorld struct{}

// Local returns true, because all ranks belong to this process.
func (DefaultWorld) Local(int) bool { return true }

// Node returns 0, because there is only one node.
func (DefaultWorld) Node(int) int { return 0 }

// HostShared returns false, because shared memory is the devices' own memory.
func (DefaultWorld) HostShared() bool { return false }

// Transport returns "".
func (DefaultWorld) Transport() string { return "" }

// Do calls f. No separate goroutine is needed, because the machine's calls always return.
func (DefaultWorld) Do(_ context.Context, f func()) error {
	f()
	return nil
}

// Batch calls issue.
func (DefaultWorld) Batch(issue func() error) error { return issue() }

// Stage does nothing.
func (DefaultWorld) Stage([]int64, int) error { return nil }

// OpenCalls returns ErrUnsupported.
func (DefaultWorld) OpenCalls() (Calls, error) {
	return nil, lacks("collectives on streams of the caller's")
}

// Callers returns ErrUnsupported.
func (DefaultWorld) Callers() (Callers, error) { return nil, lacks("work on streams of the caller's") }

// Settle does nothing.
func (DefaultWorld) Settle(context.Context) ([]string, error) { return nil, nil }

// Capture returns ErrUnsupported.
func (DefaultWorld) Capture(func() error) (Graph, error) { return nil, lacks("recording graphs") }

// Observe does nothing.
func (DefaultWorld) Observe(Observer) {}

// Profile returns ErrUnsupported.
func (DefaultWorld) Profile(func(int64) string) error { return lacks("the range of a profiler") }

// TeamAlgorithms returns nil.
func (DefaultWorld) TeamAlgorithms() []Algorithm { return nil }

// Identity returns "".
func (DefaultWorld) Identity() string { return "" }

// OpenTeam returns ErrUnsupported.
func (DefaultWorld) OpenTeam([]Member) (Team, error) { return nil, lacks("collectives as launches") }

// Held returns zero.
func (DefaultWorld) Held() Held { return Held{} }

// Standings returns nil.
func (DefaultWorld) Standings() []Standing { return nil }

// Guesses returns nil.
func (DefaultWorld) Guesses() []string { return nil }

// Apart returns nil, because all devices have peer access.
func (DefaultWorld) Apart(int, int) error { return nil }

// Detours returns nil.
func (DefaultWorld) Detours() []string { return nil }

// DefaultDevice does not compile in advance, and cannot lend memory to other worlds.
type DefaultDevice struct{}

// PrepareAhead does nothing.
func (DefaultDevice) PrepareAhead(Kernel) {}

// PrepareCopy does nothing.
func (DefaultDevice) PrepareCopy(View, View) error { return nil }

// PrepareMove returns ErrUnsupported.
func (DefaultDevice) PrepareMove(View, View, int) (Launch, error) {
	return nil, lacks("copies by kernels")
}

// Borrow returns ErrUnsupported.
func (DefaultDevice) Borrow(Memory) (Memory, error) { return nil, lacks("borrowing memory") }

// DefaultStream makes no host calls.
type DefaultStream struct{}

// Call returns ErrUnsupported.
func (DefaultStream) Call(func()) error { return lacks("calls of the host") }

// PrepareLaunches does nothing.
func (DefaultStream) PrepareLaunches([]Launch) error { return nil }

// DefaultMemory has neither a device address nor an address in this process.
type DefaultMemory struct{}

// Address returns 0.
func (DefaultMemory) Address() uintptr { return 0 }

// Host returns nil.
func (DefaultMemory) Host() []byte { return nil }

// Poison does nothing.
func (DefaultMemory) Poison(int64, int64) {}

// DefaultGraph can be launched in only one form.
type DefaultGraph struct{}

// Forms returns nil.
func (DefaultGraph) Forms() []string { return nil }

// Choose does nothing.
func (DefaultGraph) Choose(int) {}

// Keep does nothing.
func (DefaultGraph) Keep(int) error { return nil }

// DefaultTeam runs collectives but no Norm, and does not compile in advance.
type DefaultTeam struct{}

// PrepareAhead does nothing.
func (DefaultTeam) PrepareAhead(Tuning, *Collective) {}

// NormAlgorithm returns an empty description.
func (DefaultTeam) NormAlgorithm() Algorithm { return Algorithm{} }

// SupportsNorm returns ErrUnsupported.
func (DefaultTeam) SupportsNorm(*Norm) error { return lacks("normalised sums") }

// PrepareNorm returns ErrUnsupported.
func (DefaultTeam) PrepareNorm(*Norm) ([]Launch, error) { return nil, lacks("normalised sums") }

// PrepareNormAhead does nothing.
func (DefaultTeam) PrepareNormAhead(*Norm) {}
