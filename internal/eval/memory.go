package eval

import (
	"fmt"

	"hocket.example/hocket/ir"
)

// memory executes alloc, free, stream, event, counter and let.
func (r *rank) memory(s *ir.Stmt) error {
	switch s.Op {
	case ir.OpFree:
		v, err := r.tensor(&s.Args[0])
		if err == nil {
			v.st.freed = true
		}
		return err
	case ir.OpLet:
		v, err := r.eval(s.Exprs[0])
		r.names[s.Results[0].Text] = &binding{index: v}
		return err
	}
	n, err := r.count(s)
	if err != nil {
		return err
	}
	b := &binding{name: s.Results[0].Text}
	r.names[b.name] = b
	switch s.Op {
	case ir.OpAlloc:
		return r.alloc(s, b, n)
	case ir.OpStream:
		for i := range n {
			b.streams = append(b.streams, r.newStream(elementName(s, b.name, i)))
		}
	case ir.OpEvent:
		for range n {
			b.events = append(b.events, &event{})
		}
	case ir.OpCounter:
		b.counter = entry(&r.frame.counters, s, func() *counters { return &counters{name: b.name, ranks: map[int][]int64{}} })
		b.counter.ranks[r.id] = make([]int64, n)
	}
	return nil
}

// count evaluates the length of a declared array. Each element counts as one executed statement.
func (r *scope) count(s *ir.Stmt) (int64, error) {
	if s.Count == nil {
		return 1, nil
	}
	n, err := r.eval(s.Count)
	if err == nil && n < 0 {
		err = fmt.Errorf("an array cannot have %d elements", n)
	}
	for i := int64(0); i < n && err == nil; i++ {
		err = r.m.step(s)
	}
	return n, err
}

func elementName(s *ir.Stmt, name string, i int64) string {
	if s.Count == nil {
		return "%" + name
	}
	return fmt.Sprintf("%%%s[%d]", name, i)
}

func (r *rank) alloc(s *ir.Stmt, b *binding, n int64) error {
	t := r.m.b.Info.Results[s][0].Type
	shape, err := r.m.b.GlobalShape(t, r.env)
	if err != nil {
		return err
	}
	home := entry(&r.frame.allocs, s, func() *allocation { return &allocation{ranks: map[int][]*storage{}} })
	for i := range n {
		st := &storage{m: r.m, name: b.name, rank: r.id, dt: t.DType, shape: shape, home: home, elem: i}
		home.ranks[r.id] = append(home.ranks[r.id], st)
		b.views = append(b.views, st.all())
		if s.Flags&ir.Zero != 0 {
			r.issue(s, st.zero, st.all())
		}
	}
	return nil
}

// counters is one array of counters, with a copy on every rank. All elements of one array are made by one execution of
// a counter statement.
type counters struct {
	name  string
	ranks map[int][]int64
}

// order executes wait, record, signal and barrier.
func (r *rank) order(s *ir.Stmt) error {
	switch s.Op {
	case ir.OpBarrier:
		return r.collective(s)
	case ir.OpRecord:
		b := r.names[s.Args[0].Name]
		i, err := r.element(&s.Args[0], len(b.events))
		if err != nil {
			return err
		}
		k := r.cur.mark()
		b.events[i].last = &k
		return nil
	case ir.OpSignal:
		return r.signal(s)
	}
	b := r.names[s.Args[0].Name]
	switch {
	case s.Args[0].Main || b.streams != nil:
		st, err := r.stream(&s.Args[0])
		if err != nil {
			return err
		}
		r.issue(s, st.mark().reached)
		return nil
	case b.counter != nil:
		return r.waitCounter(s, b.counter)
	}
	i, err := r.element(&s.Args[0], len(b.events))
	if err != nil {
		return err
	}
	k := b.events[i].last
	if k == nil {
		return &finding{"match", fmt.Sprintf("rank %d waits for the event %%%s, which no earlier statement records",
			r.id, s.Args[0].Name),
			"put the record statement before the wait"}
	}
	r.issue(s, k.reached)
	return nil
}

// stream returns the stream that the place p names.
func (r *queues) stream(p *ir.Place) (*stream, error) {
	if p.Main {
		return r.main, nil
	}
	b := r.names[p.Name]
	i, err := r.element(p, len(b.streams))
	if err != nil {
		return nil, err
	}
	return b.streams[i], nil
}

// peer evaluates the peer in "at AXIS[e]", "to …" and "from …".
func (r *scope) peer(s *ir.Stmt) (int, error) {
	i, err := r.eval(s.Peer.Index)
	if err != nil {
		return 0, err
	}
	p, ok := r.m.b.Peer(s.Peer.Axis, i, r.id)
	if !ok {
		return 0, &finding{kind: "bind", message: fmt.Sprintf("rank %d has no peer %s[%d]: the index is outside "+
			"the axis", r.id, s.Peer.Axis, i)}
	}
	return p, nil
}

// signal issues a task that increments the peer's counter (S12).
func (r *rank) signal(s *ir.Stmt) error {
	peer, err := r.peer(s)
	if err != nil {
		return err
	}
	c := r.names[s.Args[0].Name].counter
	i, err := r.element(&s.Args[0], len(c.ranks[r.id]))
	if err != nil {
		return err
	}
	r.m.links = append(r.m.links, func() error {
		if i >= len(c.ranks[peer]) {
			return r.m.located(s, &finding{kind: "match", message: fmt.Sprintf("rank %d signals %%%s[%d] of rank "+
				"%d, which does not declare this counter", r.id, c.name, i, peer)})
		}
		return nil
	})
	r.issue(s, func() error {
		c.ranks[peer][i]++
		return nil
	})
	return nil
}

func (r *rank) waitCounter(s *ir.Stmt, c *counters) error {
	i, err := r.element(&s.Args[0], len(c.ranks[r.id]))
	if err != nil {
		return err
	}
	least, err := r.eval(s.Exprs[0])
	if err != nil {
		return err
	}
	r.issue(s, func() error {
		if have := c.ranks[r.id][i]; have < least {
			return &pending{fmt.Sprintf("%%%s[%d] to reach %d; it is %d", c.name, i, least, have)}
		}
		return nil
	})
	return nil
}
