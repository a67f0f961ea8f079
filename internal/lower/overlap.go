package lower

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// Choice records the strategy with which a pair was lowered.
type Choice struct {
	Pair Pair
	// Strategy is the strategy that was applied, which may differ from the one that the chooser returned. Predictions
	// use the applied strategy.
	Strategy Strategy
	// Why gives the reason if the applied strategy differs from the chooser's; otherwise it is empty.
	Why string
}

// overlap replaces pairs of a collective and GEMMs by statements that run the collective and the GEMMs concurrently.
// The chooser selects the strategy for each pair. The new statements use buffers; claims at the end define the values
// with their original names.
func overlap(u *unit) error {
	if u.choose == nil {
		return nil
	}
	mesh := newMeshes(u.prog).main.axisNames()
	for _, f := range u.prog.Funcs {
		o := &overlapper{unit: u, fn: f, names: namesOf(f), mesh: mesh, differs: differing(f)}
		first := len(u.log)
		o.block(f.Body, always)
		takeCredits(f.Body, o.exchanges)
		slices.SortStableFunc(u.log[first:], func(a, b Entry) int { return comparePos(a.Pos, b.Pos) })
	}
	slices.SortStableFunc(u.choices, func(a, b Choice) int { return comparePos(a.Pair.Pos, b.Pair.Pos) })
	if u.buckets != nil {
		if err := delay(u); err != nil {
			return err
		}
	}
	slices.SortStableFunc(u.alone, func(a, b ir.Note) int { return comparePos(a.Pos, b.Pos) })
	return nil
}

func comparePos(a, b ir.Pos) int {
	return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
}

type overlapper struct {
	*unit
	fn    *ir.Func
	names *names
	mesh  []string // the main mesh's axes
	// differs holds the names that let statements define and whose values differ between ranks.
	differs map[string]bool
	// carried holds the values that the loops around the current block carry from one iteration to the next.
	carried []ir.Name
	// exchanges lists the exchanged pairs of the function.
	exchanges []*exchanged
}

// block lowers the pairs in b and in its nested blocks. It skips blocks whose current stream is not main, because a
// "wait main" in them would wait for work that is not related to the pair.
func (o *overlapper) block(b *ir.Block, at when) {
	if b == nil {
		return
	}
	scalesLater(b)
	f := newPairFinder(o, b, at)
	strategies := o.reductions(f)
	w := &walker{overlapper: o, finder: f, strategies: strategies, todo: slices.Clone(b.Stmts), done: map[*ir.Stmt][]*ir.Stmt{}}
	b.Stmts = o.ahead(w.walk())
}

// reductions selects the strategies of the pairs whose collective is last: a reduction, or a gather whose result no
// GEMM uses. It records in owned the statements of the regions that will be replaced.
func (o *overlapper) reductions(f *pairFinder) map[*region]Strategy {
	out := map[*region]Strategy{}
	consumed := f.consumed()
	for _, s := range f.stmts {
		if !f.overMain(s) || consumed[s] {
			continue
		}
		r, why := f.producers(s)
		switch {
		case s.Op == ir.OpAllGather && (r == nil || slices.ContainsFunc(r.body, func(x *ir.Stmt) bool { return consumed[x] })):
			continue // startsAt records the reason why this gather is not lowered as a pair
		case r == nil:
			o.leave(f, s, why)
			continue
		}
		into, mine := f.shared, append(slices.Clone(r.body), s)
		if st := o.decide(r); st.Kind != Sequential {
			if st.Kind == Exchange && r.other != nil {
				r = r.other
				mine = append(slices.Clone(r.body), s)
				o.choices[len(o.choices)-1].Pair = r.Pair
			}
			out[r] = st
			into, mine = f.owned, append(mine, r.post...)
		}
		for _, x := range mine {
			into[x] = r
		}
	}
	return out
}

// decide calls the chooser and returns its strategy, or Sequential if that strategy cannot be applied to r.
func (o *overlapper) decide(r *region) Strategy {
	want := o.choose(&r.Pair)
	c := Choice{Pair: r.Pair, Strategy: want}
	if why := r.Refused[want.Kind]; why != "" {
		c.Strategy, c.Why = Strategy{}, fmt.Sprintf("%s does not apply: %s", want.Kind, why)
	}
	c.Strategy.Ragged = c.Strategy.Kind == Exchange && r.Comm == ir.OpAllReduce && (want.Ragged || r.Undivided)
	if c.Strategy.Ahead && !r.gathers() {
		c.notAhead()
	}
	o.choices = append(o.choices, c)
	o.note(o.fn, r.Pos, r.Value, r.From, r.To, c.text())
	r.choice, r.entry = len(o.choices)-1, len(o.log)-1
	return c.Strategy
}

// text returns the text of a choice for the log.
func (c *Choice) text() string {
	text := fmt.Sprintf("%s: %s", &c.Pair, c.Strategy)
	if c.Why != "" {
		text += "; " + c.Why
	}
	if c.Strategy.Kind == Exchange {
		text += "; main waits for its stream even if other waits imply that, as graphs require"
	}
	return text
}

// notAhead clears Ahead in the strategy of the choice. notAhead is called if the blocks cannot be sent ahead, so that
// the choice describes the statements that were emitted.
func (c *Choice) notAhead() {
	c.Pair.Ahead, c.Strategy.Ahead = false, false
	c.Why = "ahead does not apply: no preceding pair is computed while the blocks of this gather could be sent"
	if c.Pair.Comm != ir.OpAllGather || c.Pair.Before {
		c.Why = "ahead does not apply: only the blocks of a gather can be sent early"
	}
}

