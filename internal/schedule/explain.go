package schedule

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
)

// raced records the finding that an access of agent a and an earlier access to cell c are not ordered.
func (s *sim) raced(a *agent, acc, old *access, c int, does, did string) {
	edge := acc.edge() || old.edge()
	key := fmt.Sprintf("%v %p %p %d %d", edge, acc.op, old.op, acc.block, old.block)
	if s.edges[key] || len(s.edges) >= 64 {
		return
	}
	s.edges[key] = true
	f := &Finding{Kind: Race, Edge: edge}
	who := func(x *access) string {
		if x.edge() {
			return fmt.Sprintf("the stream of rank %d", int(x.comp)-len(s.blocks)-len(s.engines))
		}
		f.Places = append(f.Places, s.p.place(x.block, x.op))
		text := s.p.place(x.block, x.op).String()
		if int(x.comp) >= len(s.blocks) {
			text += " by the proxy of " + s.p.Engines[int(x.comp)-len(s.blocks)].Name
		}
		return text
	}
	when := func(x *access) string {
		switch {
		case !x.edge():
			return ""
		case x == acc:
			return " after its kernel ends"
		}
		return " before its kernel starts"
	}
	f.Message = fmt.Sprintf("%s %s %s%s while %s %s it%s", who(acc), does, s.p.cellName(s.home(c), acc.mode), when(acc),
		who(old),
		did, when(old))
	if !edge {
		s.races++
	}
	s.counterexample(f, a, acc, old)
	s.findings = append(s.findings, f)
}

// home returns the cell of the plan to which cell c of the simulation corresponds. The simulation has separate copies
// of messages for later launches, and separate halves of a double scratch.
func (s *sim) home(c int) int {
	switch {
	case c >= s.p.Cells:
		return s.p.MessageBase + (c-s.p.MessageBase)%s.messages
	case s.p.Double && c >= s.p.ScratchBase && c < s.p.MessageBase && (c-s.p.ScratchBase)/s.p.Half%2 == 1:
		return c - s.p.Half
	}
	return c
}

// counterexample describes in a few lines an interleaving in which both accesses can happen next, or the reason why an
// order in time is not sufficient.
func (s *sim) counterexample(f *Finding, a *agent, acc, old *access) {
	switch {
	case old.comp == a.comp:
		f.Lines = []string{"all threads of the block execute both, and there is no barrier (nop) between the two operations"}
		return
	case a.x.At(old.comp) >= old.tick:
		f.Lines = []string{"the first access starts after the second in time, but only relaxed signals, packets or proxies order the two:",
			"these do not make written data visible; a signal and a wait, with a barrier before and after, would"}
		return
	}
	first := *acc
	first.x = a.x // the thread of the access may know more than its block
	state, ahead := s.state(&first, old)
	f.State = state
	f.Lines = []string{"nothing orders the two accesses: this state of the thread blocks is possible, and then either access can be first"}
	for i, p := range f.State {
		if i == mostProgress {
			f.Lines = append(f.Lines, fmt.Sprintf("  and %d more blocks (--json lists them)", len(f.State)-i))
			break
		}
		f.Lines = append(f.Lines, "  "+p.String())
	}
	if len(f.State) < len(s.blocks) {
		f.Lines = append(f.Lines, "  no other block has completed an operation")
	}
	if ahead {
		f.Lines = append(f.Lines, "  a thread that signals or waits may be ahead of its block, up to the block's next barrier")
	}
}

// mostProgress limits the thread blocks whose progress a finding's lines describe.
const mostProgress = 8

