package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// mixedAlgorithm has copy engines push one part of each block while a kernel
// stores the other. Engines carry more of a link than stores do, but take long to
// begin and to end: the kernel fills that in.
type mixedAlgorithm struct{}

// enginePercent is the part of a block that copy engines carry, by what was
// fastest on two H200.
var enginePercent int64 = 90

// mixedGrain is what the part of stores is a multiple of, in bytes, where a block
// lies together.
const mixedGrain = 256

func (a mixedAlgorithm) supports(t *team, tune device.Tuning, c *collective) error {
	if c.empty() {
		return nil
	}
	p, err := enginePlan(t, tune, c)
	if err != nil {
		return err
	}
	for i := range p.moves {
		stores, _, err := parted(&p.moves[i])
		if err != nil {
			return err
		}
		stores.Blocks = min(stores.Blocks, kernels.BlocksMost)
		if _, err := stores.Meeting(); err != nil {
			return err
		}
	}
	return nil
}

func (a mixedAlgorithm) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	p, err := enginePlan(t, tune, c)
	if err != nil {
		return nil, err
	}
	return t.betweenMeetings(func(i int, m *member, flags *area) (step, error) {
		stores, engines, err := parted(&p.moves[i])
		if err != nil {
			return nil, err
		}
		kernel, err := m.move(stores, flags)
		if err != nil {
			return nil, err
		}
		return m.pushes(engines, kernel)
	})
}

// parted cuts a share in what a kernel stores and what copy engines carry: bytes of
// blocks that lie together, rows of others.
func parted(m *kernels.Move) (stores, engines *kernels.Move, err error) {
	s, e := *m, *m
	s.Kind = kernels.MoveStore
	part := func(n int64) int64 { return n * (100 - enginePercent) / 100 }
	switch len(m.Extents) {
	case 0:
		s.Run = part(m.Run) / mixedGrain * mixedGrain
		e.Run = m.Run - s.Run
		if s.Run == 0 || e.Run == 0 {
			return nil, nil, fmt.Errorf("%w: blocks of %d bytes are not worth cutting", device.ErrUnsupported, m.Run)
		}
		for q := range m.Members {
			e.Src[q], e.Dst[q] = m.Src[q]+nvlib.Ptr(s.Run), m.Dst[q]+nvlib.Ptr(s.Run)
		}
	default:
		rows := part(m.Extents[0])
		if rows == 0 || rows == m.Extents[0] {
			return nil, nil, fmt.Errorf("%w: blocks of %d rows are not worth cutting", device.ErrUnsupported, m.Extents[0])
		}
		s.Extents, e.Extents = slices.Clone(m.Extents), slices.Clone(m.Extents)
		s.Extents[0], e.Extents[0] = rows, m.Extents[0]-rows
		for q := range m.Members {
			e.Src[q] += nvlib.Ptr(rows * m.SrcStrides[q][0])
			e.Dst[q] += nvlib.Ptr(rows * m.DstStrides[q][0])
		}
	}
	return &s, &e, nil
}
