package comm

import (
	"hocket.example/hocket/internal/device"
)

// Algorithm is a schedule: one way to run collectives by copies, signals and
// reductions, on any machine. It has no state: everything it knows of a channel
// it gets from a Build.
type Algorithm interface {
	// Name is what algorithm= pins.
	Name() string
	// Supports returns nil, or why in cannot be run this way on a machine
	// with these capabilities.
	Supports(in *Instance, caps device.Caps) error
	// Staging returns the bytes of staging memory that each member needs.
	Staging(in *Instance) int64
	// Build adds the steps of every member.
	Build(b *Build)
}

// pusher is a schedule whose members write to each other's slots.
type pusher interface {
	// Slot returns the bytes that a member pushes to another at the most.
	Slot(in *Instance) int64
}

// splitter is a schedule that runs an instance as several, one after the other.
type splitter interface {
	Split(in *Instance) []Instance
}

// algorithms lists all schedules; the first supports every collective.
var algorithms = []Algorithm{staged{}, twoShot{}, oneShotPush{}, twoShotPush{}, direct{}, directTwoShot{}, chunked{}}

// schedule returns the schedule of that name, nil where there is none.
func schedule(name string) Algorithm {
	for _, a := range append(crossers, algorithms...) {
		if a.Name() == name {
			return a
		}
	}
	return nil
}

// Schedules returns the names of the schedules that every machine has: those inside a node.
func Schedules() []string {
	names := make([]string, len(algorithms))
	for i, a := range algorithms {
		names[i] = a.Name()
	}
	return names
}