// state returns an interleaving in which two unordered accesses are both next: how many operations each thread block
// has completed. In this interleaving, only those operations have been executed that precede one of the accesses in
// every interleaving. Blocks that have completed no operation are omitted, except those of the accesses, which come
// first. A block has completed an operation if all its threads have. Between two barriers the threads of a block run
// independently, so a thread that signals may have to be ahead of its block; if so, the result ahead is true.
func (s *sim) state(first, second *access) (list []Progress, ahead bool) {
	done := make([]int32, len(s.blocks)) // in ticks
	for b := range done {
		done[b] = max(first.x.At(int32(b)), second.x.At(int32(b)))
	}
	for _, acc := range []*access{first, second} {
		if acc.edge() {
			continue
		}
		p := Progress{Access: "first", b: acc.block}
		if acc == second {
			p.Access = "second"
		}
		p.Proxy = int(acc.comp) >= len(s.blocks)
		p.Place = s.p.place(acc.block, acc.op)
		list = append(list, p)
	}
	for b, t := range done {
		if t > 0 && !slices.ContainsFunc(list, func(p Progress) bool { return p.b == b }) {
			list = append(list, Progress{b: b, Place: Place{Rank: s.p.Blocks[b].Rank, Block: s.p.Blocks[b].ID}})
		}
	}
	for i := range list {
		p := &list[i]
		ops := s.p.Blocks[p.b].Ops
		t := int(done[p.b])
		p.done = t
		p.Launch = max(t-1, 0)/(len(ops)+1) + 1
		switch last := (t - 1) % (len(ops) + 1); {
		case t == 0:
		case last >= len(ops)-1 && p.Access != "" && !p.Proxy: // of its previous launch
			p.Launch++
		case last >= len(ops)-1:
			p.Ended = true
		default:
			p.Completed = ops[last+1].Index
			if p.Access == "" {
				p.Place = s.p.place(p.b, &ops[last+1])
				p.Begun = p.Place == s.p.place(p.b, &ops[last]) && ops[last].Turn == ops[last+1].Turn
			}
		}
	}
	for b, t := range done {
		ops := s.p.Blocks[b].Ops
		for i := int(t) % (len(ops) + 1); i < len(ops) && ops[i].Kind != Join && ops[i].Kind != Gather; i++ {
			ahead = ahead || len(ops[i].Lanes) > 0
		}
	}
	return list, ahead
}

// String describes the progress in one line.
func (p Progress) String() string {
	at := fmt.Sprintf("rank %d, tb %d", p.Rank, p.Block)
	text := at + " has completed "
	switch {
	case p.Ended:
		text += "all its operations"
	case p.Completed == 0:
		text += "no operation"
	case p.Completed == 1:
		text += "op 0"
	default:
		text += fmt.Sprintf("ops 0 to %d", p.Completed-1)
	}
	if p.Launch > 1 {
		text += fmt.Sprintf(" of launch %d", p.Launch)
	}
	next := strings.TrimPrefix(p.Place.String(), at+", ")
	switch {
	case p.Proxy:
		text += ", and its proxy is at " + next + ", the " + p.Access + " access"
	case p.Access != "":
		text += ", and a thread of it is at " + next + ", the " + p.Access + " access"
	case p.Begun:
		text += " and has begun " + next
	case p.Inner > 0:
		text += "; next is " + next
	}
	return text
}

// deadlocked reports whether some blocks wait forever, and records a finding that describes for what they wait.
func (s *sim) deadlocked() bool {
	var stuck []int
	for b := range s.blocks {
		if s.blocks[b].pc < len(s.p.Blocks[b].Ops) || s.blocks[b].launch+1 < s.launches {
			if s.blocks[b].pc < len(s.p.Blocks[b].Ops) {
				stuck = append(stuck, b)
			}
		}
	}
	if len(stuck) == 0 {
		return false
	}
	f := &Finding{Kind: Deadlock}
	slices.SortStableFunc(stuck, func(a, b int) int { return s.blocks[a].launch - s.blocks[b].launch })
	// Go from each waiting block to the block for which it waits, until a block occurs twice or no block can end the
	// wait.
	b, at := stuck[0], map[int]int{}
	var chain []int
	for {
		if _, again := at[b]; again {
			chain = chain[at[b]:]
			break
		}
		at[b] = len(chain)
		chain = append(chain, b)
		next := s.waker(b)
		if next < 0 || len(chain) == 64 {
			chain = chain[len(chain)-1:]
			break
		}
		b = next
	}
	for i, b := range chain {
		st := &s.blocks[b]
		o := &s.p.Blocks[b].Ops[st.pc]
		f.Places = append(f.Places, s.p.place(b, o))
		if i < 6 {
			f.Lines = append(f.Lines, fmt.Sprintf("%s waits for %s", s.p.place(b, o), s.waitsFor(b)))
		}
	}
	if len(chain) > 6 {
		f.Lines = append(f.Lines, fmt.Sprintf("and so on, in a cycle of %d blocks", len(chain)))
	}
	verb := "do"
	if len(stuck) == 1 {
		verb = "does"
	}
	f.Message = fmt.Sprintf("%s waits for ever; %d of %d blocks %s not end", f.Places[0], len(stuck), len(s.blocks),
		verb)
	if launch := s.blocks[chain[0]].launch; launch > 0 {
		f.Message += fmt.Sprintf(" launch %d", launch+1)
	}
	s.findings = append(s.findings, f)
	for i, b := range slices.Concat(chain, stuck) { // if a signal to several ranks is missing, all of them wait forever
		if c := s.blocks[b].wait.counter; c >= 0 && i < 64 && (i < len(chain) || s.waker(b) < 0) {
			s.awaited = append(s.awaited, c)
		}
	}
	return true
}

