package device

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Algorithm describes one way to run collectives: an algorithm of a machine (see Teams) or a schedule of package comm.
// Each algorithm is registered in one place, next to its code. Code that chooses, checks, measures, predicts or lists
// algorithms reads these fields; only the algorithm's own package knows its name.
//
// Fields with JSON names are stored in tables of measurements, because users of a table may not have the machine.
type Algorithm struct {
	// Name is the algorithm's name in programs (algorithm=) and in tables of measurements. Formerly lists other names
	// that are still accepted there: earlier names of the algorithm, and names of retired algorithms that it replaces.
	Name     string   `json:"name"`
	Formerly []string `json:"formerly,omitempty"`
	// Takes describes, for users, the supported collectives if Ops is not precise enough. How describes, for users,
	// how the algorithm works.
	Takes string `json:"-"`
	How   string `json:"-"`
	// Ops lists the supported collectives. MostBytes is the size in bytes of the largest supported operand; 0 means no
	// limit. Supports checks all other requirements on the operands and on the machine.
	Ops       []ir.Op `json:"-"`
	MostBytes int64   `json:"-"`
	// Memory describes how much memory the algorithm allocates on each device in addition to the operands.
	Memory MemoryUse `json:"-"`
	// OneShot reports that each member of an all_reduce receives the whole operands of all other members. If OneShot is
	// false, or the collective is not an all_reduce, a member receives only the data that it needs.
	OneShot bool `json:"-"`
	// CopyEngines reports that copy engines move the data, so that the algorithm occupies no multiprocessors.
	CopyEngines bool `json:"-"`
	// FreeOrder reports that the algorithm does not add the operands in the order of the members. Such an algorithm is
	// used only for sums whose bits do not depend on the order, and for collectives that permit any order.
	FreeOrder bool `json:"free_order,omitempty"`
	// HostLink reports that the algorithm transfers some of the data through host memory, so that its speed depends on
	// the host.
	HostLink bool `json:"host_link,omitempty"`
	// Scheduled reports that the algorithm executes the schedule in a Tuning. Without a schedule it supports no
	// collective.
	Scheduled bool `json:"-"`
	// Library reports that the algorithm belongs to the vendor's library. The library's algorithms serve as the
	// reference in comparisons. Their launch parameters cannot be tuned, and the first call takes long because it
	// connects the members.
	Library bool `json:"library,omitempty"`
}

// MemoryUse describes how the additional memory of an algorithm on each device grows with the size of the operands.
type MemoryUse uint8

const (
	MemoryGrows MemoryUse = iota // proportional to the operands
	MemoryFlags                  // only flags
	MemoryFixed                  // a few MiB for operands of any size
)

// Sparing reports whether the algorithm is suited to machines with little free memory.
func (a *Algorithm) Sparing() bool { return a.Memory != MemoryGrows }

// Check returns nil if Ops contains c's operation and c's operands are within MostBytes. Otherwise it returns the
// reason why the algorithm cannot run c.
func (a *Algorithm) Check(c *Collective) error {
	if !slices.Contains(a.Ops, c.Op) {
		return fmt.Errorf("%w: it runs %s", ErrUnsupported, a.ops())
	}
	for i := range c.Parts {
		if p := &c.Parts[i]; a.MostBytes > 0 && p.Reads && p.In.Elements()*p.In.DType.Size() > a.MostBytes {
			return fmt.Errorf("%w: the operand has %d bytes; at most %d are supported", ErrUnsupported,
				p.In.Elements()*p.In.DType.Size(), a.MostBytes)
		}
	}
	return nil
}

// ops returns Ops as text.
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

// What returns a description, for users, of the collectives that the algorithm runs.
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

// The following lists name collectives that many algorithms support.
var (
	// Moves lists the collectives that move data without computing.
	Moves  = []ir.Op{ir.OpAllGather, ir.OpAllToAll, ir.OpBroadcast, ir.OpGather, ir.OpScatter, ir.OpPermute}
	Sums   = []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpReduce}
	Uneven = []ir.Op{ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV}
	Even   = slices.Concat(Sums, Moves, []ir.Op{ir.OpBarrier}) // all except Uneven
)
