package nvfuser

import (
	"maps"

	"hocket.example/hocket/ir"
)

// In a dump, SetCurrentStream changes the current stream and GetCurrentStream captures it. This file translates
// these statements to on statements of the program. The current stream must be known at every statement; otherwise
// the dump is refused.

// streamRef refers to a stream that is current or has been captured.
type streamRef struct {
	// Equal streams have equal keys. The key is "?" if the stream is not known.
	key   string
	place ir.Place
	// why is the position of the statement that leaves the stream unknown.
	why ir.Pos
}

const (
	mainKey    = "main"
	unknownKey = "?"
	workers    = "worker"
)

func mainStream() streamRef { return streamRef{key: mainKey, place: ir.Main()} }

// streams tracks the current stream, and emits statements on it.
type streams struct {
	scalars
	cur streamRef
	// The following fields describe streams.
	names       map[string]bool      // names of the streams that GetCurrentStream captures
	captured    map[string]streamRef // the streams that are captured under these names
	limits      map[string]bool
	streamCount *ir.Expr
	changes     map[*stmt]bool
}

// current returns the stream on which the statement at pos runs.
func (t *streams) current(pos ir.Pos) streamRef {
	if t.cur.key != unknownKey {
		return t.cur
	}
	d := t.errorf(pos, "the current stream of this statement differs between iterations of the loop")
	d.Notes = append(d.Notes, ir.Note{Pos: t.cur.why, Message: "the current stream after this differs from that " +
		"before it"})
	d.Help = "put a SetCurrentStream before the statement"
	t.cur = mainStream() // reported only once
	return t.cur
}

// resolve returns the stream to which a name or index refers. A name that GetCurrentStream has defined refers to the
// captured stream, even if the name looks like a number: early dumps print the captured stream as "Stream 0", which is
// not the stream with index 0.
func (t *streams) resolve(n streamName) streamRef {
	if n.name != "" && t.names[n.name] {
		if ref, ok := t.captured[n.name]; ok {
			return t.settled(n, ref)
		}
		d := t.errorf(n.pos, "Stream %s is used before the GetCurrentStream that captures it", n.name)
		d.Help = "move the GetCurrentStream up"
		return mainStream()
	}
	if n.index == nil {
		return t.fresherStream(n)
	}
	e := t.expr(n.index)
	t.countStream(n.index)
	at := ir.At(workers, e)
	at.Pos = n.pos
	return streamRef{key: workers + " " + e.String(), place: at}
}

// settled reports an error if ref, the captured stream with the name n, is a different stream on different paths of
// execution.
func (t *streams) settled(n streamName, ref streamRef) streamRef {
	if ref.key != unknownKey {
		return ref
	}
	d := t.errorf(n.pos, "Stream %s refers to different streams in different iterations or branches", n.name)
	d.Notes = append(d.Notes, ir.Note{Pos: ref.why, Message: "not every path through this captures the same stream"})
	d.Help = "put a GetCurrentStream before the statement"
	t.captured[n.name] = mainStream() // reported only once
	return mainStream()
}

// fresherStream declares a stream that the dump identifies only by its address.
func (t *streams) fresherStream(n streamName) streamRef {
	name := "stream_" + n.name
	t.declareStream(name, nil, n.pos)
	return streamRef{key: name, place: place(name, n.pos)}
}

// countStream increases the length of the array of streams so that it contains an index.
func (t *streams) countStream(s *scalar) {
	limit := t.streamLimit(s)
	if limit == nil {
		t.errorf(s.pos, "this index does not determine the number of streams").Help =
			"use an index like ( i % " + numberOfStreams + " ), a loop variable or a number"
		return
	}
	text := limit.String()
	if !t.limits[text] {
		t.limits[text] = true
		t.streamCount = maxOf(t.streamCount, limit)
	}
}

// maxOf returns an expression for the maximum of have and e. If have is nil, it returns e.
func maxOf(have, e *ir.Expr) *ir.Expr {
	if have == nil {
		return e
	}
	return bin(ir.ExprMax, have, e)
}

// streamLimit returns an upper bound of an index of a stream. The bound is an expression that can be evaluated at
// the beginning of the function.
func (t *streams) streamLimit(s *scalar) *ir.Expr {
	budget := maxInline
	if r := t.rangeOf(s, &budget); r.hasHi && r.hasLo && r.lo >= 0 {
		return num(s.pos, r.hi+1)
	}
	var bound *scalar
	switch l := t.loop(s.name); {
	case s.op == "%":
		bound = s.args[1]
	case s.op == "" && t.defs[s.name] != nil && t.defs[s.name].op == "%":
		bound = t.defs[s.name].args[1]
	case s.op == "" && l != nil:
		bound = l.hi
	default:
		return nil
	}
	global := true
	bound.names(func(x *scalar) { global = global && (x.name == numberOfStreams || t.symbols[x.name] != nil) })
	if !global {
		return nil
	}
	return t.expr(bound)
}

