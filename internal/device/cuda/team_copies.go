package cuda

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// copyAlgorithm has copy engines push blocks into the other members' results,
// between two kernels of one block in which the members meet: when all results
// may be written, and when they are. A member pushes on its own stream, which is
// the fastest way; what it keeps is copied beside that.
type copyAlgorithm struct{}

// routedAlgorithms take other ways than links by a kernel: copy engines, and the bus to
// the host.
var routedAlgorithms = []namedAlgorithm{{"move-copy", copyAlgorithm{}}, {"move-host", hostMove{}}}

func (a copyAlgorithm) Supports(t teamFacts, tune device.Tuning, c *collective) error {
	if c.empty() {
		return nil
	}
	_, err := a.plan(t, tune, c)
	return err
}

func (copyAlgorithm) plan(t teamFacts, tune device.Tuning, c *collective) (*movePlan, error) {
	if tune.Blocks|tune.Threads|tune.Unroll != 0 {
		return nil, fmt.Errorf("%w: copy engines are not tuned", device.ErrUnsupported)
	}
	return enginePlan(t, tune, c)
}

// enginePlan is that of stores, but nothing may have to be copied first, and rows
// have to be such as copy engines take.
func enginePlan(t teamFacts, tune device.Tuning, c *collective) (*movePlan, error) {
	p, err := moveAlgorithm{kernels.MovePush, noMove}.plan(t, tune, c)
	switch {
	case err != nil:
		return nil, err
	case p.stage > 0:
		return nil, fmt.Errorf("%w: a result lies over an operand", device.ErrUnsupported)
	case len(p.moves) < 2:
		return nil, fmt.Errorf("%w: %d members", device.ErrUnsupported, len(p.moves))
	}
	for i := range p.moves {
		m := &p.moves[i]
		if len(m.Extents) > 1 || len(m.Extents) == 1 && m.Run < strided.WideRow {
			return nil, fmt.Errorf("%w: rows of %d bytes within %v", device.ErrUnsupported, m.Run, m.Extents)
		}
		for q := range m.Members {
			if max(m.SrcStrides[q][0], m.DstStrides[q][0]) >= 1<<31 {
				return nil, fmt.Errorf("%w: rows 2 GiB apart", device.ErrUnsupported)
			}
		}
	}
	return p, nil
}

// Plan has each member push between two kernels in which all meet.
func (a copyAlgorithm) Plan(t teamFacts, tune device.Tuning, c *collective) (*collPlan, error) {
	m, err := a.plan(t, tune, c)
	if err != nil {
		return nil, err
	}
	p := &collPlan{}
	flags := p.moveFlags()
	p.Launches = func() ([][]action, error) {
		list := make([][]action, len(m.moves))
		for i := range m.moves {
			meet := kernels.Move{Kind: kernels.MoveMeet, Members: len(m.moves), Me: i, Run: 1, Blocks: 1, Threads: 32, Unroll: 1}
			var around [2]action
			for k := range around {
				if around[k], err = moveKernel(t, &meet, *flags, area{}); err != nil {
					return nil, err
				}
			}
			list[i] = []action{around[0], enginePushes(&m.moves[i]), around[1]}
		}
		return list, nil
	}
	return p, nil
}

// enginePushes makes the copies of a share. Those to others are on the member's own
// stream; what it keeps is copied beside.
func enginePushes(share *kernels.Move) engineCopies {
	var far, near []nvlib.Rect
	for k := 1; k <= share.Members; k++ {
		q := (share.Me + k) % share.Members // not everybody at the same member first
		r := nvlib.Rect{Dst: share.Dst[q], Src: share.Src[q], Width: share.Run, Height: 1}
		if len(share.Extents) == 1 {
			r.Height, r.DstPitch, r.SrcPitch = share.Extents[0], share.DstStrides[q][0], share.SrcStrides[q][0]
		}
		switch {
		case q == share.Me && share.Own:
			near = append(near, r)
		case share.To>>q&1 != 0:
			far = append(far, r)
		}
	}
	lists := slices.DeleteFunc([][]nvlib.Rect{far, near}, func(l []nvlib.Rect) bool { return len(l) == 0 })
	if len(lists) == 0 {
		return engineCopies{}
	}
	return engineCopies{Own: lists[0], Beside: lists[1:]}
}
