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

func (a copyAlgorithm) supports(t *team, tune device.Tuning, c *collective) error {
	if c.empty() {
		return nil
	}
	_, err := a.plan(t, tune, c)
	return err
}

func (copyAlgorithm) plan(t *team, tune device.Tuning, c *collective) (*movePlan, error) {
	if tune.Blocks|tune.Threads|tune.Unroll != 0 {
		return nil, fmt.Errorf("%w: copy engines are not tuned", device.ErrUnsupported)
	}
	return enginePlan(t, tune, c)
}

// enginePlan is that of stores, but nothing may have to be copied first, and rows
// have to be such as copy engines take.
func enginePlan(t *team, tune device.Tuning, c *collective) (*movePlan, error) {
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
		st, err := m.pushes(&p.moves[i])
		if err != nil {
			return nil, err
		}
		steps[i] = []step{around[0], st, around[1]}
	}
	return steps, nil
}

// pushStep is what a member does on its own stream, and copies beside that.
type pushStep struct {
	dev    *dev
	own    []nvlib.Rect  // copies on its own stream
	beside []*besideStep // copies on others
	fork   nvlib.Event
}

// besideStep is copies on a stream of their own.
type besideStep struct {
	list []nvlib.Rect
	side *stream
	join nvlib.Event
}

// pushes makes the copies of a share. Those to others are on the member's own
// stream; what it keeps is copied beside.
func (m *member) pushes(share *kernels.Move) (*pushStep, error) {
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
	p := &pushStep{dev: m.dev}
	if m.team.draft != nil {
		return p, nil
	}
	if len(lists) > 0 {
		p.own, lists = lists[0], lists[1:]
	}
	for k, list := range lists {
		side, err := m.beside(k)
		if err != nil {
			return nil, err
		}
		p.beside = append(p.beside, &besideStep{list: list, side: side})
	}
	return p, p.takeEvents()
}

func (p *pushStep) takeEvents() error {
	if len(p.beside) == 0 {
		return nil
	}
	return p.dev.bound(func() (err error) {
		for _, b := range p.beside {
			if b.join, err = p.dev.site.newEvent(false); err != nil {
				return err
			}
		}
		p.fork, err = p.dev.site.newEvent(false)
		return err
	})
}

// beside returns one of the member's streams for work that its own waits for as soon
// as it has given it. Teams have none in common: copies of one that wait for its
// peers would hold up those that the peers of another wait for.
func (m *member) beside(k int) (*stream, error) {
	d := m.dev
	for len(m.sides) <= k {
		if n := len(d.sides) - 1; n >= 0 {
			m.sides, d.sides = append(m.sides, d.sides[n]), d.sides[:n]
			continue
		}
		s, err := d.newStream(fmt.Sprint("beside ", len(m.sides)), 0)
		if err != nil {
			return nil, err
		}
		s.engine = true
		m.sides = append(m.sides, s)
	}
	return m.sides[k], nil
}

func (p *pushStep) run(s *stream) error {
	drv := p.dev.w.drv
	if len(p.beside) > 0 {
		if err := drv.Record(p.fork, s.h); err != nil {
			return err
		}
	}
	for _, b := range p.beside {
		if err := drv.WaitEvent(b.side.h, p.fork); err != nil {
			return err
		}
		if err := p.copies(b.side, b.list); err != nil {
			return err
		}
		if err := drv.Record(b.join, b.side.h); err != nil {
			return err
		}
	}
	if err := p.copies(s, p.own); err != nil {
		return err
	}
	for _, b := range p.beside {
		if err := drv.WaitEvent(s.h, b.join); err != nil {
			return err
		}
	}
	return nil
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
	if len(p.beside) == 0 || p.dev.w.cause == errClosed {
		return
	}
	events := []nvlib.Event{p.fork}
	for _, b := range p.beside {
		events = append(events, b.join)
	}
	p.dev.site.events = append(p.dev.site.events, events...)
	p.beside = nil
}
