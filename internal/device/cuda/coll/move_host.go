package coll

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// HostMove is the algorithm move-push, except that a part of each block is transferred through host memory. The sender
// writes this part to its host memory, and the receivers read it there. The bus to the host thus adds to the bandwidth
// of the links, which stores to peers saturate. A block that all members receive is written to host memory only once.
type HostMove struct{}

// movesByHost returns which part of blocks of the given size is transferred through host memory. On two and four H200
// the time suddenly grew above some part; the values are slightly below it. In an all_gather of four members, each
// member reads three times as much as it writes, and the bus to the host transfers more in that ratio than if both
// amounts are equal. Small blocks do not use host memory, because it has a higher latency than the link. Collectives
// with data in only one direction do not use it either, because copy engines are as fast.
func movesByHost(op ir.Op, block int64, members int) HostPart {
	switch {
	case block < 4<<20:
	case op == ir.OpAllGather && members > 2 && block < 16<<20:
		return HostPart{100, 8, 24}
	case op == ir.OpAllGather && members > 2:
		return HostPart{112, 8, 24}
	case op == ir.OpAllGather:
		return HostPart{80, 12, 24}
	case op == ir.OpAllToAll && members > 2:
		return HostPart{70, 12, 24}
	case op == ir.OpAllToAll:
		return HostPart{60, 12, 24}
	}
	return HostPart{}
}

// The part of a block that is stored over the link is a multiple of mixedGrain bytes.
const mixedGrain = 256

// storedFirst returns the number of bytes of a block that are stored over the link, a multiple of mixedGrain. The
// remaining bytes are transferred through host memory.
func (p HostPart) storedFirst(block int64) int64 {
	return block * (1000 - p.Permille) / 1000 / mixedGrain * mixedGrain
}

// Aside returns how many thread blocks of a grid write to host memory, and how many read from it. Together they are at
// most a third of the grid. Both are 0 if a third of the grid is less than two blocks.
func (p HostPart) Aside(blocks int64) (writers, readers int64) {
	writers, readers = p.Writers, p.Readers
	for 3*(writers+readers) > blocks {
		if writers+readers == 2 {
			return 0, 0
		}
		writers, readers = ceil(writers, 2), ceil(readers, 2)
	}
	return writers, readers
}

// Supports returns an error if the algorithm cannot carry out c.
func (HostMove) Supports(t Team, tune device.Tuning, c *Collective) error {
	if c.Empty() {
		return nil
	}
	p, err := Pushed.plan(t, withBlocks(tune), c)
	if err != nil {
		return err
	}
	if err := p.launchable(); err != nil {
		return err
	}
	m := &p.Moves[0]
	part := t.HostParts().Moves(c.Op, m.Run, m.Members)
	if stored := part.storedFirst(m.Run); len(m.Extents) > 0 || stored == 0 || part.Permille == 0 {
		return fmt.Errorf("%w: blocks of %d bytes within %v are not worth cutting", device.ErrUnsupported, m.Run, m.Extents)
	}
	return nil
}

// Pushed is the algorithm that plans the part of the data that is stored over the link. The launch has all thread
// blocks that can run at once; some of them then handle the transfers through host memory instead.
var Pushed = MoveAlgorithm{kernels.MovePush, noMove}

func withBlocks(tune device.Tuning) device.Tuning {
	tune.Blocks = cmp.Or(tune.Blocks, kernels.BlocksMost)
	return tune
}

// Plan returns a plan of one launch on each member.
func (HostMove) Plan(t Team, tune device.Tuning, c *Collective) (*Plan, error) {
	p := &Plan{}
	m, first, err := Pushed.Shares(p, t, withBlocks(tune), c)
	if err != nil {
		return nil, err
	}
	flags := p.moveFlags()
	shares := RestByHost(p, t, m, t.HostParts().Moves(c.Op, m.Moves[0].Run, len(m.Moves)))
	p.Launches = func() ([][]Action, error) {
		for i := range m.Moves {
			var k Action
			if shares == nil {
				k, err = moveKernel(t, &m.Moves[i], *flags, Area{})
			} else {
				k, err = shares.kernel(m, i, *flags)
			}
			if err != nil {
				return nil, err
			}
			first[i] = append(first[i], k)
		}
		return first, nil
	}
	return p, nil
}

// hostShares describes the members' moves in which a part of each block is transferred through host memory.
type hostShares struct {
	stored, each int64 // bytes of a block that are stored over the link, and bytes of host memory for the rest of the block
	blocks       int
	writers      int64
	readers      int64
	once         []bool // by member: whether all receivers get the same data, so that the member writes it once
	told, host   Area
}

// kernel returns member i's kernel.
func (s *hostShares) kernel(m *MovePlan, i int, flags Area) (Action, error) {
	k, err := s.Complete(m, i, flags).Meeting()
	return Kernel{k}, err
}

// Complete returns member i's move, with the addresses of the memory that was reserved for the plan.
func (s *hostShares) Complete(m *MovePlan, i int, flags Area) *kernels.MoveHost {
	x := s.share(m, i)
	copy(x.Flags[:], flags.At)
	copy(x.Told[:], s.told.At)
	x.ToldHalf = s.told.half()
	for q := range m.Moves {
		x.Give[q], x.Take[q] = s.host.At[i], s.host.At[q]
		if !s.once[i] {
			x.Give[q] += nvlib.Ptr(int64(q) * s.each)
		}
		if !s.once[q] {
			x.Take[q] += nvlib.Ptr(int64(i) * s.each)
		}
		x.Put[q] = m.Moves[q].Dst[i] + nvlib.Ptr(s.stored)
	}
	return x
}

// share returns member i's move before memory is reserved for it.
func (s *hostShares) share(m *MovePlan, i int) *kernels.MoveHost {
	x := &kernels.MoveHost{Move: m.Moves[i], Rest: m.Moves[i].Run - s.stored, Writers: s.writers, Readers: s.readers}
	x.Run, x.Blocks = s.stored, s.blocks
	x.Once = x.One()
	return x
}

// RestByHost splits each block of the members' moves into a part that is stored over the link and a part that is
// transferred through host memory. It requests the host memory. It returns nil if the grid is too small to use some
// thread blocks for host memory.
func RestByHost(p *Plan, t Team, m *MovePlan, part HostPart) *hostShares {
	blocks := min(m.Moves[0].Blocks, t.Room(m.Moves[0].Threads))
	writers, readers := part.Aside(int64(blocks))
	if writers == 0 {
		return nil
	}
	s := &hostShares{stored: part.storedFirst(m.Moves[0].Run), blocks: blocks, writers: writers, readers: readers}
	s.each = gpu.RoundUp(m.Moves[0].Run-s.stored, 16)
	most := int64(1)
	for i := range m.Moves {
		once := s.share(m, i).Once
		if s.once = append(s.once, once); !once {
			most = int64(len(m.Moves))
		}
	}
	p.halves("flags", s.share(m, 0).ToldBytes(), func(a Area) { s.told = a })
	p.hostMemory(most*s.each, func(a Area) { s.host = a })
	return s
}