// findNames collects the names that GetCurrentStream defines.
func (t *streams) findNames() {
	t.d.everyStmt(func(s *stmt) {
		if s.kind == stGetStream && s.stream.name != "" {
			t.names[s.stream.name] = true
		}
	})
}

// changesStreams reports whether s, or a statement that it contains, sets the current stream.
func (t *streams) changesStreams(s *stmt) bool {
	if c, known := t.changes[s]; known {
		return c
	}
	c := s.kind == stSetStream || s.kind == stGetStream
	for _, list := range [][]*stmt{s.body, s.alt} {
		for _, x := range list {
			c = t.changesStreams(x) || c
		}
	}
	t.changes[s] = c
	return c
}

// walkState records the current stream while statements are traversed without being translated. Streams are compared
// only by their keys. The key "in" represents the stream that is current at the start.
type walkState struct {
	key      string
	captured map[string]string
	// used is the position of the first statement that runs on the stream that is current at the start.
	used ir.Pos
}

const entryKey = "in"

// follow determines the current stream at each statement of a loop's body, beginning with the first.
func (t *streams) follow(list []*stmt) walkState {
	w := walkState{key: entryKey, captured: map[string]string{}}
	for name, ref := range t.captured {
		w.captured[name] = ref.key
	}
	t.walk(&w, list)
	return w
}

func (t *streams) walk(w *walkState, list []*stmt) {
	for _, s := range list {
		switch s.kind {
		case stSetStream:
			w.key = t.keyOf(w, s.stream)
		case stGetStream:
			w.use(s)
			w.captured[s.stream.name] = w.key
		case stFor:
			t.walkBranches(w, s.body, nil)
		case stIf:
			t.walkBranches(w, s.body, s.alt)
		case stAlias, stShard, stSlice, stDeallocate, stShareHandles, stStartGroup:
		case stAllocate:
			if s.zero {
				w.use(s)
			}
		default:
			w.use(s)
		}
	}
}

func (w *walkState) use(s *stmt) {
	if w.key == entryKey && !w.used.Valid() {
		w.used = s.pos
	}
}

// walkBranches determines the current stream in both branches of a conditional, and joins the resulting states.
func (t *streams) walkBranches(w *walkState, a, b []*stmt) {
	other := walkState{key: w.key, captured: maps.Clone(w.captured), used: w.used}
	t.walk(w, a)
	t.walk(&other, b)
	if !w.used.Valid() {
		w.used = other.used
	}
	if w.key != other.key {
		w.key = unknownKey
	}
	for name, key := range other.captured {
		if w.captured[name] != key {
			w.captured[name] = unknownKey
		}
	}
}

func (t *streams) keyOf(w *walkState, n streamName) string {
	if n.name != "" && t.names[n.name] {
		return w.captured[n.name]
	}
	if n.index == nil {
		return "stream_" + n.name
	}
	return workers + " of " + n.index.String()
}

// enterLoop checks that the body of a loop begins with the same current stream in every iteration in which it uses
// that stream. It returns the current stream after the loop.
func (t *streams) enterLoop(s *stmt) (after streamRef) {
	if !t.changesStreams(s) {
		return t.cur
	}
	w := t.follow(s.body)
	t.recaptured(s, &w)
	if w.key == entryKey || w.key == t.cur.key {
		return t.cur
	}
	unknown := streamRef{key: unknownKey, why: s.pos}
	if w.used.Valid() {
		d := t.errorf(w.used, "the current stream of this statement depends on the iteration: in the first it is "+
			"another than in later ones")
		d.Notes = append(d.Notes, ir.Note{Pos: s.pos, Message: "the current stream after an iteration of this " +
			"loop differs from that before it"})
		d.Help = "begin or end the loop's body with SetCurrentStream"
	}
	return unknown
}

// recaptured marks as unknown the streams that were captured before a loop and that the loop's body captures again
// under the same names. With such a name, the first iteration would use the stream captured before the loop, while
// later iterations and later statements would use the stream captured in the body.
func (t *streams) recaptured(s *stmt, w *walkState) {
	for name, ref := range t.captured {
		key := w.captured[name]
		if key == entryKey {
			key = t.cur.key
		}
		if key != ref.key {
			t.captured[name] = streamRef{key: unknownKey, why: s.pos}
		}
	}
}

// eitherWay returns the captured streams that are the same after both branches of a conditional.
func (t *streams) eitherWay(s *stmt, a, b map[string]streamRef) map[string]streamRef {
	out := cloneRefs(a)
	for name, ref := range b {
		if mine, both := a[name]; !both || mine.key != ref.key {
			out[name] = streamRef{key: unknownKey, why: s.pos}
		}
	}
	for name := range a {
		if _, both := b[name]; !both {
			out[name] = streamRef{key: unknownKey, why: s.pos}
		}
	}
	return out
}
