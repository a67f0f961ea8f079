// Package coll has the collectives that hocket's own kernels and copy engines run. It says which algorithms there are
// (plan.go lists them), what each supports, and, as a Plan, which memory and launches a collective takes. It issues
// nothing: package cuda reserves the memory and runs the launches.
package coll

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// Algorithm plans collectives in one particular way: it computes the memory and launches that a collective needs from
// properties of the team, a tuning and the operands. It makes no call to a device. The caller reserves the memory and
// runs the launches of a plan, or only inspects them.
type Algorithm interface {
	// Supports returns an error if the algorithm cannot carry out c, for which Info.Check has returned nil. The result
	// must not depend on the memory that the team holds.
	Supports(t Team, tune device.Tuning, c *Collective) error
	// Plan says what c takes. Supports(t, tune, c) is nil, and c is not empty.
	Plan(t Team, tune device.Tuning, c *Collective) (*Plan, error)
}

// Info describes an algorithm.
type Info = device.Algorithm

// Entry holds an algorithm and its description.
type Entry struct {
	Info
	Algorithm
}

// Algorithms lists them in the order in which TeamAlgorithms does: to add one, write its entry next to its code, and
// list it here. hocket help algorithms, dispatch, the tuner and tests derive from the list.
var Algorithms = slices.Concat(ReduceAlgorithms, multimemAlgorithms, MoveAlgorithms, SumAlgorithms, RoutedAlgorithms,
	scheduleAlgorithms)

// Infos returns the descriptions of these algorithms and of NCCL.
func Infos() (list []Info) {
	for i := range Algorithms {
		list = append(list, Algorithms[i].Info)
	}
	return append(list, NCCL)
}

// Described describes all that reports name: Infos, and Norm.
func Described() []Info { return append(Infos(), Norm) }

// ByName returns the algorithm with the given name, if it may run c. For NCCL the algorithm is nil. If there is no
// usable algorithm, the error states the reason.
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

// Team provides the properties of a team that algorithms use.
type Team interface {
	Members() int
	// Room returns the largest number of blocks of the given number of threads that a launch may have such that all
	// blocks run at once.
	Room(threads int) int
	// BlockShared returns the number of bytes of shared memory that a block can have on every member's device.
	BlockShared() int
	// SharesGPU reports whether members i and k run on the same GPU.
	SharesGPU(i, k int) bool
	// Keeps128 returns nil if 128 bytes that a warp writes as a unit also arrive as a unit.
	Keeps128() error
	// Multicasts returns nil where members' memory may be joined to multicast objects.
	Multicasts() error
	// HostParts returns the split of transfers that go through host memory.
	HostParts() HostParts
}

// Plan describes how one algorithm carries out a collective.
type Plan struct {
	// Memory is what every member needs. Each is handed to its Use before Launches is called.
	Memory []Want
	// Launches returns what each member launches, in order; nothing for one that has nothing
	// to do.
	Launches func() ([][]Action, error)
}

// MemoryKind selects where memory is allocated and what it initially contains.
type MemoryKind uint8

// Kinds of memory.
const (
	zeroed MemoryKind = iota // zeros
	Halves                   // two halves, zeros, which kernels clear where the numbers of launches wrap
	Unsent                   // full of kernels.Unsent
	Pinned                   // of the host
	Joined                   // joined to a multicast object
)

// Want requests at least the given number of bytes of memory on every member. Requests with the same name return the
// same memory.
type Want struct {
	Kind  MemoryKind
	Name  string
	Bytes int64
	Use   func(Area)
}

// Area holds the memory of one request on every member.
type Area struct {
	At    []nvlib.Ptr // of each member
	Bytes int64       // of each; may be more than was wanted
	All   nvlib.Ptr   // joined: the address of all at once
}

// half returns the size of one half of the area in bytes.
func (a Area) half() int64 { return a.Bytes / 2 }

func (p *Plan) reserve(name string, bytes int64, use func(Area)) {
	p.Memory = append(p.Memory, Want{zeroed, name, bytes, use})
}

// halves wants two halves of at least so many bytes each, for flags among data.
func (p *Plan) halves(name string, half int64, use func(Area)) {
	p.Memory = append(p.Memory, Want{Halves, name, 2 * half, use})
}

// resting wants two halves of at least so many bytes each that rest full of what is never
// sent. No epochs are in them, which kernels would have to clear where the numbers of
// launches wrap.
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

// Action represents one part of a member's launch.
type Action interface{ isAction() }

// Kernel is a kernel in which the members meet; its Team is not set.
type Kernel struct{ kernels.Meeting }

// Copy represents a copy from Src to Dst.
type Copy struct{ Dst, Src strided.View }

// Copies are copies by copy engines: some on the member's own stream, and each list of
// others on a stream beside it.
type Copies struct {
	Own    []nvlib.Rect
	Beside [][]nvlib.Rect
}

func (Kernel) isAction() {}
func (Copy) isAction()   {}
func (Copies) isAction() {}

// TeamThreads is how many threads of teams' kernels a multiprocessor holds for
// certain: they have up to 128 of its 64 Ki registers each.
const TeamThreads = 512

// threadsMost is how many threads a block may have; one of more than TeamThreads
// has the multiprocessor for itself.
const threadsMost = 1024
