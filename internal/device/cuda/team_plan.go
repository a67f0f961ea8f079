package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// algorithm runs collectives in one way: a function from facts of a team, a tuning and operands
// to memory and launches. It gives no device anything; whoever has a plan reserves the memory
// and runs the launches, or looks at the launches only.
type algorithm interface {
	// Supports returns nil, or why it cannot do c. It must not depend on what the
	// team holds.
	Supports(t teamFacts, tune device.Tuning, c *collective) error
	// Plan says what c takes. Supports(t, tune, c) is nil, and c is not empty.
	Plan(t teamFacts, tune device.Tuning, c *collective) (*collPlan, error)
}

// namedAlgorithm is an algorithm in the list.
type namedAlgorithm struct {
	name string
	algorithm
}

// teamAlgorithms lists them in the order in which TeamAlgorithms does.
var teamAlgorithms = slices.Concat(reduceAlgorithms, multimemAlgorithms, moveAlgorithms, sumAlgorithms, routedAlgorithms)

// algorithmOf returns the algorithm of a name.
func algorithmOf(name string) (algorithm, error) {
	for _, a := range teamAlgorithms {
		if a.name == name {
			return a.algorithm, nil
		}
	}
	return nil, fmt.Errorf("%w: there is no algorithm %q", device.ErrUnsupported, name)
}

// teamFacts is what algorithms know of a team.
type teamFacts interface {
	Members() int
	// Room is how many blocks of that many threads a launch may have, so that all run at once.
	Room(threads int) int
	// BlockShared is how many bytes of shared memory a block may have on all members' devices.
	BlockShared() int
	// SharesGPU reports whether two members are on one GPU.
	SharesGPU(i, k int) bool
	// KeepsStretches returns nil where 128 bytes that a warp writes as one arrive as one.
	KeepsStretches() error
	// Multicasts returns nil where members' memory may be joined to multicast objects.
	Multicasts() error
}

// collPlan is a collective by one algorithm.
type collPlan struct {
	// Memory is what every member needs. Each is handed to its Use before Launches is called.
	Memory []want
	// Launches returns what each member launches, in order; nothing for one that has nothing
	// to do.
	Launches func() ([][]action, error)
}

// memoryKind is what memory is at first, and where.
type memoryKind uint8

const (
	zeroed       memoryKind = iota // zeros
	halves                         // two halves, zeros, which kernels clear where the numbers of launches wrap
	unsent                         // full of kernels.Unsent
	pinned                         // of the host
	joinedMemory                   // joined to a multicast object
)

// want is memory of at least so many bytes on every member, the same for the same name.
type want struct {
	Kind  memoryKind
	Name  string
	Bytes int64
	Use   func(area)
}

// area is memory on every member.
type area struct {
	At    []nvlib.Ptr // of each member
	Bytes int64       // of each; may be more than was wanted
	All   nvlib.Ptr   // joined: the address of all at once
}

// half is the size of a half of it.
func (a area) half() int64 { return a.Bytes / 2 }

func (p *collPlan) reserve(name string, bytes int64, use func(area)) {
	p.Memory = append(p.Memory, want{zeroed, name, bytes, use})
}

// halves wants two halves of at least so many bytes each, for flags among data.
func (p *collPlan) halves(name string, half int64, use func(area)) {
	p.Memory = append(p.Memory, want{halves, name, 2 * half, use})
}

// resting wants two halves of at least so many bytes each that rest full of what is never
// sent. No epochs are in them, which kernels would have to clear where the numbers of
// launches wrap.
func (p *collPlan) resting(half int64, use func(area)) {
	p.Memory = append(p.Memory, want{unsent, "lamport", 2 * half, use})
}

func (p *collPlan) pinned(name string, bytes int64, use func(area)) {
	p.Memory = append(p.Memory, want{pinned, name, bytes, use})
}

// hostMemory wants pinned memory for what goes by way of the host.
func (p *collPlan) hostMemory(bytes int64, use func(area)) { p.pinned("host memory", bytes, use) }

func (p *collPlan) joined(bytes int64, use func(area)) {
	p.Memory = append(p.Memory, want{joinedMemory, "joined memory", bytes, use})
}

// action is a part of a member's launch.
type action interface{ isAction() }

// meetKernel is a kernel in which the members meet; its Team is not set.
type meetKernel struct{ kernels.Meeting }

// copyViews is a copy.
type copyViews struct{ Dst, Src strided.View }

// engineCopies are copies by copy engines: some on the member's own stream, and each list of
// others on a stream beside it.
type engineCopies struct {
	Own    []nvlib.Rect
	Beside [][]nvlib.Rect
}

func (meetKernel) isAction()   {}
func (copyViews) isAction()    {}
func (engineCopies) isAction() {}

// teamThreads is how many threads of teams' kernels a multiprocessor holds for
// certain: they have up to 128 of its 64 Ki registers each.
const teamThreads = 512

// threadsMost is how many threads a block may have; one of more than teamThreads
// has the multiprocessor for itself.
const threadsMost = 1024
