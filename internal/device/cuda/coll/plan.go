// Package coll plans the collectives that hocket's own kernels and copy engines run. It defines which algorithms there
// are (plan.go lists them), what each supports, and, as a Plan, which memory and launches a collective needs. It issues
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
	// Keeps128 returns nil if 128 bytes that a warp writes together also become visible together.
	Keeps128() error
	// Multicasts returns nil if multicast objects of the members' memory can be created.
	Multicasts() error
	// HostParts returns the split of transfers that go through host memory.
	HostParts() HostParts
}

// Plan describes how one algorithm carries out a collective.
type Plan struct {
	// Memory lists the memory that every member needs. Each area is passed to its Use function before Launches is
	// called.
	Memory []Want
	// Launches returns the actions of each member, in order. The list of a member may be empty.
	Launches func() ([][]Action, error)
}

// MemoryKind selects where memory is allocated and what it initially contains.
type MemoryKind uint8

// Kinds of memory.
const (
	zeroed MemoryKind = iota // initially zero
	Halves                   // two halves, initially zero; kernels clear them when epochs wrap around
	Unsent                   // filled with kernels.Unsent
	Pinned                   // pinned host memory
	Joined                   // bound to a multicast object
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
	At    []nvlib.Ptr // by member
	Bytes int64       // of each member; at least the requested size
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

// resting requests two halves of at least the given number of bytes each, filled with the value that is never sent.
// They contain no epochs, so kernels need not clear them when epochs wrap around.
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

// Action is one step of a member.
type Action interface{ isAction() }

// Kernel launches a kernel in which the members wait for each other. Its Team is not set.
type Kernel struct{ kernels.Meeting }

// Copy copies Src to Dst.
type Copy struct{ Dst, Src strided.View }

// Copies are copies by copy engines. Own runs on the member's own stream, and each list of Beside on a separate stream.
type Copies struct {
	Own    []nvlib.Rect
	Beside [][]nvlib.Rect
}

func (Kernel) isAction() {}
func (Copy) isAction()   {}
func (Copies) isAction() {}

// TeamThreads is the number of threads of a team's kernel that always fit on a multiprocessor: a thread uses up to 128
// of its 64 Ki registers.
const TeamThreads = 512

// threadsMost is the largest number of threads of a block. A block of more than TeamThreads threads occupies a
// multiprocessor alone.
const threadsMost = 1024