func (s *sim) waitsFor(b int) string {
	st := &s.blocks[b]
	w := st.wait
	switch {
	case w.counter >= 0:
		c := &s.counters[w.counter]
		name := s.p.Counters[w.counter].Name
		if w.value >= Never {
			return name + ", which no op of that block reports"
		}
		text := fmt.Sprintf("%s %d of %s, which has had %d", s.p.Counters[w.counter].unit(1), w.value, name, c.count())
		if s.waker(b) < 0 {
			text += ", and no operation is left that signals it"
		}
		return text
	case w.cell >= 0:
		text := "a packet in " + s.p.cellName(s.home(w.cell), Packet)
		if s.waker(b) < 0 {
			text += ", and no operation is left that writes one there"
		}
		return text
	case w.meet >= 0:
		o := &s.p.Blocks[b].Ops[st.pc]
		return fmt.Sprintf("%d blocks of rank %d to meet, of which %d have arrived", o.Size, s.p.Blocks[b].Rank,
			len(s.meets[w.meet]))
	}
	return "nothing"
}

// waker returns a waiting block that would end the wait of block b if it could end its launch, or -1 if there is none.
// Blocks of later launches do not count: the signals of a launch have to suffice for its waits.
func (s *sim) waker(b int) int {
	w := s.blocks[b].wait
	for i := range s.blocks {
		ops := s.p.Blocks[i].Ops
		if s.blocks[i].launch > s.blocks[b].launch {
			continue
		}
		for pc := s.blocks[i].pc; pc < len(ops); pc++ {
			o := &ops[pc]
			switch {
			case i == b && pc == s.blocks[i].pc:
			case w.counter >= 0 && slices.ContainsFunc(o.Lanes,
				func(l Lane) bool { return l.Kind == Add && l.Counter == w.counter }),
				w.meet >= 0 && o.Kind == Gather && o.Meet == w.meet && s.blocks[i].wait.meet != w.meet,
				w.cell >= 0 && s.writesPacket(i, o, w.cell):
				return i
			}
		}
	}
	return -1
}

func (s *sim) writesPacket(b int, o *Op, c int) bool {
	for i := range o.Moves {
		for _, sp := range o.Moves[i].To {
			sp = s.at(sp, s.blocks[b].launch)
			if sp.Mode != Plain && c >= sp.Cell && c < sp.Cell+sp.N*sp.width() {
				return true
			}
		}
	}
	return false
}

// nothing is the constant that due returns if the collective has no inputs.
const nothing = math.MaxInt

