package cuda

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/gpu"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// hostMove is move-push but for some per cent of each block, which its member writes
// to its host memory and the others read there: stores carry what a link does, and the
// bus to the host is no part of that. What goes to all is written once.
type hostMove struct{}

// movesByHost is hostPart of blocks of so many bytes: what was fastest on two and four
// H200, a little less than where it suddenly takes longer. Among four an all_gather reads
// three times as much as it writes, which a bus carries more of than of both alike. Small
// blocks are there before host memory is, and what goes one way at a time copy engines
// carry as well.
var movesByHost = func(op ir.Op, block int64, members int) hostPart {
	switch {
	case block < 4<<20:
	case op == ir.OpAllGather && members > 2 && block < 16<<20:
		return hostPart{100, 8, 24}
	case op == ir.OpAllGather && members > 2:
		return hostPart{112, 8, 24}
	case op == ir.OpAllGather:
		return hostPart{80, 12, 24}
	case op == ir.OpAllToAll && members > 2:
		return hostPart{70, 12, 24}
	case op == ir.OpAllToAll:
		return hostPart{60, 12, 24}
	}
	return hostPart{}
}

// mixedGrain is what the stored part of a block is a multiple of, in bytes.
const mixedGrain = 256

// storedFirst is how many bytes of a block are stored, a multiple of mixedGrain: the
// rest goes by way of host memory.
func (p hostPart) storedFirst(block int64) int64 {
	return block * (1000 - p.permille) / 1000 / mixedGrain * mixedGrain
}

// aside is how many of so many blocks of a grid write to host memory and read there,
// in all no more than a third; none where that is fewer than one each.
func (p hostPart) aside(blocks int64) (writers, readers int64) {
	writers, readers = p.writers, p.readers
	for 3*(writers+readers) > blocks {
		if writers+readers == 2 {
			return 0, 0
		}
		writers, readers = ceil(writers, 2), ceil(readers, 2)
	}
	return writers, readers
}

func (hostMove) Supports(t teamFacts, tune device.Tuning, c *collective) error {
	if c.empty() {
		return nil
	}
	p, err := pushed.plan(t, withBlocks(tune), c)
	if err != nil {
		return err
	}
	if err := p.launchable(); err != nil {
		return err
	}
	m := &p.moves[0]
	part := movesByHost(c.Op, m.Run, m.Members)
	if stored := part.storedFirst(m.Run); len(m.Extents) > 0 || stored == 0 || part.permille == 0 {
		return fmt.Errorf("%w: blocks of %d bytes within %v are not worth cutting", device.ErrUnsupported, m.Run, m.Extents)
	}
	return nil
}

// pushed is how blocks are stored: by all blocks of the grid that there is room for,
// of which some then do the rest.
var pushed = moveAlgorithm{kernels.MovePush, noMove}

func withBlocks(tune device.Tuning) device.Tuning {
	tune.Blocks = cmp.Or(tune.Blocks, kernels.BlocksMost)
	return tune
}

// Plan is one launch on each member.
func (hostMove) Plan(t teamFacts, tune device.Tuning, c *collective) (*collPlan, error) {
	p := &collPlan{}
	m, first, err := pushed.shares(p, t, withBlocks(tune), c)
	if err != nil {
		return nil, err
	}
	flags := p.moveFlags()
	shares := restByHost(p, t, m, movesByHost(c.Op, m.moves[0].Run, len(m.moves)))
	p.Launches = func() ([][]action, error) {
		for i := range m.moves {
			var k action
			if shares == nil {
				k, err = moveKernel(t, &m.moves[i], *flags, area{})
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

// hostShares are members' shares of which some goes by way of host memory.
type hostShares struct {
	stored, each int64 // bytes of a block that are stored, and of a rest's place
	blocks       int
	writers      int64
	readers      int64
	once         []bool // the member's rests are one
	told, host   area
}

// kernel is member i's launch.
func (s *hostShares) kernel(m *movePlan, i int, flags area) (action, error) {
	k, err := s.complete(m, i, flags).Meeting()
	return meetKernel{k}, err
}

// complete is member i's share with its memory, which the plan was given.
func (s *hostShares) complete(m *movePlan, i int, flags area) *kernels.MoveHost {
	x := s.share(m, i)
	copy(x.Flags[:], flags.At)
	copy(x.Told[:], s.told.At)
	x.ToldHalf = s.told.half()
	for q := range m.moves {
		x.Give[q], x.Take[q] = s.host.At[i], s.host.At[q]
		if !s.once[i] {
			x.Give[q] += nvlib.Ptr(int64(q) * s.each)
		}
		if !s.once[q] {
			x.Take[q] += nvlib.Ptr(int64(i) * s.each)
		}
		x.Put[q] = m.moves[q].Dst[i] + nvlib.Ptr(s.stored)
	}
	return x
}

// share is member i's, without memory.
func (s *hostShares) share(m *movePlan, i int) *kernels.MoveHost {
	x := &kernels.MoveHost{Move: m.moves[i], Rest: m.moves[i].Run - s.stored, Writers: s.writers, Readers: s.readers}
	x.Run, x.Blocks = s.stored, s.blocks
	x.Once = x.One()
	return x
}

// restByHost cuts the members' shares in what is stored and the rest, with memory for
// that; nil where there is no room for blocks aside.
func restByHost(p *collPlan, t teamFacts, m *movePlan, part hostPart) *hostShares {
	blocks := min(m.moves[0].Blocks, t.Room(m.moves[0].Threads))
	writers, readers := part.aside(int64(blocks))
	if writers == 0 {
		return nil
	}
	s := &hostShares{stored: part.storedFirst(m.moves[0].Run), blocks: blocks, writers: writers, readers: readers}
	s.each = gpu.RoundUp(m.moves[0].Run-s.stored, 16)
	most := int64(1)
	for i := range m.moves {
		once := s.share(m, i).Once
		if s.once = append(s.once, once); !once {
			most = int64(len(m.moves))
		}
	}
	p.halves("flags", s.share(m, 0).ToldBytes(), func(a area) { s.told = a })
	p.hostMemory(most*s.each, func(a area) { s.host = a })
	return s
}
