package comm

import (
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Algorithm is a schedule: one way to run collectives by copies, signals and
// reductions, on any machine. It has no state: everything it knows of a channel
// it gets from a Build. To add one, write its type and list it in schedules.
type Algorithm interface {
	// Info describes it.
	Info() device.Algorithm
	// Supports returns nil, or why in, whose op is among Info's, cannot be run
	// this way on a machine with these capabilities.
	Supports(in *Instance, caps device.Caps) error
	// Usual reports whether in is run this way where no table says which algorithm
	// is the fastest. Where several say so, the last of the list is taken.
	Usual(in *Instance) bool
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

// schedules lists the schedules for members on one node, the most general first: that takes every collective.
// crossers are for members on several nodes, where the transport does not take a collective by itself.
var (
	schedules = []Algorithm{staged{}, twoShot{}, oneShotPush{}, twoShotPush{}, direct{}, directTwoShot{}, chunked{}}
	crossers  = []Algorithm{across{}}
)

// What schedules take.
var (
	allReduce     = []ir.Op{ir.OpAllReduce}
	sumsAndMoves  = slices.Concat(device.Sums, device.Moves)
	sumsAndUneven = slices.Concat(device.Sums, device.Uneven)
	everything    = slices.Concat(device.Even, device.Uneven)
	toOrFromAll   = slices.Concat([]ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll},
		device.Uneven, []ir.Op{ir.OpBroadcast})
)

// schedule returns the schedule of that name, nil where there is none.
func schedule(name string) Algorithm {
	for _, list := range [][]Algorithm{schedules, crossers} {
		for _, a := range list {
			if a.Info().Name == name {
				return a
			}
		}
	}
	return nil
}

// supports returns nil, or why a schedule cannot run in.
func supports(a Algorithm, in *Instance, caps device.Caps) error {
	info := a.Info()
	if err := info.Check(&in.Collective); err != nil {
		return err
	}
	return a.Supports(in, caps)
}

// infos describes schedules.
func infos(list []Algorithm) []device.Algorithm {
	out := make([]device.Algorithm, len(list))
	for i, a := range list {
		out[i] = a.Info()
	}
	return out
}

// Describe describes the schedules: those inside a node, which every machine has, and those between nodes.
func Describe() (inside, between []device.Algorithm) { return infos(schedules), infos(crossers) }

// Schedules returns the names of the schedules that every machine has: those inside a node.
func Schedules() []string { return device.AlgorithmNames(infos(schedules)) }

// twoShotFrom is the size in bytes from which an all_reduce of three or more
// moves less data in two shots.
const twoShotFrom = 64 << 10

// large reports whether in is an all_reduce that moves less data in two shots.
func (in *Instance) large() bool {
	return in.Op == ir.OpAllReduce && len(in.Parts) > 2 && in.Message() >= twoShotFrom
}