// due returns the number of cells of rank r's output that the collective defines.
func (p *Plan) due(r int, got *value) int {
	most := 0
	in := func(q int) int {
		if buf := p.buffer(q, Input); buf != nil {
			return buf.Cells
		}
		return 0
	}
	for q := range p.Ranks {
		most = max(most, in(q))
	}
	if most == 0 {
		return nothing
	}
	switch p.Collective {
	case AllReduce, AllToAll:
		return in(r)
	case ReduceScatter:
		return in(r) / p.Ranks
	case AllGather:
		return in(r) * p.Ranks
	case ToNext:
		if q := r + p.Shift; q >= 0 && q < p.Ranks {
			return in(q)
		}
	case Broadcast, SendRecv:
		if got == nil {
			return most
		}
		for q := range p.Ranks {
			if buf := p.buffer(q, Input); got.terms == nil && buf != nil && buf.Cells > 0 &&
				got.sym%p.Cells == buf.Base {
				return buf.Cells
			}
		}
	}
	return 0
}

// results compares the contents of rank r's output with the result of the collective.
func (s *sim) results(r, launch int) {
	if s.races > 0 || s.wrong >= 4 {
		return
	}
	if s.p.Collective == Undefined {
		return
	}
	out := s.p.buffer(r, Output)
	if out == nil {
		out = &Buffer{Rank: r, Kind: Output}
	}
	var first *value
	if out.Cells > 0 {
		first = s.value(out.Base)
	}
	exact := s.p.Collective == AllReduce || s.p.Collective == ReduceScatter
	if has, due := out.Cells, s.p.due(r, first); (has < due || has > due && exact) && launch == 0 {
		s.wrong++
		text := fmt.Sprintf("rank %d has %d output %s, and %s gives it %d", r, has/s.p.Parts,
			plural(has/s.p.Parts, "chunk"),
			s.p.Collective, due/s.p.Parts)
		if due == nothing {
			text = fmt.Sprintf("no rank has an input chunk, so there is nothing that %s could give", s.p.Collective)
		}
		s.findings = append(s.findings, &Finding{Kind: Wrong, Message: text})
		return
	}
	for c := 0; c < out.Cells && s.wrong < 4; c++ {
		want, any := s.wanted(r, c, launch)
		got := s.value(out.Base + c)
		if any || want != nil && got == want {
			continue
		}
		s.wrong++
		f := &Finding{Kind: Wrong, Message: fmt.Sprintf("%s after %s: %s", s.p.chunkName(out, c), s.p.Collective,
			s.difference(got, want))}
		if o, b := s.lastWriter(out.Base + c); o != nil {
			f.Places = append(f.Places, s.p.place(b, o))
			f.Lines = append(f.Lines, "last written by "+f.Places[0].String())
		} else {
			f.Lines = append(f.Lines, "no operation writes it")
		}
		s.findings = append(s.findings, f)
	}
}

// unpacked records the finding that an access reads cell c as plain data although access w wrote the cell as a packet.
func (s *sim) unpacked(acc, w *access, c int) {
	key := fmt.Sprintf("%p %p", acc.op, w.op)
	if s.edges[key] || s.wrong >= 4 {
		return
	}
	s.edges[key] = true
	s.wrong++
	reader, writer := s.p.place(acc.block, acc.op), s.p.place(w.block, w.op)
	s.findings = append(s.findings, &Finding{Kind: Wrong, Places: []Place{reader, writer}, Message: fmt.Sprintf(
		"%s reads %s as data, and %s writes packets there", reader, s.p.cellName(s.home(c), Plain), writer),
		Lines: []string{"the flags are read as data, too: use an operation that reads packets, or write plain data"}})
}

func (s *sim) lastWriter(c int) (*Op, int) {
	if w := s.cells[c].w; w != nil && !w.edge() {
		return w.op, w.block
	}
	return nil, 0
}

