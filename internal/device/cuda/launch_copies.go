package cuda

import (
	"fmt"

	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/nvlib"
)

// copiesStep is a step with the copies that a team member makes by copy engines. Some copies run on the member's own
// stream, and others on additional streams.
type copiesStep struct {
	dev   *dev
	own   []nvlib.Rect  // copies on the member's own stream
	sides []*sideCopies // copies on additional streams
	fork  nvlib.Event
}

// sideCopies holds the list of copies that run on one additional stream.
type sideCopies struct {
	list []nvlib.Rect
	side *stream
	join nvlib.Event
}

// push returns the step that makes the copies c of a member.
func (m *member) push(c coll.Copies) (*copiesStep, error) {
	p := &copiesStep{dev: m.dev, own: c.Own}
	for k, list := range c.Beside {
		side, err := m.sideStream(k)
		if err != nil {
			return nil, err
		}
		p.sides = append(p.sides, &sideCopies{list: list, side: side})
	}
	return p, p.takeEvents()
}

func (p *copiesStep) takeEvents() error {
	if len(p.sides) == 0 {
		return nil
	}
	return p.dev.bound(func() (err error) {
		for _, b := range p.sides {
			if b.join, err = p.dev.site.clock.Event(false); err != nil {
				return err
			}
		}
		p.fork, err = p.dev.site.clock.Event(false)
		return err
	})
}

// sideStream returns the member's additional stream number k. Whenever work is issued to it, the member's own stream
// waits for that work. Teams do not share additional streams. If they did, the copies of one team, which wait for
// peers, could delay copies of another team for which these peers wait.
func (m *member) sideStream(k int) (*stream, error) {
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

func (p *copiesStep) run(s *stream) error {
	drv := p.dev.w.drv
	if len(p.sides) > 0 {
		if err := drv.Record(p.fork, s.h); err != nil {
			return err
		}
	}
	for _, b := range p.sides {
		if err := drv.WaitEvent(b.side.h, p.fork); err != nil {
			return err
		}
		if err := strided.CopyRects(drv, b.list, b.side.h, &b.side.args); err != nil {
			return err
		}
		if err := drv.Record(b.join, b.side.h); err != nil {
			return err
		}
	}
	if err := strided.CopyRects(drv, p.own, s.h, &s.args); err != nil {
		return err
	}
	for _, b := range p.sides {
		if err := drv.WaitEvent(s.h, b.join); err != nil {
			return err
		}
	}
	return nil
}

func (p *copiesStep) free() {
	if len(p.sides) == 0 || p.dev.w.cause == errClosed {
		return
	}
	events := []nvlib.Event{p.fork}
	for _, b := range p.sides {
		events = append(events, b.join)
	}
	p.dev.site.clock.Free(events...)
	p.sides = nil
}
