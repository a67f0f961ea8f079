package planner

import (
	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// ordering emits the commands that order streams: waits, records and signals.
type ordering struct {
	*emitter
	waited map[[2]int32]int32 // for (waiting stream, recording stream): the last slot for which the first has waited
}

// order executes wait, record, signal and barrier.
func (u *unroller) order(s *ir.Stmt) error {
	switch s.Op {
	case ir.OpBarrier:
		return u.barrier(s)
	case ir.OpSignal:
		return u.signal(s)
	case ir.OpRecord:
		return u.recordEvent(s)
	}
	return u.wait(s)
}

func (u *ordering) wait(s *ir.Stmt) error {
	p := &s.Args[0]
	if slots, ok := u.frame.events[p.Name]; ok && !p.Main {
		return u.waitEvent(s, p, slots)
	}
	if id, ok := u.frame.counters[p.Name]; ok && !p.Main {
		return u.waitCounter(s, p, id)
	}
	on, err := u.stream(s, p)
	if err != nil {
		return err
	}
	return u.waitStream(s, u.cur, on)
}

// waitStream makes the stream waiter wait for all commands that have been issued to the stream on. The commands include
// those of earlier runs, so a wait is emitted even if no command has been issued to that stream in this run (S13).
func (u *ordering) waitStream(s *ir.Stmt, waiter, on int32) error {
	if waiter == on {
		return nil
	}
	slot, err := u.record(s, on)
	if err != nil {
		return err
	}
	return u.waitSlot(s, waiter, slot)
}

// record returns an event slot that records the work issued to the stream so far. If no command was issued since the
// last record, it returns the slot of the last record.
func (u *ordering) record(s *ir.Stmt, stream int32) (int32, error) {
	t := &u.w.tails[stream]
	if t.recorded == t.issued {
		return t.slot, nil
	}
	slot := int32(u.w.p.Events)
	if err := u.emitOn(stream, s, plan.Cmd{Kind: plan.Record, Event: slot}); err != nil {
		return 0, err
	}
	u.w.p.Events++
	u.w.slotFrom = append(u.w.slotFrom, stream)
	t.recorded, t.slot = t.issued, slot
	return slot, nil
}

// waitSlot makes the stream waiter wait for an event slot. The slots of a stream are numbered in issue order, so no
// command is emitted if waiter has already waited for a later slot.
func (u *ordering) waitSlot(s *ir.Stmt, waiter, slot int32) error {
	from := u.w.slotFrom[slot]
	if from == waiter {
		return nil
	}
	k := [2]int32{waiter, from}
	if last, ok := u.waited[k]; ok && last >= slot {
		return nil
	}
	u.waited[k] = slot
	return u.emitOn(waiter, s, plan.Cmd{Kind: plan.WaitEvent, Event: slot})
}

func (u *ordering) recordEvent(s *ir.Stmt) error {
	p := &s.Args[0]
	i, err := u.index(p, len(u.frame.events[p.Name]))
	if err != nil {
		return err
	}
	slot, err := u.record(s, u.cur)
	if err == nil {
		u.frame.events[p.Name][i] = slot
	}
	return err
}

// waitEvent emits a wait for the most recent record of an event, in the order in which the host issues commands.
func (u *ordering) waitEvent(s *ir.Stmt, p *ir.Place, slots []int32) error {
	i, err := u.index(p, len(slots))
	if err != nil {
		return err
	}
	if slots[i] < 0 {
		return u.errf("structure", p.Pos, "put the record statement above the wait", "this waits for the event "+
			"%s, which no statement above records", p)
	}
	return u.waitSlot(s, u.cur, slots[i])
}

// counterElem returns a counter's index in the plan and the element that a place names.
func (u *ordering) counterElem(p *ir.Place) (id, elem int32, err error) {
	id, ok := u.frame.counters[p.Name]
	if !ok {
		return 0, 0, u.errf("scope", p.Pos, "", "%%%s is not a counter", p.Name)
	}
	i, err := u.index(p, int(u.w.p.Counters[id].Len))
	if err == nil && i >= int(u.w.p.Counters[id].Len) {
		err = u.errf("bind", p.Pos, "", "%%%s has no elements", p.Name)
	}
	return id, int32(i), err
}

func (u *ordering) waitCounter(s *ir.Stmt, p *ir.Place, id int32) error {
	_, elem, err := u.counterElem(p)
	if err != nil {
		return err
	}
	if len(s.Exprs) == 0 {
		return u.errf("structure", s.Pos, "wait "+p.String()+" >= 1", "the wait for a counter has no least value")
	}
	v, err := u.eval(s, s.Exprs[0])
	if err != nil || v <= 0 { // the value of a counter is never below 0, so this wait needs no command
		return err
	}
	return u.emit(s, plan.Cmd{Kind: plan.WaitCounter, Counter: id, Elem: elem, Value: v})
}

func (u *ordering) signal(s *ir.Stmt) error {
	id, elem, err := u.counterElem(&s.Args[0])
	if err != nil {
		return err
	}
	peer, err := u.peer(s)
	if err != nil {
		return err
	}
	c := &u.w.p.Counters[id]
	slot := int(peer)*int(c.Len) + int(elem)
	if r := &u.w.raisers[id][slot]; *r < 0 {
		*r = int32(u.rank)
	} else if *r != int32(u.rank) {
		return u.errf("match", s.Pos, "use a separate counter element for each rank that signals",
			"on rank %d, %s is signalled by rank %d and by rank %d, but only one rank may signal an element of a "+
				"counter", peer, s.Args[0], *r, u.rank)
	}
	c.PerRun[slot]++
	return u.emit(s, plan.Cmd{Kind: plan.Signal, Counter: id, Elem: elem, Peer: peer})
}

// peer returns the rank that "at AXIS[e]" addresses: its coordinate along the axis is e, and its other coordinates are
// those of this rank.
func (u *emitter) peer(s *ir.Stmt) (int32, error) {
	v, err := u.eval(s, s.Peer.Index)
	if err != nil {
		return 0, err
	}
	r, ok := u.w.b.Peer(s.Peer.Axis, v, u.rank)
	if !ok {
		size, _ := u.w.b.AxisSize(s.Peer.Axis)
		return 0, u.errf("bind", s.Peer.Pos, "", "%s[%s=%d] is not a rank: the axis has the coordinates 0 to %d", s.Peer.Axis, s.Peer.Index, v, size-1)
	}
	return int32(r), nil
}
