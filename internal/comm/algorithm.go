package comm

import (
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Algorithm is a schedule: an implementation of collectives by copies, signals and reductions that runs on any machine.
// An Algorithm has no state; a Build describes the channel to it. To add a schedule, write its type and list the type
// in schedules.
type Algorithm interface {
	// Info returns the algorithm's description.
	Info() device.Algorithm
	// Supports returns nil, or the reason why the algorithm cannot run the instance on a machine
	// with these capabilities. The caller has checked that the op of the instance is one of Info's
	// Ops.
	Supports(in *Instance, caps device.Caps) error
	// Usual reports whether the algorithm is the default for the instance if there is no table of measurements for it.
	// If several algorithms return true, the last one in the list is used.
	Usual(in *Instance) bool
	// Staging returns the bytes of staging memory that each member needs.
	Staging(in *Instance) int64
	// Build adds the steps of every member to b.
	Build(b *Build)
}

// pusher is a schedule whose members write into slots in each other's memory.
type pusher interface {
	// Slot returns the largest number of bytes that one member writes into another member's slot.
	Slot(in *Instance) int64
}

// splitter is a schedule that splits an instance into several, which run one after the other.
type splitter interface {
	Split(in *Instance) []Instance
}

// schedules lists the schedules for members on one node. The first one, staged, supports every collective. crossers
// lists the schedules for members on several nodes. The first of them supports every collective that the transport
// does not run by itself.
var (
	schedules = []Algorithm{staged{}, twoShot{}, oneShotPush{}, twoShotPush{}, direct{}, directTwoShot{}, chunked{}}
	crossers  = []Algorithm{across{}}
)

// The following lists contain the ops that schedules support.
var (
	allReduce     = []ir.Op{ir.OpAllReduce}
	sumsAndMoves  = slices.Concat(device.Sums, device.Moves)
	sumsAndUneven = slices.Concat(device.Sums, device.Uneven)
	everything    = slices.Concat(device.Even, device.Uneven)
	toOrFromAll   = slices.Concat([]ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll},
		device.Uneven, []ir.Op{ir.OpBroadcast})
)

// schedule returns the schedule with the given name, or nil if there is none.
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

// supports returns nil, or the reason why schedule a cannot run the instance.
func supports(a Algorithm, in *Instance, caps device.Caps) error {
	info := a.Info()
	if err := info.Check(&in.Collective); err != nil {
		return err
	}
	return a.Supports(in, caps)
}

// infos returns the descriptions of the schedules in list.
func infos(list []Algorithm) []device.Algorithm {
	out := make([]device.Algorithm, len(list))
	for i, a := range list {
		out[i] = a.Info()
	}
	return out
}

// Describe returns the descriptions of the schedules inside a node, which every machine has, and of the schedules
// between nodes.
func Describe() (inside, between []device.Algorithm) { return infos(schedules), infos(crossers) }

// Schedules returns the names of the schedules inside a node, which every machine has.
func Schedules() []string { return device.AlgorithmNames(infos(schedules)) }

// twoShotFrom is the message size in bytes from which an all_reduce of three or more members moves less data in two
// shots than in one.
const twoShotFrom = 64 << 10

// large reports whether the instance in is an all_reduce that moves less data in two shots than in one.
func (in *Instance) large() bool {
	return in.Op == ir.OpAllReduce && len(in.Parts) > 2 && in.Message() >= twoShotFrom
}
