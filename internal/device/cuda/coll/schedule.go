package coll

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// scheduled is the algorithm that executes schedules of other tools. The tuning contains the schedule.
type scheduled struct{}

var scheduleOps = []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll}

var scheduleAlgorithms = []Entry{{Info{Name: "executor", Scheduled: true, Ops: scheduleOps, FreeOrder: true,
	Takes: "the collective of a schedule that another tool wrote (hocket bench --schedule)",
	How: "each thread block executes its list of a proved schedule: the copies, sums, signals and packets of " +
		"MSCCL++'s executor; channels are words in the peers' memory, and plain loads and stores replace proxies and switches"},
	scheduled{}}}

// The size of a cell is a multiple of scheduleLine bytes.
const scheduleLine = 16

// layout describes the memory through which a schedule accesses the operands of a collective.
type layout struct {
	cell    int64 // size of a cell in bytes
	in, out bool  // in: it reads copies of the operands; out: it writes a buffer, and the result is copied from there
}

// Supports returns an error if the schedule cannot run c.
func (scheduled) Supports(t Team, tune device.Tuning, c *Collective) error {
	_, err := scheduleLayout(t, tune, c)
	return err
}

func scheduleLayout(t Team, tune device.Tuning, c *Collective) (*layout, error) {
	s := tune.Schedule
	unsupported := func(format string, args ...any) (*layout, error) {
		return nil, fmt.Errorf("%w: "+format, append([]any{device.ErrUnsupported}, args...)...)
	}
	threads := scheduleThreads(tune)
	switch {
	case s == nil:
		return unsupported("it needs a schedule: hocket bench --schedule FILE")
	case s.Op != c.Op:
		return unsupported("schedule %s is of %s", s.Name, s.Op)
	case s.Members != t.Members():
		return unsupported("schedule %s is for %d members, but the team has %d", s.Name, s.Members, t.Members())
	case s.Members > kernels.TeamMost:
		return unsupported("schedule %s has %d members; at most %d", s.Name, s.Members, kernels.TeamMost)
	case tune.Blocks != 0 && tune.Blocks < s.Blocks:
		return unsupported("schedule %s needs %d thread blocks, but only %d are allowed", s.Name, s.Blocks, tune.Blocks)
	case threads%32 != 0 || threads < 32 || threads > threadsMost:
		return unsupported("%d threads; threads must be a multiple of 32 up to %d", threads, threadsMost)
	case s.Blocks > kernels.BlocksMost || s.Blocks > t.Room(threads):
		return unsupported("schedule %s has %d thread blocks that wait for each other, but only %d run at once", s.Name, s.Blocks,
			min(t.Room(threads), kernels.BlocksMost))
	case (c.Op == ir.OpAllReduce || c.Op == ir.OpReduceScatter) && (c.Red != ir.Sum || !c.AnyOrder):
		return unsupported("the schedule adds in an order of its own; order=any allows this")
	}
	if err := s.Check(); err != nil {
		return unsupported("schedule %s: %w", s.Name, err)
	}
	return scheduleOperands(s, c)
}

func scheduleOperands(s *device.Schedule, c *Collective) (*layout, error) {
	first := &c.Operands[0]
	l := &layout{in: s.Writes}
	for i := range c.Operands {
		p := &c.Operands[i]
		switch {
		case !p.Reads || !p.Writes || p.In.N != first.In.N || p.Out.N != first.Out.N:
			return nil, fmt.Errorf("%w: the operands of member %d and member 0 differ in size", device.ErrUnsupported, i)
		case !p.In.Dense() || !p.Out.Dense() || !outermost(InAxis(c), p.In.Shape) ||
			!outermost(OutAxis(c), p.Out.Shape):
			return nil, fmt.Errorf("%w: member %d: an operand or one of its blocks is not contiguous", device.ErrUnsupported, i)
		case p.In.Mem.Kind() != device.Shared || p.In.Addr%scheduleLine != 0 || p.In.Overlaps(&p.Out):
			l.in = true
		}
		if p.Out.Mem.Kind() != device.Shared || p.Out.Addr%scheduleLine != 0 {
			l.out = true
		}
	}
	bytes, outBytes := first.In.Bytes(), first.Out.Bytes()
	l.cell = bytes / int64(s.In)
	if l.cell*int64(s.In) != bytes || l.cell*int64(s.Out) != outBytes || l.cell%scheduleLine != 0 {
		if c.Op != ir.OpAllReduce || s.In != s.Out {
			return nil, fmt.Errorf("%w: schedule %s splits an operand into %d parts, which must be multiples of %d "+
				"bytes, but the operand has %d bytes", device.ErrUnsupported, s.Name, s.In, scheduleLine, bytes)
		}
		l.cell = ceil(ceil(bytes, int64(s.In)), scheduleLine) * scheduleLine
		l.in, l.out = true, true
	}
	if s.Joint {
		l.in = s.Size != s.Out
		for i := range c.Operands {
			p := &c.Operands[i]
			l.in = l.in || p.In.Overlaps(&p.Out) && p.In.Addr != p.Out.Addr+nvlib.Ptr(int64(s.InAt[i])*l.cell)
		}
		l.in = l.in || l.out
		l.out = l.in
	}
	most := max(s.In, s.Out, s.Size, 2*s.Areas[device.SchedulePackets])
	if l.cell*int64(max(most, s.Areas[device.ScheduleScratch], s.Areas[device.ScheduleMessages])) > 1<<31 {
		return nil, fmt.Errorf("%w: more than 2 GiB", device.ErrUnsupported)
	}
	return l, nil
}

