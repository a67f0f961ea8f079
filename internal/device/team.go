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
	Axis  int    // dimension that is joined or cut; all_to_all: joined
	Split int    // all_to_all: dimension that is cut
	Parts []Part // one for each member
	// AnyOrder permits any order of additions. Otherwise the order is that of the members, computed in the dtype's
	// accumulator and rounded once (S11), and Supports declines algorithms with another order.
	AnyOrder bool
	// Together reports that no member's stream has work before the collective that waits for another member to finish it.
	// Members may then wait for all others, even if S5 requires them to wait only for members whose data they need.
	Together bool
}

// Meets returns nil if members may wait until all have begun, and otherwise the reason why they may not. Algorithms in
// which members wait for all others then decline.
func (c *Collective) Meets() error {
	switch c.Op {
	case ir.OpBroadcast, ir.OpReduce, ir.OpGather, ir.OpScatter, ir.OpPermute:
		if !c.Together {
			return fmt.Errorf("%w: its members wait for each other, which could deadlock here: work between the launches of two members could wait for the first launch", ErrUnsupported)
		}
	}
	return nil
}

// Part holds the operands of one member of a Collective. In and Out may be the same memory or overlap in any way.
type Part struct {
	In, Out       View
	Reads, Writes bool // whether In, and Out, exist
	To, From      int  // permute: the members that receive In and send Out; -1 for none
	// An uneven collective has numbers of rows along Axis, one for each member: Rows or, if Counted is set, Counts, which
	// is i32 in memory that is read when the collective runs. Out is then as large as the result can become; the rest of
	// it is filled with zeros.
	Rows    []int64
	Counts  View
	Counted bool
}

// Member is one member of a team: a rank, and the stream on which its part runs.
type Member struct {
	Rank   int
	Stream Stream
}

// Teams runs whole collectives as the machine's own launches: kernels that access peers' memory, or a vendor's library.
// The schedules of copies, signals and reductions run on every world and need no team. Worlds without teams have no
// TeamAlgorithms.
type Teams interface {
	// TeamAlgorithms describes the algorithms that Team.Prepare supports, in a fixed order.
	TeamAlgorithms() []Algorithm
	// Transport returns the name of the algorithm among TeamAlgorithms that supports members on several nodes; it can at
	// least move bytes between them. It returns "" if there is only one node.
	Transport() string
	// Identity returns a line that is equal for machines that may share measurements. It contains the GPU, architecture,
	// links, driver, and a hash of the kernels' sources. It returns "" if the machine's name and the processor suffice.
	Identity() string
	// OpenTeam allocates the flags and staging that members need to meet on one stream each. It uses little memory until
	// Prepare needs more.
	OpenTeam(members []Member) (Team, error)
}

// Tuning selects an algorithm and its launch parameters. The machine chooses parameters that are zero.
type Tuning struct {
	Algo    string `json:"algorithm"`
	Blocks  int    `json:"blocks,omitempty"`  // blocks of a launch; copy engines use none
	Threads int    `json:"threads,omitempty"` // threads of a block
	Unroll  int    `json:"unroll,omitempty"`  // 16-byte packs that a thread has in flight
	// Schedule is the schedule for the algorithm that executes schedules of other tools.
	Schedule *Schedule `json:"-"`
}

// Team runs collectives of its members, each on its own stream, as single launches. All members must receive the
// launches of a team in the same order. The state that distinguishes calls is on the devices, so launches can replay
// within graphs, and runs need no barrier between them.
type Team interface {
	// Supports returns nil, or the reason why c, which has passed Algorithm.Check, cannot run with t.
	Supports(t Tuning, c *Collective) error
	// Prepare returns one launch for each member, or nil for a member without work. Member m's launch may be issued only
	// on its own stream. No work may be in flight.
	Prepare(t Tuning, c *Collective) ([]Launch, error)
	// PrepareAhead starts the preparations that Prepare with the same arguments needs, and returns without waiting.
	PrepareAhead(t Tuning, c *Collective)
	// SupportsNorm returns nil, or the reason why n cannot run as one launch or is not faster that way.
	SupportsNorm(n *Norm) error
	// NormAlgorithm describes the algorithm of PrepareNorm, with its name in reports.
	NormAlgorithm() Algorithm
	// PrepareNorm is Prepare for n: one launch on each member, with the same bits as all_reduce, add and rms_norm one
	// after another.
	PrepareNorm(n *Norm) ([]Launch, error)
	// PrepareNormAhead starts the preparations that PrepareNorm needs, and returns without waiting.
	PrepareNormAhead(n *Norm)
	// Bytes returns the device memory that the team uses on each member.
	Bytes() int64
	// Close frees everything; no issued work may still be running.
	Close() error
}

// NormPart holds the operands of one member of a Norm. The sum of In over all members plus the member's own Residual is
// stored in Sum. The rms_norm of its rows with Weight is stored in Out. Sum and Out may be the memory of In and
// Residual, or overlap it, but must not overlap each other or Weight. Residual and Weight may be read before the other
// members have begun.
type NormPart struct{ In, Residual, Weight, Sum, Out View }

// Norm is an all_reduce of sums together with the add and the rms_norm that follow it on every member. Nothing else
// reads the plain sum, which is not stored.
type Norm struct {
	Eps   float64
	Parts []NormPart // one for each member
	// Reduced reports that each member's In already is the sum: the launch does only the add and the rms_norm, on each
	// member by itself.
	Reduced bool
}
