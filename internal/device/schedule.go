package device

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// Schedule is a collective as a list of steps for each thread block of each member. Schedules of other tools are
// converted to a Schedule, which a team's kernel executes. Memory is counted in cells: parts of equal size into which
// the operands are divided.
type Schedule struct {
	Name    string
	Op      ir.Op
	Members int
	Blocks  int // largest number of blocks that any member has
	// In and Out are the numbers of cells of a member's operands. If Joint is set, a member's operands are in one buffer
	// of Size cells, at the cells InAt and OutAt.
	In, Out     int
	Joint       bool
	Size        int
	InAt, OutAt []int
	// Writes reports that the schedule writes to inputs. Collectives must not do this, so such a schedule is executed
	// on copies.
	Writes bool
	// Closes reports that the kernel must make members wait for each other at its end, because the schedule does not.
	Closes bool
	// Areas holds the number of cells of each kind of memory that a member needs in addition to its operands. A packet
	// uses two cells.
	Areas    [ScheduleAreas]int
	Counters int
	Steps    [][][]ScheduleStep // by member and block
}

// ScheduleArea is a kind of memory that a schedule uses.
type ScheduleArea uint8

// The following constants are the kinds of memory. A joint operand is ScheduleIn.
const (
	ScheduleIn ScheduleArea = iota
	ScheduleOut
	ScheduleScratch
	SchedulePackets // data alternates with flags
	ScheduleMessages
	ScheduleAreas
)

// ScheduleStepKind is the operation of a step.
type ScheduleStepKind uint8

const (
	ScheduleSync  ScheduleStepKind = iota // all threads of the block wait for each other
	ScheduleRaise                         // thread number Thread sets a counter of Member to Value
	ScheduleAwait                         // thread number Thread waits until its own member's counter is at least Value
	ScheduleMove                          // each cell of To is set to the sum of the corresponding cells of From
)

// ScheduleStep is a step of a block.
type ScheduleStep struct {
	Kind           ScheduleStepKind
	Thread         int
	Member         int // for ScheduleAwait: the member that raises the counter, if it is known
	Counter, Value int
	Cells          int
	Packed         bool // whether some operands are packets
	From, To       []ScheduleSpan
}

// ScheduleSpan is an operand of a step: consecutive cells from Cell on. For packets, Cell is counted in cells of plain
// data.
type ScheduleSpan struct {
	Area   ScheduleArea
	Raw    bool // whether packets are copied unchanged
	Member int
	Cell   int
}

// ScheduleThreads is the largest number of threads of a block that raise and await counters.
const ScheduleThreads = 32

// Check returns an error if a kernel that executes s would access memory outside an operand or area. The error
// describes the access.
func (s *Schedule) Check() error {
	if s.Members < 2 || len(s.Steps) != s.Members || s.In < 1 || s.Out < 1 || s.Blocks < 1 {
		return fmt.Errorf("the schedule has %d blocks and is for %d members, but has steps for %d", s.Blocks, s.Members,
			len(s.Steps))
	}
	limits := s.Areas
	limits[ScheduleIn], limits[ScheduleOut] = s.In, s.Out
	if s.Joint {
		limits[ScheduleIn], limits[ScheduleOut] = s.Size, 0
		if len(s.InAt) != s.Members || len(s.OutAt) != s.Members {
			return fmt.Errorf("the schedule does not define the start of each member's joint operands")
		}
		for m := range s.Members {
			if s.InAt[m] < 0 || s.InAt[m]+s.In > s.Size || s.OutAt[m] < 0 || s.OutAt[m]+s.Out > s.Size {
				return fmt.Errorf("member %d: its operands are outside its buffer of %d cells", m, s.Size)
			}
		}
	}
	for m, blocks := range s.Steps {
		if len(blocks) > s.Blocks {
			return fmt.Errorf("member %d has %d blocks, but at most %d are declared", m, len(blocks), s.Blocks)
		}
		for b, steps := range blocks {
			for i := range steps {
				if err := steps[i].check(s, &limits); err != nil {
					return fmt.Errorf("member %d, block %d, op %d: %w", m, b, i, err)
				}
			}
		}
	}
	return nil
}

func (st *ScheduleStep) check(s *Schedule, limits *[ScheduleAreas]int) error {
	switch st.Kind {
	case ScheduleSync:
		return nil
	case ScheduleRaise, ScheduleAwait:
		if st.Counter < 0 || st.Counter >= s.Counters || st.Member < 0 || st.Member >= s.Members || st.Thread < 0 ||
			st.Thread >= ScheduleThreads || st.Value < 0 {
			return fmt.Errorf("invalid counter %d of member %d or thread %d", st.Counter, st.Member, st.Thread)
		}
		return nil
	case ScheduleMove:
	default:
		return fmt.Errorf("there is no op of kind %d", st.Kind)
	}
	if len(st.From) == 0 || len(st.From) > 255 || len(st.To) > 255 || st.Cells < 0 {
		return fmt.Errorf("%d sources, %d destinations", len(st.From), len(st.To))
	}
	for _, list := range [][]ScheduleSpan{st.From, st.To} {
		for _, sp := range list {
			if sp.Area >= ScheduleAreas || sp.Member < 0 || sp.Member >= s.Members || sp.Cell < 0 ||
				sp.Cell+st.Cells > limits[sp.Area] {
				return fmt.Errorf("cells %d to %d are outside of member %d's memory area %d", sp.Cell,
					sp.Cell+st.Cells-1, sp.Member, sp.Area)
			}
			if packets := sp.Area == SchedulePackets; packets && !st.Packed || sp.Raw && !packets {
				return fmt.Errorf("an operand consists of packets, but the op is not packed")
			}
		}
	}
	return nil
}
