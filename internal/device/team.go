package device

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// Collective is one collective: what all members of a team do together. Members
// are named by their index in the team.
type Collective struct {
	Op    ir.Op  // a collective, or ir.OpBarrier
	Red   ir.Red // all_reduce, reduce_scatter, reduce_scatterv, reduce
	Root  int    // broadcast, reduce, gather, scatter
	Axis  int    // dimension joined or cut; all_to_all: joined
	Split int    // all_to_all: dimension cut
	Parts []Part // one for each member
	// AnyOrder lets sums be added in any order. Otherwise it is that of the
	// members, in the dtype's accumulator, rounded once (S11): Supports declines
	// algorithms that keep to another.
	AnyOrder bool
	// Together says that all members come to it with nothing between that would
	// wait for one of them to be through: then they may also wait for each other
	// where S5 has them wait along the flow of data only.
	Together bool
}

// Meets returns nil if members may wait until all have begun, and otherwise the reason why they may not. Algorithms
// whose members meet then decline.
func (c *Collective) Meets() error {
	switch c.Op {
	case ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute:
		if !c.Together {
			return fmt.Errorf("%w: its members wait for each other, which could deadlock here: work between the launches of two members could wait for the first launch", ErrUnsupported)
		}
	}
	return nil
}

// Part is what one member brings to a Collective. In and Out may be the same
// memory or overlap in any way.
type Part struct {
	In, Out       View
	Reads, Writes bool // In, Out is there
	To, From      int  // permute: the members that get In and give Out; -1 for none
	// An uneven collective has counts of rows along Axis, one for each member:
	// Rows, or where Counted, Counts, i32 in memory that are looked at when the
	// collective runs. Out is then as large as it may become; what the counts
	// leave of it becomes zeros.
	Rows    []int64
	Counts  View
	Counted bool
}

// Member is one place of a team: a rank and the stream its share runs on.
type Member struct {
	Rank   int
	Stream Stream
}

// Teams run whole collectives as launches of a machine's own: kernels that reach peers'
// memory, a vendor's library. Schedules of copies, signals and reductions run on every
// world and need none of this. Worlds without them have
// no TeamAlgorithms.
type Teams interface {
	// TeamAlgorithms describes what Team.Prepare takes, in a fixed order.
	TeamAlgorithms() []Algorithm
	// Transport names the one of TeamAlgorithms that takes members on several nodes, and moves bytes between
	// them at least; empty where there is one node.
	Transport() string
	// Identity says which machines may share measurements: GPU, architecture,
	// links, driver, and a hash of the kernels' sources. One line; empty where any
	// machine of the name and processor may.
	Identity() string
	// OpenTeam makes what members need to meet on one stream each: flags,
	// staging. It costs little until Prepare asks for more.
	OpenTeam(members []Member) (Team, error)
}

// Tuning picks an algorithm and how it is launched. Zeros let the machine pick.
type Tuning struct {
	Algo    string `json:"algorithm"`
	Blocks  int    `json:"blocks,omitempty"`  // CTAs of a launch; copy engines use none
	Threads int    `json:"threads,omitempty"` // of a CTA
	Unroll  int    `json:"unroll,omitempty"`  // 16-byte packs that a thread has in flight
	// Schedule is what the algorithm that executes schedules of other tools is given.
	Schedule *Schedule `json:"-"`
}

// Team runs collectives of its members, each on its own stream, as single launches. All members must receive the
// launches of a team in the same order. The state that distinguishes calls is on the devices, so launches can replay
// within graphs, and runs need no barrier between them.
type Team interface {
	// Supports returns nil, or why c, which Algorithm.Check passes, cannot be run so.
	Supports(t Tuning, c *Collective) error
	// Prepare makes one launch for each member, nil for one that has nothing to
	// do; member m's goes to its own stream only. Not while work is in flight.
	Prepare(t Tuning, c *Collective) ([]Launch, error)
	// PrepareAhead begins what Prepare of the same will need, and returns at once.
	PrepareAhead(t Tuning, c *Collective)
	// SupportsNorm returns nil, or why n cannot be run so, or is not faster so.
	SupportsNorm(n *Norm) error
	// NormAlgorithm describes how PrepareNorm runs: by the name that reports have for it.
	NormAlgorithm() Algorithm
	// PrepareNorm is Prepare for n: one launch on each member, with the bits of
	// all_reduce, add and rms_norm one after another.
	PrepareNorm(n *Norm) ([]Launch, error)
	// PrepareNormAhead begins what PrepareNorm will need, and returns at once.
	PrepareNormAhead(n *Norm)
	// Bytes returns the device memory that the team holds on each member.
	Bytes() int64
	// Close gives everything back; nothing issued may still run.
	Close() error
}

// NormPart is what one member brings to a normalised sum: In is added up over all
// members, the member's own Residual added to that, which goes to Sum; Out gets its
// rows' rms_norm with Weight. Sum and Out may lie where In and Residual do, or
// across them, but not across each other or Weight. Residual and Weight may be read
// before the other members have come.
type NormPart struct{ In, Residual, Weight, Sum, Out View }

// Norm is an all_reduce of sums and what follows it on every member, where nobody
// else needs the plain sum, which is then written nowhere.
type Norm struct {
	Eps   float64
	Parts []NormPart // one for each member
	// Reduced says that each member's In is the sum already: the launch is what follows an
	// all_reduce, on each member by itself.
	Reduced bool
}
