package device

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// Collective is one collective operation of all members of a team. Members are identified by their index in the team.
type Collective struct {
	Op    ir.Op  // a collective, or ir.OpBarrier
	Red   ir.Red // all_reduce, reduce_scatter, reduce_scatterv, reduce
	Root  int    // broadcast, reduce, gather, scatter
	Axis  int    // dimension along which blocks are concatenated or split; for all_to_all, concatenated
	Split int    // for all_to_all: dimension along which operands are split
	Parts []Part // one for each member
	// AnyOrder permits any order of additions. If AnyOrder is false, operands are added in the order of the members,
	// in the dtype's accumulator, and rounded once (S11); Supports then declines algorithms that use another order.
	AnyOrder bool
	// Together reports that no member's stream contains, before the collective, work that waits until another member
	// has finished the collective. Members may then wait for all others. S5 would otherwise let them wait only for
	// members whose data they need.
	Together bool
}

// Meets returns nil if each member may wait until all members have begun the collective, and otherwise the reason why a
// member may not. In the latter case, algorithms in which members wait for all others decline the collective.
func (c *Collective) Meets() error {
	switch c.Op {
	case ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute:
		if !c.Together {
			return fmt.Errorf("%w: its members wait for each other, which could deadlock here: work between the launches of two members could wait for the first launch", ErrUnsupported)
		}
	}
	return nil
}

// Part holds the operands of one member of a Collective. In and Out may be the same memory, or overlap arbitrarily.
type Part struct {
	In, Out       View
	Reads, Writes bool // whether In, and Out, exist
	To, From      int  // for permute: the member that receives In and the member that sends Out; -1 for none
	// In an uneven collective, each member specifies how many rows along Axis it sends to each member. Rows holds
	// these numbers. If Counted is set, Counts, which is i32 memory, holds them and is read when the collective runs.
	// Out then has the size of the largest possible result, and its unused part is filled with zeros.
	Rows    []int64
	Counts  View
	Counted bool
}

// Member is one member of a team: a rank, and the stream on which its part runs.
type Member struct {
	Rank   int
	Stream Stream
}

// Teams runs whole collectives as single launches of the machine: kernels that access peers' memory, or calls of a
// vendor's library. Collectives that are compiled to copies, signals and reductions need no team and run on every
// world. Worlds without teams return no TeamAlgorithms.
type Teams interface {
	// TeamAlgorithms describes the algorithms that Team.Prepare supports, in a fixed order.
	TeamAlgorithms() []Algorithm
	// Transport returns the name of the algorithm among TeamAlgorithms that supports members on several nodes. The
	// transport algorithm can at least move bytes between nodes. Transport returns "" if there is only one node.
	Transport() string
	// Identity returns a line that is equal for machines that may share measurements. It contains the GPU,
	// architecture, links, driver, and a hash of the kernels' sources. It returns "" if the machine's name and the
	// processor identify the measurements well enough.
	Identity() string
	// OpenTeam allocates the flags and staging memory with which members synchronize, each on one stream. It uses
	// little memory until Prepare needs more.
	OpenTeam(members []Member) (Team, error)
}

// Tuning selects an algorithm and its launch parameters. The machine chooses parameters that are zero.
type Tuning struct {
	Algo    string `json:"algorithm"`
	Blocks  int    `json:"blocks,omitempty"`  // number of thread blocks of a launch; copy engines use none
	Threads int    `json:"threads,omitempty"` // threads of a block
	Unroll  int    `json:"unroll,omitempty"`  // number of 16-byte loads that a thread has in flight
	// Schedule is the schedule that an algorithm with Info.Scheduled executes.
	Schedule *Schedule `json:"-"`
}

// Team runs collectives of its members, each on its own stream, as single launches. All members must receive the
// launches of a team in the same order. The epoch that distinguishes consecutive calls is stored on the devices.
// Graphs can therefore replay launches, and runs need no barrier between them.
type Team interface {
	// Supports returns nil if the team can run c with t, and otherwise the reason why it cannot. The caller has checked
	// c with Algorithm.Check.
	Supports(t Tuning, c *Collective) error
	// Prepare returns one launch for each member, or nil for a member without work. Member m's launch may be issued only
	// on its own stream. No work may be in flight.
	Prepare(t Tuning, c *Collective) ([]Launch, error)
	// PrepareAhead starts preparations for a Prepare with the same arguments, and returns without waiting.
	PrepareAhead(t Tuning, c *Collective)
	// SupportsNorm returns nil if n can run as one launch that is faster than separate launches, and otherwise the
	// reason why it cannot.
	SupportsNorm(n *Norm) error
	// NormAlgorithm describes the algorithm of PrepareNorm, with its name in reports.
	NormAlgorithm() Algorithm
	// PrepareNorm is Prepare for a Norm: one launch on each member, with the same bits as all_reduce, add and rms_norm
	// one after another.
	PrepareNorm(n *Norm) ([]Launch, error)
	// PrepareNormAhead starts the preparations that PrepareNorm needs, and returns without waiting.
	PrepareNormAhead(n *Norm)
	// Bytes returns the device memory that the team uses on each member.
	Bytes() int64
	// Close frees everything; no issued work may still be running.
	Close() error
}

// NormPart holds the operands of one member of a Norm. Sum receives the sum of In over all members plus the member's
// own Residual. Out receives the rms_norm of the rows of Sum with Weight. Sum and Out may be the memory of In and
// Residual, or overlap it, but must not overlap each other or Weight. Residual and Weight may be read before the other
// members have begun. If Sum is the zero View, the sum is only normalised, and not stored.
type NormPart struct{ In, Residual, Weight, Sum, Out View }

// Stores reports whether the sum is stored.
func (p *NormPart) Stores() bool { return p.Sum.Shape != nil }

// Norm fuses an all_reduce of sums with the add and the rms_norm that follow it on every member. The sum before the
// add is not stored, because no other operation reads it.
type Norm struct {
	Eps   float64
	Parts []NormPart // one for each member
	// Reduced reports that In already holds the sum on each member. The launch then computes only the add and the
	// rms_norm, and members do not communicate.
	Reduced bool
}
