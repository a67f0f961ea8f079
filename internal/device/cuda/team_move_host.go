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

func (hostMove) supports(t *team, tune device.Tuning, c *collective) error {
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

func (hostMove) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	p, steps, err := pushed.shares(t, withBlocks(tune), c)
	if err != nil {
		return nil, err
	}
	flags, err := t.halves("flags of moves", kernels.MoveFlagBytes)
	if err != nil {
		return nil, err
	}
	shares, err := t.restByHost(p, movesByHost(c.Op, p.moves[0].Run, len(p.moves)))
	if err != nil {
		return nil, err
	}
	for i, m := range t.members {
		var st step
		if shares == nil {
			st, err = m.move(&p.moves[i], flags)
		} else {
			copy(shares[i].Flags[:], flags.at)
			st, err = m.moveHost(&shares[i])
		}
		if err != nil {
			return nil, err
		}
		steps[i] = append(steps[i], st)
	}
	return steps, nil
}

func (m *member) moveHost(share *kernels.MoveHost) (step, error) {
	k, err := share.Meeting()
	if err != nil {
		return nil, err
	}
	return m.kernel(k)
}

// restByHost cuts the members' shares in what is stored and the rest, with memory for
// that; nil where there is no room for blocks aside.
func (t *team) restByHost(p *movePlan, part hostPart) ([]kernels.MoveHost, error) {
	blocks := min(p.moves[0].Blocks, t.room(p.moves[0].Threads))
	writers, readers := part.aside(int64(blocks))
	if writers == 0 {
		return nil, nil
	}
	shares := make([]kernels.MoveHost, len(p.moves))
	stored := part.storedFirst(p.moves[0].Run)
	each, most := gpu.RoundUp(p.moves[0].Run-stored, 16), int64(1)
	for i := range shares {
		s := &shares[i]
		*s = kernels.MoveHost{Move: p.moves[i], Rest: p.moves[i].Run - stored, Writers: writers, Readers: readers}
		s.Run, s.Blocks = stored, blocks
		if s.Once = s.One(); !s.Once {
			most = int64(s.Members)
		}
	}
	told, err := t.halves("flags", shares[0].ToldBytes())
	if err != nil {
		return nil, err
	}
	host, err := t.hostMemory(most * each)
	if err != nil {
		return nil, err
	}
	for i := range shares {
		s := &shares[i]
		copy(s.Told[:], told.at)
		s.ToldHalf = told.bytes / 2
		for q := range shares {
			s.Give[q], s.Take[q] = host[i], host[q]
			if !s.Once {
				s.Give[q] += nvlib.Ptr(int64(q) * each)
			}
			if !shares[q].Once {
				s.Take[q] += nvlib.Ptr(int64(i) * each)
			}
			s.Put[q] = p.moves[q].Dst[i] + nvlib.Ptr(stored)
		}
	}
	return shares, nil
}
