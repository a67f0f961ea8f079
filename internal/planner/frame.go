package planner

import (
	"fmt"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// frame holds the names that are defined in one execution of a function. Since S9 of the language forbids
// shadowing, a name has only one meaning at a time within a function. Inner blocks therefore need no frames: a
// later definition of a name replaces the earlier one.
type frame struct {
	ints     map[string]int64
	tensors  map[string][]tensor // one tensor, or one for each element of an array
	streams  map[string][]int32  // plan streams
	events   map[string][]int32  // slot of the event's last record; -1 before the first record
	counters map[string]int32    // plan counter

	results  []tensor
	yielded  []tensor // the values that the last finished iteration of a loop yielded
	returned bool
}

// newFrame returns an empty frame. The maps for less common kinds of names are created when the first such name is
// defined.
func newFrame() *frame { return &frame{tensors: map[string][]tensor{}} }

func (f *frame) setInt(name string, v int64) { set(&f.ints, name, v) }

func set[V any](m *map[string]V, name string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[name] = v
}

// tensor is the meaning of a name on this rank: a range of memory, or nothing if the name is a value that exists
// only on other ranks.
type tensor struct {
	plan.Ref
	at *ir.Stmt // the return statement, if the tensor is a result
}

func absent() tensor { return tensor{Ref: plan.Absent()} }

// Var and Extent make emitter implement ir.Vars for the environment of its rank.

// Var returns the value of a loop variable or let.
func (u *emitter) Var(name string) (int64, bool) {
	v, ok := u.frame.ints[name]
	return v, ok
}

// Extent returns an extent of the tensor %name. If %name is an array, Extent returns the extent of its elements.
func (u *emitter) Extent(name string, axis int) (int64, bool) {
	ts := u.frame.tensors[name]
	if len(ts) == 0 || axis < 0 || axis >= len(ts[0].Shape) {
		return 0, false
	}
	return ts[0].Shape[axis], true
}

// index evaluates the index of a place and checks that it is less than the length of the array.
func (u *emitter) index(p *ir.Place, length int) (int, error) {
	if p.Index == nil {
		return 0, nil
	}
	u.w.stats.Exprs++
	i, err := p.Index.Eval(u.env)
	switch {
	case err != nil:
		return 0, u.errf("bind", p.Pos, "", "%s: %v", p.Index, err)
	case i < 0 || i >= int64(length):
		return 0, u.errf("bind", p.Pos, "", "index %s=%d is not in 0..%d, the elements of %%%s", p.Index, i, length, p.Name)
	}
	return int(i), nil
}

// operand returns the tensor that a place names, which may be absent on this rank.
func (u *emitter) operand(p *ir.Place) (tensor, error) {
	ts, ok := u.frame.tensors[p.Name]
	if !ok {
		return tensor{}, u.errf("scope", p.Pos, "", "%%%s is not defined on this rank", p.Name)
	}
	i, err := u.index(p, len(ts))
	if err != nil {
		return tensor{}, err
	}
	if i >= len(ts) {
		return tensor{}, u.errf("bind", p.Pos, "", "%%%s has no elements", p.Name)
	}
	if pos, gone := u.freed[ts[i].Buf]; gone && ts[i].Present() {
		return tensor{}, u.errf("lifetime", p.Pos, "move the free after the last use", "%s is used after it was "+
			"freed at %d:%d", p, pos.Line, pos.Col)
	}
	return ts[i], nil
}

// present returns the tensor that a place names, or an error if it is absent on this rank.
func (u *emitter) present(p *ir.Place) (plan.Ref, error) {
	t, err := u.operand(p)
	if err == nil && !t.Present() {
		err = u.errf("bind", p.Pos, "put the statement into an if that selects the ranks of the value's mesh",
			"%s is not on this rank", p)
	}
	return t.Ref, err
}

// stream returns the index of the stream that a place names.
func (u *emitter) stream(s *ir.Stmt, p *ir.Place) (int32, error) {
	if p.Main {
		return u.main, nil
	}
	ids, ok := u.frame.streams[p.Name]
	if !ok {
		return 0, u.errf("scope", p.Pos, "", "%%%s is not a stream", p.Name)
	}
	i, err := u.index(p, len(ids))
	if err != nil {
		return 0, err
	}
	return ids[i], nil
}

// instanceOn identifies the streams that a declaration creates when it is executed while a given stream is current. If
// a loop or another call executes the declaration again on the same stream, the existing streams are used again. Using
// a stream again only adds order, because streams are FIFOs, and makes the number of streams independent of the number
// of iterations.
type instanceOn struct {
	stmt *ir.Stmt
	elem int64
	cur  int32
}

func (u *emitter) addStream(name string, s *ir.Stmt, pos ir.Pos) (int32, error) {
	id := int32(len(u.w.p.Streams))
	if id >= maxStreams {
		return 0, u.errf("limit", pos, "", "the plan would have more than %d streams on all ranks together, the limit", maxStreams)
	}
	st := plan.Stream{Rank: int32(u.rank), Name: name}
	if s != nil {
		prio := s.Word("priority", "normal")
		st.High, st.Low = prio == "high", prio == "low"
	}
	u.w.p.Streams = append(u.w.p.Streams, st)
	u.w.tails = append(u.w.tails, tail{recorded: -1})
	return id, nil
}

// declaredStreams returns the n streams that s declares, and creates those that do not exist yet.
func (u *emitter) declaredStreams(s *ir.Stmt, name string, n int64, array bool) ([]int32, error) {
	if n > maxStreams {
		return nil, u.errf("limit", s.Pos, "", "the plan would have more than %d streams on all ranks together, the limit", maxStreams)
	}
	ids := make([]int32, max(n, 0))
	for i := range ids {
		k := instanceOn{s, int64(i), u.cur}
		id, ok := u.streams[k]
		if !ok {
			label := "%" + name
			if array {
				label = fmt.Sprintf("%%%s[%d]", name, i)
			}
			var err error
			if id, err = u.addStream(label, s, s.Pos); err != nil {
				return nil, err
			}
			u.streams[k] = id
		}
		ids[i] = id
	}
	return ids, nil
}

// workers returns the worker streams of a loop with the clause stream(n).
func (u *emitter) workers(s *ir.Stmt) ([]int32, error) {
	if s.Streams == 0 {
		return nil, nil
	}
	return u.declaredStreams(s, s.Results[0].Text, s.Streams, true)
}
