package nvfuser

import (
	"maps"

	"hocket.example/hocket/ir"
)

// The state machine of SetCurrentStream and GetCurrentStream becomes on: which
// stream is current is known at every statement, or the program is refused.

// streamRef is a stream that is current, or captured.
type streamRef struct {
	// key is equal for equal streams; "?" where it is not known which it is.
	key   string
	place ir.Place
	// why says where an unknown one comes from.
	why ir.Pos
}

const (
	mainKey    = "main"
	unknownKey = "?"
	workers    = "worker"
)

func mainStream() streamRef { return streamRef{key: mainKey, place: ir.Main()} }

// streams follows which stream is the current one, and emits statements on it.
type streams struct {
	scalars
	cur streamRef
	// Streams.
	names       map[string]bool      // that GetCurrentStream gives
	captured    map[string]streamRef // what they stand for
	limits      map[string]bool
	streamCount *ir.Expr
	changes     map[*stmt]bool
}

// current returns the current stream for a statement at pos that runs on it.
func (t *streams) current(pos ir.Pos) streamRef {
	if t.cur.key != unknownKey {
		return t.cur
	}
	d := t.errorf(pos, "which stream is current here depends on the iteration")
	d.Notes = append(d.Notes, ir.Note{Pos: t.cur.why, Message: "this leaves another stream current than it finds"})
	d.Help = "a SetCurrentStream must stand in front of it"
	t.cur = mainStream() // said once
	return t.cur
}

// resolve returns the stream that a name or index means. A name that
// GetCurrentStream gave means what it captured, even where it looks like a
// number: early dumps print the captured stream as "Stream 0", and that is not
// the stream with index 0.
func (t *streams) resolve(n streamName) streamRef {
	if n.name != "" && t.names[n.name] {
		if ref, ok := t.captured[n.name]; ok {
			return t.settled(n, ref)
		}
		d := t.errorf(n.pos, "Stream %s is captured by GetCurrentStream, but not before this", n.name)
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

// settled refuses a captured stream that depends on the way that was taken.
func (t *streams) settled(n streamName, ref streamRef) streamRef {
	if ref.key != unknownKey {
		return ref
	}
	d := t.errorf(n.pos, "which stream Stream %s is depends on the iteration or the branch", n.name)
	d.Notes = append(d.Notes, ir.Note{Pos: ref.why, Message: "not every way through this captures the same one"})
	d.Help = "a GetCurrentStream must stand in front of it"
	t.captured[n.name] = mainStream() // said once
	return mainStream()
}

// fresherStream declares a stream that is known by its address only.
func (t *streams) fresherStream(n streamName) streamRef {
	name := "stream_" + n.name
	t.declareStream(name, nil, n.pos)
	return streamRef{key: name, place: place(name, n.pos)}
}

// countStream makes the array of streams long enough for an index.
func (t *streams) countStream(s *scalar) {
	limit := t.streamLimit(s)
	if limit == nil {
		t.errorf(s.pos, "how many streams there are cannot be told from this index").Help =
			"an index like ( i % " + numberOfStreams + " ), a loop variable or a number says it"
		return
	}
	text := limit.String()
	if !t.limits[text] {
		t.limits[text] = true
		t.streamCount = maxOf(t.streamCount, limit)
	}
}

// maxOf returns the greater of what is there and e.
func maxOf(have, e *ir.Expr) *ir.Expr {
	if have == nil {
		return e
	}
	return bin(ir.ExprMax, have, e)
}

// streamLimit returns a bound of an index that is known at the function's top.
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

// findNames collects the names that GetCurrentStream gives.
func (t *streams) findNames() {
	t.d.everyStmt(func(s *stmt) {
		if s.kind == stGetStream && s.stream.name != "" {
			t.names[s.stream.name] = true
		}
	})
}

// changesStreams reports whether s or what it contains sets the current stream.
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

// walkState follows the state machine through statements without translating
// them. Keys suffice: "in" is what the walk begins with.
type walkState struct {
	key      string
	captured map[string]string
	// used is the first statement that runs on what the walk began with.
	used ir.Pos
}

const entryKey = "in"

// follow walks a loop's body from its entry.
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

// walkBranches walks two ways through the program and joins them.
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

// enterLoop checks that a loop's body begins with the same current stream in every iteration that needs it, and
// returns the current stream after the loop.
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
		d := t.errorf(w.used, "the current stream here depends on the iteration: the first finds another than those behind it")
		d.Notes = append(d.Notes, ir.Note{Pos: s.pos, Message: "the loop leaves another stream current than it finds"})
		d.Help = "the loop's body must begin, or end, with SetCurrentStream"
	}
	return unknown
}

// recaptured forgets what was captured before a loop whose body captures another stream: the first iteration finds the
// former, the others and later statements the latter.
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

// eitherWay keeps what two branches captured alike.
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
