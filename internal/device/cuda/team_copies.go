package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

// copyAlgorithm has copy engines push blocks into the other members' results,
// between two kernels of one block in which the members meet: when all results
// may be written, and when they are. A member pushes on its own stream, which is
// the fastest way; what it keeps is copied beside that.
type copyAlgorithm struct{}

var copyAlgorithms = []namedAlgorithm{{"move-copy", copyAlgorithm{}}}

func (a copyAlgorithm) supports(t *team, tune device.Tuning, c *collective) error {
	if c.empty() {
		return nil
	}
	_, err := a.plan(t, tune, c)
	return err
}

// plan is that of stores, but nothing may have to be copied first, and rows have
// to be such as copy engines take.
func (copyAlgorithm) plan(t *team, tune device.Tuning, c *collective) (*movePlan, error) {
	p, err := moveAlgorithm{kernels.MovePush, noMove}.plan(t, device.Tuning{}, c)
	switch {
	case err != nil:
		return nil, err
	case tune.Blocks|tune.Threads|tune.Unroll != 0:
		return nil, fmt.Errorf("%w: copy engines are not tuned", device.ErrUnsupported)
	case p.stage > 0:
		return nil, fmt.Errorf("%w: a result lies over an operand", device.ErrUnsupported)
	case len(p.moves) < 2 || len(p.moves) > kernels.TeamMost:
		return nil, fmt.Errorf("%w: %d members", device.ErrUnsupported, len(p.moves))
	}
	for i := range p.moves {
		m := &p.moves[i]
		if len(m.Extents) > 1 || len(m.Extents) == 1 && m.Run < wideRow {
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

func (a copyAlgorithm) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	p, err := a.plan(t, tune, c)
	if err != nil {
		return nil, err
	}
	flags, err := t.halves("flags of moves", kernels.MoveFlagBytes)
	if err != nil {
		return nil, err
	}
	steps := make([][]step, len(t.members))
	for i, m := range t.members {
		meet := kernels.Move{Kind: kernels.MoveMeet, Members: len(t.members), Me: i, Run: 1, Blocks: 1, Threads: 32, Unroll: 1}
		var around [2]step
		for k := range around {
			if around[k], err = m.move(&meet, flags); err != nil {
				return nil, err
			}
		}
		push, err := m.pushes(&p.moves[i])
		if err != nil {
			return nil, err
		}
		steps[i] = []step{around[0], push, around[1]}
	}
	return steps, nil
}

// pushStep is a member's copies: far to others, near to itself.
type pushStep struct {
	dev        *dev
	far, near  []nvlib.Rect
	side       *stream // for what is near; nil where there is nothing beside it
	fork, join nvlib.Event
}

// pushes makes the copies of a share.
func (m *member) pushes(share *kernels.Move) (*pushStep, error) {
	p := &pushStep{dev: m.dev}
	for k := 1; k <= share.Members; k++ {
		q := (share.Me + k) % share.Members // not everybody at the same member first
		r := nvlib.Rect{Dst: share.Dst[q], Src: share.Src[q], Width: share.Run, Height: 1}
		if len(share.Extents) == 1 {
			r.Height, r.DstPitch, r.SrcPitch = share.Extents[0], share.DstStrides[q][0], share.SrcStrides[q][0]
		}
		switch {
		case q == share.Me && share.Own:
			p.near = append(p.near, r)
		case share.To>>q&1 != 0:
			p.far = append(p.far, r)
		}
	}
	if len(p.near) == 0 || len(p.far) == 0 {
		return p, nil
	}
	err := m.dev.bound(func() (err error) {
		if p.side, err = m.dev.beside(); err != nil {
			return err
		}
		if p.fork, err = m.dev.site.newEvent(false); err == nil {
			p.join, err = m.dev.site.newEvent(false)
		}
		return err
	})
	return p, err
}

// beside returns a stream of the device for work that its other streams wait for
// as soon as they have given it. The context is current.
func (d *dev) beside() (*stream, error) {
	if d.side != nil {
		return d.side, nil
	}
	s := &stream{dev: d, name: "beside", index: len(d.w.streams)}
	var err error
	if s.h, err = d.w.drv.NewStream(0); err != nil {
		return nil, err
	}
	d.w.streams = append(d.w.streams, s)
	d.side = s
	return s, nil
}

func (p *pushStep) run(s *stream) error {
	if p.side == nil {
		return p.copies(s, append(p.far, p.near...))
	}
	drv := p.dev.w.drv
	if err := drv.Record(p.fork, s.h); err != nil {
		return err
	}
	if err := drv.WaitEvent(p.side.h, p.fork); err != nil {
		return err
	}
	if err := p.copies(p.side, p.near); err != nil {
		return err
	}
	if err := drv.Record(p.join, p.side.h); err != nil {
		return err
	}
	if err := p.copies(s, p.far); err != nil {
		return err
	}
	return drv.WaitEvent(s.h, p.join)
}

func (p *pushStep) copies(s *stream, list []nvlib.Rect) error {
	for _, r := range list {
		var err error
		if r.Height == 1 {
			err = p.dev.w.drv.Copy(r.Dst, r.Src, r.Width, s.h, &s.args)
		} else {
			err = p.dev.w.drv.CopyRect(r, s.h)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *pushStep) free() {
	if p.side != nil && p.dev.w.cause != errClosed {
		p.dev.site.events = append(p.dev.site.events, p.fork, p.join)
		p.side = nil
	}
}
