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

// HostMove is move-push with a part of each block transferred through host memory. The sender writes this part to its
// host memory, and the receivers read it there. Links are already saturated by stores, while the bus to the host would
// be idle. Data that goes to all members is written once.
type HostMove struct{}

// movesByHost returns the HostPart of blocks of the given size. The values were the fastest on two and four H200,
// chosen slightly below the size at which the time suddenly grows. In an all_gather of four members each member reads
// three times as much as it writes, and a bus carries more in that ratio than of equal amounts. Small blocks arrive
// before data through host memory would. Data that flows in one direction at a time is transferred as fast by copy
// engines.
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

// Aside returns how many blocks of a grid write to host memory and how many read from it. Together they are at most a
// third of the grid; both are 0 if the grid is too small for one of each.
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

// Pushed is the plan for the part of the data that is stored over the link. It uses all blocks that can run at once;
// some of them then handle the transfers through host memory.
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

// hostShares describes the members' moves with a part of each block transferred through host memory.
type hostShares struct {
	stored, each int64 // bytes of a block that are stored over the link, and bytes of host memory for the remainder
	blocks       int
	writers      int64
	readers      int64
	once         []bool // by member: all receivers get the same data, so that it is written once
	told, host   Area
}

// kernel returns member i's kernel.
func (s *hostShares) kernel(m *MovePlan, i int, flags Area) (Action, error) {
	k, err := s.Complete(m, i, flags).Meeting()
	return Kernel{k}, err
}

// Complete returns member i's move with the addresses of the memory that the plan has received.
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

// share returns member i's move without addresses of memory.
func (s *hostShares) share(m *MovePlan, i int) *kernels.MoveHost {
	x := &kernels.MoveHost{Move: m.Moves[i], Rest: m.Moves[i].Run - s.stored, Writers: s.writers, Readers: s.readers}
	x.Run, x.Blocks = s.stored, s.blocks
	x.Once = x.One()
	return x
}

// RestByHost splits the members' moves into a part stored over the link and a remainder through host memory, and
// requests memory for the latter. It returns nil if the grid is too small for blocks that handle host memory.
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
