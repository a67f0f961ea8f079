package planner

import (
	"slices"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// declarations executes the statements that declare buffers, streams, events, counters and lets.
type declarations struct{ *emitter }

// declare executes alloc, free, stream, event, counter and let.
func (u *declarations) declare(s *ir.Stmt) error {
	switch s.Op {
	case ir.OpLet:
		v, err := u.eval(s, s.Exprs[0])
		if err != nil {
			return err
		}
		u.frame.setInt(s.Results[0].Text, v)
		return nil
	case ir.OpFree:
		t, err := u.operand(&s.Args[0])
		if err == nil && t.Present() {
			u.freed[t.Buf] = s.Pos
		}
		return err
	case ir.OpAlloc:
		return u.alloc(s)
	}
	n, err := u.count(s)
	if err != nil {
		return err
	}
	name := s.Results[0].Text
	switch s.Op {
	case ir.OpStream:
		var ids []int32
		ids, err = u.declaredStreams(s, name, n, s.Count != nil)
		set(&u.frame.streams, name, ids)
	case ir.OpEvent:
		if err = u.spend(&u.w.instances, n, maxBuffers, "buffers and events", s.Pos); err == nil {
			set(&u.frame.events, name, slices.Repeat([]int32{-1}, int(n)))
		}
	case ir.OpCounter:
		var id int32
		id, err = u.counter(s, name, n)
		set(&u.frame.counters, name, id)
	}
	return err
}

// count returns the length of a declared array, or 1 for a declaration without a length.
func (u *emitter) count(s *ir.Stmt) (int64, error) {
	if s.Count == nil {
		return 1, nil
	}
	n, err := u.eval(s, s.Count)
	if err == nil && n < 0 {
		err = u.errf("bind", s.Pos, "", "the length of an array is %s=%d, but it cannot be negative", s.Count, n)
	}
	return n, err
}

// counter declares a counter on this rank. If the length of the counter differs from that on an earlier rank, it
// returns an error.
func (u *declarations) counter(s *ir.Stmt, name string, n int64) (int32, error) {
	k := instance{u.path(), s, 0}
	id, ok := u.w.counters[k]
	if ok {
		if have := int64(u.w.p.Counters[id].Len); have != n {
			return 0, u.errf("match", s.Pos, "", "%%%s has %d elements on this rank and %d on an earlier rank", name, n, have)
		}
		return id, nil
	}
	ranks := int64(u.w.b.Ranks)
	if n > maxCounters/ranks {
		return 0, u.errf("limit", s.Pos, "", "the plan would have more than %d counter elements, the limit", maxCounters)
	}
	if err := u.spend(&u.w.counterElems, n*ranks, maxCounters, "counter elements", s.Pos); err != nil {
		return 0, err
	}
	id = int32(len(u.w.p.Counters))
	u.w.counters[k] = id
	u.w.p.Counters = append(u.w.p.Counters,
		plan.Counter{Name: u.label(name), Len: int32(n), PerRun: make([]int64, n*ranks)})
	u.w.raisers = append(u.w.raisers, slices.Repeat([]int32{-1}, int(n*ranks)))
	return id, nil
}

// alloc creates one buffer for each element of the declared array.
func (u *declarations) alloc(s *ir.Stmt) error {
	n, err := u.count(s)
	if err != nil {
		return err
	}
	if d := u.w.b.CheckStmt(s, u.env); d != nil {
		d.Message += u.where()
		return d
	}
	sym := u.w.b.Info.Results[s][0]
	shape, err := u.w.b.LocalShape(sym.Type, u.env)
	if err != nil {
		return u.errf("bind", s.Pos, "", "%v", err)
	}
	if n > maxBuffers {
		return u.spend(&u.w.instances, n, maxBuffers, "buffers and events", s.Pos)
	}
	ts := make([]tensor, 0, n)
	for i := range n {
		name := s.Results[0].Text
		if s.Count != nil {
			name += "[" + iterPath([]int64{i}) + "]"
		}
		r, err := u.newBuffer(s, i, name, plan.RoleAlloc, sym.Type.DType, shape)
		if err != nil {
			return err
		}
		ts = append(ts, tensor{Ref: r})
		if s.Flags&ir.Zero == 0 {
			continue
		}
		zero := plan.Cmd{Kind: plan.Compute, Op: ir.OpFill, Outs: []plan.Ref{r},
			Attr: ir.Attrs{Numbers: []ir.Number{ir.Whole(0)}}}
		if err := u.emit(s, zero); err != nil {
			return err
		}
	}
	u.frame.tensors[s.Results[0].Text] = ts
	return nil
}

// newBuffer returns this rank's copy of the buffer for element elem that s creates in the current iteration. The
// copies of all ranks belong to the same plan.Buffer, whose size is the largest that any rank needs.
func (u *emitter) newBuffer(s *ir.Stmt, elem int64, name string, role plan.Role, dt ir.DType, shape []int64) (plan.Ref,
	error) {
	r := plan.Ref{Rank: int32(u.rank), DType: dt, Shape: shape, Strides: rowMajor(shape)}
	bytes := r.Bytes()
	if bytes > maxBytes {
		return r, u.errf("limit", s.Pos, "", "%%%s would need %d bytes, but a buffer can have at most %d", name, bytes,
			int64(maxBytes))
	}
	k := instance{u.path(), s, elem}
	id, ok := u.w.buffers[k]
	if !ok {
		if err := u.spend(&u.w.instances, 1, maxBuffers, "buffers and events", s.Pos); err != nil {
			return r, err
		}
		id = int32(len(u.w.p.Buffers))
		u.w.buffers[k] = id
		b := plan.Buffer{Name: u.label(name), Site: u.w.site(s), Role: role, First: -1, Last: -1, Bytes: bytes}
		b.Symmetric = s.Op == ir.OpAlloc && s.Flags&ir.Symmetric != 0
		if s.Op == ir.OpAlloc && s.Flags&ir.Host != 0 {
			b.Space = plan.Host
		}
		u.w.p.Buffers = append(u.w.p.Buffers, b)
	}
	r.Buf = id
	b := &u.w.p.Buffers[id]
	if b.Symmetric && b.Bytes != bytes {
		return r, u.errf("match", s.Pos, "", "symmetric buffer %%%s has %d bytes on this rank and %d on an earlier rank", name,
			bytes, b.Bytes)
	}
	b.Bytes = max(b.Bytes, bytes)
	return r, nil
}

// label returns a name with the values of the loop variables of the current iteration: "%p@3".
func (u *emitter) label(name string) string {
	if len(u.iter) == 0 {
		return "%" + name
	}
	return "%" + name + "@" + iterPath(u.iter)
}

// rowMajor returns the strides of a dense tensor.
func rowMajor(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	next := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = next
		next *= max(shape[i], 1)
	}
	return strides
}