// outermost reports whether blocks along axis are contiguous.
func outermost(axis int, shape []int64) bool {
	for i := 0; i < axis && i < len(shape); i++ {
		if shape[i] > 1 {
			return false
		}
	}
	return true
}

func scheduleThreads(tune device.Tuning) int { return cmp.Or(tune.Threads, TeamThreads) }

// Plan returns a plan of one launch on each member. Operands that the schedule cannot access are copied before the
// launch, and results are copied after it.
func (scheduled) Plan(t Team, tune device.Tuning, c *Collective) (*Plan, error) {
	l, err := scheduleLayout(t, tune, c)
	if err != nil {
		return nil, err
	}
	s, p := tune.Schedule, &Plan{}
	k := &kernels.Scheduled{Schedule: s, DType: c.Operands[0].In.DType, Cell: l.cell, Threads: scheduleThreads(tune)}
	before, after := make([][]Action, s.Members), make([][]Action, s.Members)
	for a := range k.At {
		k.At[a] = make([]nvlib.Ptr, s.Members)
	}
	// own requests memory for one area of the schedule.
	own := func(area device.ScheduleArea, name string, cells int) {
		p.reserve(name, int64(cells)*l.cell, func(a Area) { copy(k.At[area], a.At) })
	}
	for i := range c.Operands {
		k.At[device.ScheduleIn][i], k.At[device.ScheduleOut][i] = c.Operands[i].In.Addr, c.Operands[i].Out.Addr
	}
	switch {
	case s.Joint && l.out:
		own(device.ScheduleIn, "operands of schedules", s.Size)
	case s.Joint:
		copy(k.At[device.ScheduleIn], k.At[device.ScheduleOut])
	default:
		if l.in {
			own(device.ScheduleIn, "operands of schedules", s.In)
		}
		if l.out {
			own(device.ScheduleOut, "results of schedules", s.Out)
		}
	}
	if n := s.Areas[device.ScheduleScratch]; n > 0 { // in a fixed order, because processes compute each other's addresses
		own(device.ScheduleScratch, "scratch of schedules", n)
	}
	if n := s.Areas[device.ScheduleMessages]; n > 0 {
		own(device.ScheduleMessages, "messages of schedules", n)
	}
	if n := int64(s.Areas[device.SchedulePackets]); n > 0 {
		p.halves("packets of schedules", 2*n*l.cell, func(a Area) {
			copy(k.At[device.SchedulePackets], a.At)
			k.PacketHalf = a.half()
		})
	}
	p.halves("words of schedules", kernels.ScheduleWords(s), func(a Area) { k.Words, k.WordHalf = a.At, a.half() })
	p.Launches = func() ([][]Action, error) {
		for i := range c.Operands {
			scheduleCopies(s, l, c, i, k, before, after)
		}
		list := make([][]Action, s.Members)
		for i := range list {
			list[i] = append(append(before[i], Kernel{k.Meeting(i)}), after[i]...)
		}
		return list, nil
	}
	return p, nil
}

// scheduleCopies adds a copy of member i's operand to the schedule's memory before the launch, and a copy of the
// result from that memory after the launch.
func scheduleCopies(s *device.Schedule, l *layout, c *Collective, i int, k *kernels.Scheduled, before, after [][]Action) {
	inAt, outAt, outArea := int64(0), int64(0), device.ScheduleOut
	if s.Joint {
		inAt, outAt, outArea = int64(s.InAt[i])*l.cell, int64(s.OutAt[i])*l.cell, device.ScheduleIn
	}
	o := &c.Operands[i]
	if l.in || s.Joint {
		to := o.In.In(sharedCopy{o.In.Mem}, k.At[device.ScheduleIn][i]+nvlib.Ptr(inAt))
		if !to.Same(&o.In) {
			before[i] = append(before[i], Copy{to, o.In})
		}
	}
	if l.out {
		from := o.Out.In(sharedCopy{o.Out.Mem}, k.At[outArea][i]+nvlib.Ptr(outAt))
		after[i] = append(after[i], Copy{o.Out, from})
	}
}