// wanted returns the value that cell c of rank r's output must have. The result any is true if every value is correct.
func (s *sim) wanted(r, c, launch int) (want *value, any bool) {
	p := s.p
	in := func(q, c int) *value {
		buf := p.buffer(q, Input)
		if buf == nil || c >= buf.Cells {
			return nil
		}
		return s.values.symbol(buf.Base + c + launch*p.Cells)
	}
	all := func(c int) *value {
		if v, ok := s.totals[c+launch*p.Cells]; ok {
			return v
		}
		if s.totals == nil {
			s.totals = map[int]*value{}
		}
		s.totals[c+launch*p.Cells] = nil
		terms := make([]*value, p.Ranks)
		for q := range terms {
			if terms[q] = in(q, c); terms[q] == nil {
				return nil
			}
		}
		v := s.values.sum(terms)
		s.totals[c+launch*p.Cells] = v
		return v
	}
	size := 0
	if buf := p.buffer(r, Input); buf != nil {
		size = buf.Cells
	}
	switch p.Collective {
	case AllReduce:
		return all(c), false
	case ReduceScatter:
		return all(r*p.buffer(r, Output).Cells + c), false
	case AllGather:
		if size == 0 {
			return nil, false
		}
		return in(c/size, c%size), c/size >= p.Ranks
	case AllToAll:
		k := size / p.Ranks
		if k == 0 {
			return nil, false
		}
		return in(c/k, r*k+c%k), c/k >= p.Ranks
	case Broadcast, SendRecv:
		got := s.value(p.buffer(r, Output).Base + c)
		if got.terms != nil || got.sym < launch*p.Cells || got.sym >= (launch+1)*p.Cells {
			return nil, false
		}
		q := s.source(r, c, got.sym-launch*p.Cells)
		if q < 0 {
			return nil, false
		}
		return in(q, c), false
	case ToNext:
		q := r + p.Shift
		if q < 0 || q >= p.Ranks {
			return nil, true
		}
		return in(q, c), false
	}
	return nil, true
}

// source is used for collectives in which the output of rank r is a copy of the input of one rank. source determines
// this input's rank from cell c of the output, which contains the symbol sym. In a broadcast, all ranks must have the
// same source; in a sendrecv, each rank must have a different source. source returns -1 if no rank is possible.
func (s *sim) source(r, c, sym int) int {
	if s.from == nil {
		s.from = map[int]int{}
	}
	for q := range s.p.Ranks {
		buf := s.p.buffer(q, Input)
		if buf == nil || sym != buf.Base+c {
			continue
		}
		if was, ok := s.from[r]; ok && was != q {
			return -1
		}
		for r2, q2 := range s.from {
			if r2 != r && (q2 == q) == (s.p.Collective == SendRecv) {
				return -1
			}
		}
		s.from[r] = q
		return q
	}
	return -1
}

// difference describes the contributions that got lacks and those that it has in excess, compared with want.
func (s *sim) difference(got, want *value) string {
	has := contributions(got)
	needs := map[int]int{}
	if want != nil {
		needs = contributions(want)
	}
	var lacks, surplus []string
	var keys []int
	for k := range has {
		keys = append(keys, k)
	}
	for k := range needs {
		if has[k] == 0 {
			keys = append(keys, k)
		}
	}
	sort.Ints(keys)
	for _, k := range keys {
		name := s.symbolName(k)
		switch d := has[k] - needs[k]; {
		case d < 0:
			lacks = append(lacks, name)
		case d == 1:
			surplus = append(surplus, name)
		case d > 1:
			surplus = append(surplus, fmt.Sprintf("%s (%d times too often)", name, d))
		}
	}
	brief := func(list []string) string {
		if len(list) > 4 {
			list = append(list[:4:4], fmt.Sprintf("and %d more", len(list)-4))
		}
		return strings.Join(list, ", ")
	}
	switch {
	case want == nil && len(surplus) == 1:
		return "holds " + surplus[0]
	case want == nil:
		return "holds a value that is no rank's input:  " + brief(surplus)
	case len(lacks) == 0:
		return "has too much: " + brief(surplus)
	case len(surplus) == 0:
		return "lacks " + brief(lacks)
	}
	return "lacks " + brief(lacks) + "; has instead " + brief(surplus)
}

func (s *sim) symbolName(sym int) string {
	launch, c := sym/s.p.Cells, s.home(sym%s.p.Cells)
	for i := range s.p.Buffers {
		b := &s.p.Buffers[i]
		if c < b.Base || c >= b.Base+b.Cells {
			continue
		}
		if b.Kind != Input {
			return s.p.cellName(c, Plain) + " before it is written"
		}
		break
	}
	name := s.p.cellName(c, Plain)
	if launch > 0 {
		name += fmt.Sprintf(" of launch %d", launch+1)
	}
	return name
}
