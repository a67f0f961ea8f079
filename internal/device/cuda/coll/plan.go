// Package coll plans the collectives that hocket's own kernels and copy engines run. It lists the algorithms (see
// plan.go), decides whether an algorithm supports a collective, and computes a Plan: the memory and launches that the
// collective needs. Package cuda reserves this memory and runs these launches.
package coll

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Algorithm plans collectives. It is a function from the team's properties, the tuning and the operands to the memory
// and the launches of a collective, and makes no call to a device. The caller reserves the memory and runs the
// launches, or only inspects them.
type Algorithm interface {
	// Supports returns an error if the algorithm cannot run c. The caller has checked c with Info.Check. The answer
	// must not depend on memory that the team has already reserved, so that repeated calls return the same.
	Supports(t Team, tune device.Tuning, c *Collective) error
	// Plan returns the memory and launches for c. The caller has checked that Supports(t, tune, c) is nil and that c is
	// not empty.
	Plan(t Team, tune device.Tuning, c *Collective) (*Plan, error)
}

// Info describes an algorithm.
type Info = device.Algorithm

// Entry holds an algorithm and its description.
type Entry struct {
	Info
	Algorithm
}

// Algorithms lists the algorithms in the order of TeamAlgorithms. To add one, write its entry next to its code, and
// list it here. The output of hocket help algorithms, dispatch, the tuner and tests derive from this list.
var Algorithms = slices.Concat(ReduceAlgorithms, multimemAlgorithms, MoveAlgorithms, SumAlgorithms, RoutedAlgorithms,
	scheduleAlgorithms)

// Infos returns the descriptions of Algorithms and of NCCL.
func Infos() (list []Info) {
	for i := range Algorithms {
		list = append(list, Algorithms[i].Info)
	}
	return append(list, NCCL)
}

// Described returns the descriptions of all algorithms that reports can name: Infos and Norm.
func Described() []Info { return append(Infos(), Norm) }

// ByName returns the algorithm with the given name. For NCCL it returns nil. It returns an error if there is no such
// algorithm or if it does not support c.
func ByName(name string, c *device.Collective) (Algorithm, error) {
	if name == NCCLName {
		return nil, NCCL.Check(c)
	}
	for i := range Algorithms {
		if a := &Algorithms[i]; a.Name == name {
			return a.Algorithm, a.Check(c)
		}
	}
	return nil, fmt.Errorf("%w: there is no algorithm %q", device.ErrUnsupported, name)
}

// Team provides the properties of a team of devices that algorithms use.
type Team interface {
	Members() int
	// Room returns how many thread blocks of the given number of threads can run at once on every member's device.
	Room(threads int) int
	// BlockShared returns the number of bytes of shared memory that a thread block can use on every member's device.
	BlockShared() int
	// SharesGPU reports whether members i and k run on the same GPU.
	SharesGPU(i, k int) bool
	// Keeps128 returns nil if 128 bytes that a warp writes together also become visible to readers together.
	Keeps128() error
	// Multicasts returns nil if a multicast object can be created for the members' memory.
	Multicasts() error
	// HostParts returns the parts of the data that are transferred through host memory.
	HostParts() HostParts
}

// Plan is the memory and the launches with which one algorithm runs a collective.
type Plan struct {
	// Memory lists the memory that every member needs. The caller of a plan reserves the memory, passes each area to
	// its Use function, and then calls Launches.
	Memory []Want
	// Launches returns the actions of each member, in order. The list of a member may be empty.
	Launches func() ([][]Action, error)
}

// MemoryKind selects where memory is allocated and its initial contents.
type MemoryKind uint8

// These are the kinds of memory.
const (
	zeroed MemoryKind = iota // initially zero
	Halves                   // two halves, initially zero; kernels reset them when launch numbers (epochs) wrap around
	Unsent                   // initially filled with kernels.Unsent
	Pinned                   // pinned host memory
	Joined                   // bound to a multicast object
)

// Want requests at least the given number of bytes of memory on every member. Requests with the same name share the
// memory.
type Want struct {
	Kind  MemoryKind
	Name  string
	Bytes int64
	Use   func(Area)
}

// Area holds the addresses of the memory that was reserved for one Want, for every member.
type Area struct {
	At    []nvlib.Ptr // by member
	Bytes int64       // size of each member's memory; at least the requested size
	All   nvlib.Ptr   // the multicast address, for Joined
}

// half returns the size of one half of the area in bytes.
func (a Area) half() int64 { return a.Bytes / 2 }

func (p *Plan) reserve(name string, bytes int64, use func(Area)) {
	p.Memory = append(p.Memory, Want{zeroed, name, bytes, use})
}

// halves requests two halves of at least the given number of bytes each, for flags or data with flags.
func (p *Plan) halves(name string, half int64, use func(Area)) {
	p.Memory = append(p.Memory, Want{Halves, name, 2 * half, use})
}

// resting requests two halves of at least the given number of bytes each, initially filled with a bit pattern that is
// never sent. Data and flags in them do not depend on the launch's number, so kernels need not reset them when that
// number wraps around.
func (p *Plan) resting(half int64, use func(Area)) {
	p.Memory = append(p.Memory, Want{Unsent, "lamport", 2 * half, use})
}

func (p *Plan) pinned(name string, bytes int64, use func(Area)) {
	p.Memory = append(p.Memory, Want{Pinned, name, bytes, use})
}

// hostMemory requests pinned memory for transfers through the host.
func (p *Plan) hostMemory(bytes int64, use func(Area)) { p.pinned("host memory", bytes, use) }

func (p *Plan) joined(bytes int64, use func(Area)) {
	p.Memory = append(p.Memory, Want{Joined, "joined memory", bytes, use})
}

// Action is one operation of a member: a launch or copies.
type Action interface{ isAction() }

// Kernel launches a kernel in which the members wait for each other. The caller sets its field Team.
type Kernel struct{ kernels.Meeting }

// Copy copies Src to Dst.
type Copy struct{ Dst, Src strided.View }

// Copies are copies by copy engines. The copies in Own run on the member's own stream. Each list in Beside runs on a
// separate stream.
type Copies struct {
	Own    []nvlib.Rect
	Beside [][]nvlib.Rect
}

func (Kernel) isAction() {}
func (Copy) isAction()   {}
func (Copies) isAction() {}

// TeamThreads is a number of threads with which a block of a team's kernel always fits on a multiprocessor: a thread
// uses up to 128 of the multiprocessor's 64 Ki registers.
const TeamThreads = 512

// threadsMost is the largest number of threads of a block. A block of more than TeamThreads threads occupies a
// multiprocessor alone.
const threadsMost = 1024
