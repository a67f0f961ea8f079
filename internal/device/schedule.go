package device

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// Schedule is a collective as a list of steps for each thread block of each member: what a schedule of another tool
// becomes for kernels of a team. Memory is counted in cells, which are equally large parts of the operands.
type Schedule struct {
	Name    string
	Op      ir.Op
	Members int
	Blocks  int // of the member that has the most
	// In and Out are the cells of a member's operands. Where they are Joint, a member's operands lie in one piece of
	// Size cells, at InAt and OutAt of it.
	In, Out     int
	Joint       bool
	Size        int
	InAt, OutAt []int
	// Writes: it writes to inputs, which a collective may not.
	Writes bool
	// Closes: members have to wait for each other at the end, since the schedule does not see to it.
	Closes bool
	// Areas are the cells of each kind of memory that a member needs, but for its operands; packets take two each.
	Areas    [ScheduleAreas]int
	Counters int
	Steps    [][][]ScheduleStep // by member and block
}

// ScheduleArea is a kind of memory.
type ScheduleArea uint8

// Kinds of memory. A joint operand is ScheduleIn.
const (
	ScheduleIn ScheduleArea = iota
	ScheduleOut
	ScheduleScratch
	SchedulePackets // data and flags in turn
	ScheduleMessages
	ScheduleAreas
)

// ScheduleStepKind is what a step does.
type ScheduleStepKind uint8

const (
	ScheduleSync  ScheduleStepKind = iota // all threads of the block meet
	ScheduleRaise                         // Thread sets a counter of Member's to Value
	ScheduleAwait                         // Thread waits until its own member's counter is Value at least
	ScheduleMove                          // each cell of To becomes the sum of From's
)

// ScheduleStep is a step of a block.
type ScheduleStep struct {
	Kind           ScheduleStepKind
	Thread         int
	Member         int // of Await: that raises it, as far as is known
	Counter, Value int
	Cells          int
	Packed         bool // some operands are packets
	From, To       []ScheduleSpan
}

// ScheduleSpan is an operand: cells from Cell on. A packet's first is counted in cells of data.
type ScheduleSpan struct {
	Area   ScheduleArea
	Raw    bool // packets that are copied as they are
	Member int
	Cell   int
}

// ScheduleThreads is how many threads of a block take part in raising and awaiting at the most.
const ScheduleThreads = 32

// Check returns nil, or what a kernel that executed s would do outside its memory.
func (s *Schedule) Check() error {
	if s.Members < 2 || len(s.Steps) != s.Members || s.In < 1 || s.Out < 1 || s.Blocks < 1 {
		return fmt.Errorf("a schedule of %d blocks for %d members with steps for %d", s.Blocks, s.Members, len(s.Steps))
	}
	limits := s.Areas
	limits[ScheduleIn], limits[ScheduleOut] = s.In, s.Out
	if s.Joint {
		limits[ScheduleIn], limits[ScheduleOut] = s.Size, 0
		if len(s.InAt) != s.Members || len(s.OutAt) != s.Members {
			return fmt.Errorf("it does not say where operands begin")
		}
		for m := range s.Members {
			if s.InAt[m] < 0 || s.InAt[m]+s.In > s.Size || s.OutAt[m] < 0 || s.OutAt[m]+s.Out > s.Size {
				return fmt.Errorf("member %d: its operands are outside %d cells", m, s.Size)
			}
		}
	}
	for m, blocks := range s.Steps {
		if len(blocks) > s.Blocks {
			return fmt.Errorf("member %d: %d blocks of at most %d", m, len(blocks), s.Blocks)
		}
		for b, steps := range blocks {
			for i := range steps {
				if err := steps[i].check(s, &limits); err != nil {
					return fmt.Errorf("member %d, block %d, step %d: %w", m, b, i, err)
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
			return fmt.Errorf("counter %d of member %d by thread %d", st.Counter, st.Member, st.Thread)
		}
		return nil
	case ScheduleMove:
	default:
		return fmt.Errorf("there is no step of kind %d", st.Kind)
	}
	if len(st.From) == 0 || len(st.From) > 255 || len(st.To) > 255 || st.Cells < 0 {
		return fmt.Errorf("%d sources, %d destinations", len(st.From), len(st.To))
	}
	for _, list := range [][]ScheduleSpan{st.From, st.To} {
		for _, sp := range list {
			if sp.Area >= ScheduleAreas || sp.Member < 0 || sp.Member >= s.Members || sp.Cell < 0 ||
				sp.Cell+st.Cells > limits[sp.Area] {
				return fmt.Errorf("cells %d to %d of member %d's memory %d are outside it", sp.Cell,
					sp.Cell+st.Cells-1, sp.Member, sp.Area)
			}
			if packets := sp.Area == SchedulePackets; packets && !st.Packed || sp.Raw && !packets {
				return fmt.Errorf("an operand is packets where the step has none")
			}
		}
	}
	return nil
}