// settle records whether the blocks of an exchanged gather are sent ahead. settle does nothing if the strategy does not
// set Ahead.
func (o *overlapper) settle(x *exchanged) {
	c := &o.choices[x.choice]
	c.Pair.Ahead, c.Pair.Whole = x.behind != nil, x.departs.asOne
	if !c.Pair.Ahead {
		c.notAhead()
		o.log[x.entry].Why = c.text()
	}
}

// leave records a collective that is not part of a pair, and the reason why.
func (o *overlapper) leave(f *pairFinder, s *ir.Stmt, why string) {
	o.note(o.fn, s.Pos, s.Results[0].Text, f.info.Operands[s][0].Type, f.typeOf(s), s.Op.String()+": sequential; "+why)
	o.alone = append(o.alone, ir.Note{Pos: s.Pos, Message: s.Op.String() + ": " + why})
}

// walker visits the statements of one block in order.
type walker struct {
	*overlapper
	finder     *pairFinder
	strategies map[*region]Strategy
	todo       []*ir.Stmt
	// done maps the collective of a region to the statements that replace the region.
	done map[*ir.Stmt][]*ir.Stmt
	// departed is the most recent exchanged gather of whole blocks, or nil if there was none.
	departed *region
}

func (w *walker) walk() []*ir.Stmt {
	var out []*ir.Stmt
	for i := 0; i < len(w.todo); {
		s := w.todo[i]
		if stmts := w.done[s]; stmts != nil {
			w.finder.emitted(s)
			out = append(out, stmts...)
			i++
			continue
		}
		if r, st := w.startsAt(s); r != nil {
			i = w.replace(i, r, st)
			continue
		}
		if (s.Op == ir.OpFor && s.Streams == 0) || s.Op == ir.OpIf {
			at := w.inside(s, w.finder.when)
			w.carried = append(w.finder.carried, s.Carry...)
			w.block(s.Body, at)
			w.block(s.Else, at)
			w.carried = w.finder.carried
		}
		out = append(out, s)
		i++
	}
	return out
}

// startsAt returns the region to be lowered whose first statement is s.
func (w *walker) startsAt(s *ir.Stmt) (*region, Strategy) {
	if r := w.finder.owned[s]; r != nil {
		return r, w.strategies[r]
	}
	if s.Op != ir.OpAllGather || !w.finder.overMain(s) || w.finder.shared[s] != nil {
		return nil, Strategy{}
	}
	r, why := w.finder.consumers(s)
	if r == nil {
		w.leave(w.finder, s, why)
		return nil, Strategy{}
	}
	r.Ahead, r.Whole = w.canGoAhead(r), r.Rows == 0
	st := w.decide(r)
	if st.Kind == Sequential {
		return nil, Strategy{}
	}
	if st.Kind == Exchange {
		w.finder.takeScales(r)
	}
	return r, st
}

// replace puts the statements that replace r, whose first statement is todo[i], between the intermediate statements
// that do not need r's results and those that do. It returns the position from which the walk continues.
func (w *walker) replace(i int, r *region, st Strategy) int {
	var before, after []*ir.Stmt
	ours := map[string]bool{}
	end := i
	for ; ; end++ {
		s := w.todo[end]
		switch {
		case r.in[s]:
			ours[s.Results[0].Text] = true
		case w.needs(s, ours):
			after = append(after, s)
			for _, x := range slices.Concat(w.done[s], []*ir.Stmt{s}) {
				for _, y := range x.Results {
					ours[y.Text] = true
				}
			}
		default:
			before = append(before, s)
		}
		if s == r.last {
			break
		}
	}
	for _, s := range slices.Concat(r.body, []*ir.Stmt{r.comm}, r.post) {
		delete(w.finder.owned, s)
	}
	w.finder.take(r)
	w.done[r.comm] = w.lower(r, st)
	seq := slices.Concat(before, []*ir.Stmt{r.comm}, after)
	from := end + 1 - len(seq)
	copy(w.todo[from:], seq)
	return from
}

// needs reports whether s, or its replacement, uses one of the values.
func (w *walker) needs(s *ir.Stmt, values map[string]bool) bool {
	found := false
	for _, x := range slices.Concat(w.done[s], []*ir.Stmt{s}) {
		mentions(x, func(n string) { found = found || values[n] })
	}
	return found
}

// lower returns the statements that implement r with strategy st.
func (w *walker) lower(r *region, st Strategy) []*ir.Stmt {
	e := &emitter{overlapper: w.overlapper, finder: w.finder, region: r}
	switch {
	case st.Kind == Chunked && r.Before:
		e.chunkedGatherBehind(ir.Int(st.Chunks))
	case r.Before:
		e.exchangeGatherBehind(st.Parts())
	case st.Kind == Chunked && r.gathers():
		e.chunkedGather(ir.Int(st.Chunks))
	case st.Kind == Chunked:
		e.chunkedReduce(ir.Int(st.Chunks))
	case r.gathers():
		e.exchangeGather(st)
	default:
		e.exchangeReduce(st)
	}
	first := r.comm
	if !r.gathers() {
		first = r.body[0]
	}
	leadOf(first, e.out[0])
	if x := e.entered; x != nil {
		x.first, x.last, x.ahead = e.out[0], e.out[len(e.out)-1], st.Ahead
		x.choice, x.entry = r.choice, r.entry
		if x.departs != nil {
			w.departed = r
		}
	}
	return e.out
}
