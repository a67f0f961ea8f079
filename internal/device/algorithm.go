package device

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Algorithm describes one way to run collectives: a machine's own (see Teams) or a schedule of package comm. It is
// registered in one place, next to its code. Whatever chooses, checks, measures, predicts or lists algorithms reads
// these fields; only the algorithm's own package knows its name.
//
// The fields that tables of measurements need away from the machine have JSON names: tables carry them.
type Algorithm struct {
	// Name is what algorithm= and tables call it. Formerly are other names in tables and programs: those that it had,
	// and those of retired algorithms whose work it does.
	Name     string   `json:"name"`
	Formerly []string `json:"formerly,omitempty"`
	// Takes says for people which collectives it runs, where Ops does not say all; How says how.
	Takes string `json:"-"`
	How   string `json:"-"`
	// Ops are the collectives that it may run, and MostBytes bounds their operands, 0 for no bound. What else it needs
	// of operands and of the machine, its Supports tells.
	Ops       []ir.Op `json:"-"`
	MostBytes int64   `json:"-"`
	// Memory is what it takes on each device besides the operands.
	Memory MemoryUse `json:"-"`
	// OneShot: of an all_reduce each member receives the whole operand of every other. Otherwise, and of other
	// collectives, it receives the least possible.
	OneShot bool `json:"-"`
	// CopyEngines move what it moves: it takes no blocks of a device.
	CopyEngines bool `json:"-"`
	// FreeOrder: it does not add in the order of the members. It is only for sums whose bits depend on no order, or
	// which allow any.
	FreeOrder bool `json:"free_order,omitempty"`
	// HostLink: some of the data goes through the host's memory, as fast as the host that the devices are in.
	HostLink bool `json:"host_link,omitempty"`
	// Scheduled: it executes the schedule that a Tuning has, and nothing without one.
	Scheduled bool `json:"-"`
	// Library: it is the vendor's. Others are compared with it, nothing of its launch can be tuned, and its first call
	// takes long, since it connects the members.
	Library bool `json:"library,omitempty"`
}

// MemoryUse is how the memory grows that an algorithm takes on each device besides the operands.
type MemoryUse uint8

const (
	MemoryGrows MemoryUse = iota // with the operands
	MemoryFlags                  // flags alone
	MemoryFixed                  // a few MiB, however large the operands
)

// Sparing reports whether the algorithm suits machines that are short of memory.
func (a *Algorithm) Sparing() bool { return a.Memory != MemoryGrows }

// Check returns nil if c is among Ops and within MostBytes, or why the algorithm cannot run c.
func (a *Algorithm) Check(c *Collective) error {
	if !slices.Contains(a.Ops, c.Op) {
		return fmt.Errorf("%w: it runs %s", ErrUnsupported, a.ops())
	}
	for i := range c.Parts {
		if p := &c.Parts[i]; a.MostBytes > 0 && p.Reads && p.In.Elements()*p.In.DType.Size() > a.MostBytes {
			return fmt.Errorf("%w: %d bytes; at most %d", ErrUnsupported, p.In.Elements()*p.In.DType.Size(), a.MostBytes)
		}
	}
	return nil
}

// ops is Ops for people.
func (a *Algorithm) ops() string {
	names := make([]string, len(a.Ops))
	for i, op := range a.Ops {
		names[i] = op.String()
	}
	if last := len(names) - 1; last > 0 {
		return strings.Join(names[:last], ", ") + " and " + names[last]
	}
	return strings.Join(names, "") + " only"
}

// What says for people which collectives the algorithm runs.
func (a *Algorithm) What() string {
	switch {
	case a.Takes != "":
		return a.Takes
	case len(a.Ops) == 1:
		return a.Ops[0].String()
	}
	return a.ops()
}

// AlgorithmNames returns the names of algorithms.
func AlgorithmNames(list []Algorithm) []string {
	var names []string
	for i := range list {
		names = append(names, list[i].Name)
	}
	return names
}

// Collectives of which algorithms say that they run them.
var (
	Moves  = []ir.Op{ir.OpAllGather, ir.OpAllToAll, ir.OpBroadcast, ir.OpGather, ir.OpScatter, ir.OpPermute} // data only moves
	Sums   = []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpReduce}
	Uneven = []ir.Op{ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV}
	Even   = slices.Concat(Sums, Moves, []ir.Op{ir.OpBarrier}) // all but Uneven
)
