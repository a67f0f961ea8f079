package eval

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// transfer executes put, get, send, recv and group.
func (r *rank) transfer(s *ir.Stmt) error {
	switch s.Op {
	case ir.OpPut, ir.OpGet:
		return r.copyPeer(s)
	case ir.OpGroup:
		return r.runGroup(s)
	}
	e, err := r.end(s)
	if err != nil {
		return err
	}
	if r.group != nil {
		*r.group = append(*r.group, e)
		return nil
	}
	r.post(s, []end{e})
	return nil
}

// copyPeer issues a put or get. One side of the transfer is the peer's copy of a symmetric buffer. The peer's copy is
// looked up when all ranks have been unrolled.
func (r *rank) copyPeer(s *ir.Stmt) error {
	peer, err := r.peer(s)
	if err != nil {
		return err
	}
	from, err := r.tensor(&s.Args[0])
	if err != nil {
		return err
	}
	to, err := r.tensor(s.Into)
	if err != nil {
		return err
	}
	far := &to
	if s.Op == ir.OpGet {
		far = &from
	}
	mine := far.st
	r.m.links = append(r.m.links, func() error {
		st := mine.home.at(peer, mine.elem)
		if st == nil || !slices.Equal(st.shape, mine.shape) {
			return r.m.located(s, &finding{kind: "match", message: fmt.Sprintf("rank %d has no buffer %%%s of "+
				"shape %v, which rank %d accesses", peer, mine.name, mine.shape, r.id)})
		}
		far.st = st
		st.uses++ // counts the task as a use of the storage
		return nil
	})
	near := from
	if s.Op == ir.OpGet {
		near = to
	}
	r.issue(s, func() error {
		a, err := from.read()
		if err != nil {
			return err
		}
		if err := to.write(a); err != nil {
			return err
		}
		far.st.close()
		return nil
	}, near)
	return nil
}

// pair records one matched send and recv (S7).
type pair struct {
	sent     *array // the sender's data at the time when the sender posted
	received bool   // the receiver has posted
}

// pairKey identifies a sequence of transfers with the same team, source and destination. The sends of the sequence
// match its recvs in order.
type pairKey struct {
	team     string
	src, dst int
	seq      int64
}

type matchKey struct {
	team     string
	src, dst int
	send     bool
}

// end describes one side of a matched send and recv.
type end struct {
	stmt *ir.Stmt
	*pair
	view
	send bool
	peer int
}

func (r *rank) end(s *ir.Stmt) (end, error) {
	peer, err := r.peer(s)
	if err != nil {
		return end{}, err
	}
	v, err := r.tensor(&s.Args[0])
	if err != nil {
		return end{}, err
	}
	e := end{stmt: s, view: v, send: s.Op == ir.OpSend, peer: peer}
	k := matchKey{fmt.Sprint(r.m.b.Team([]string{s.Peer.Axis}, r.id)), r.id, peer, e.send}
	if !e.send {
		k.src, k.dst = peer, r.id
	}
	seq := r.matched[k]
	r.matched[k]++
	e.pair = entry(&r.m.pairs, pairKey{k.team, k.src, k.dst, seq}, func() *pair { return &pair{} })
	return e, nil
}

// runGroup issues the sends and recvs of a group block as one task.
func (r *rank) runGroup(s *ir.Stmt) error {
	var ends []end
	r.group = &ends
	err := r.block(s.Body)
	r.group = nil
	if err != nil {
		return err
	}
	r.post(s, ends)
	return nil
}

// post issues a task that posts all ends of transfers. The task completes when the other side of each transfer has
// been posted.
func (r *rank) post(s *ir.Stmt, ends []end) {
	var uses []view
	for _, e := range ends {
		uses = append(uses, e.view)
	}
	r.issue(s, func() error {
		for _, e := range ends {
			if err := e.arrive(); err != nil {
				return r.m.located(e.stmt, err)
			}
		}
		for _, e := range ends {
			if err := e.met(); err != nil {
				return err
			}
		}
		for _, e := range ends {
			if e.send {
				continue
			}
			if err := e.write(e.sent); err != nil {
				return r.m.located(e.stmt, err)
			}
		}
		return nil
	}, uses...)
}

func (e end) arrive() error {
	if !e.send {
		e.received = true
		return nil
	}
	if e.sent != nil {
		return nil
	}
	a, err := e.read()
	if err == nil {
		e.sent = a
	}
	return err
}

func (e end) met() error {
	switch {
	case e.send && !e.received:
		return &pending{fmt.Sprintf("rank %d to post the matching recv", e.peer)}
	case !e.send && e.sent == nil:
		return &pending{fmt.Sprintf("rank %d to post the matching send", e.peer)}
	}
	return nil
}
