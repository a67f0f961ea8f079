// Package program converts collective schedules to programs of hocket.
package program

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/schedule"
)

// Of returns a schedule as the text of a program, or an error that names the first operation that a program cannot
// express.
//
// The cells of a rank are in one symmetric buffer, with E elements for each cell. Thread blocks and port channels
// become streams. A stream executes its operations in order, so the program has an order even where the schedule does
// not order the threads of a block. Channels, semaphores and barriers of blocks become counters. A packet also becomes
// a counter, which is raised after the packet's data are written. The program has barriers of all ranks at the
// beginning and at the end, so that consecutive runs do not interfere. If ranks have inputs or outputs of different
// sizes, the blocks of the parameter or result have the largest size; the additional elements of an input are not read,
// and those of an output are zero.
func Of(p *schedule.Plan) (string, error) {
	if p.Fault != nil {
		return "", fmt.Errorf("%s", p.Fault.Message)
	}
	w := &writer{p: p, elements: map[element]int{}, taken: map[int]int{}, takers: map[int]int{}, posters: map[int]int{},
		turns: map[[2]int]int{}, users: map[int][]int{}, waits: map[int]int{}, raisers: map[int]int{}}
	if err := w.memory(); err != nil {
		return "", err
	}
	var bodies []string
	for rank := range p.Ranks {
		body, err := w.rank(rank)
		if err != nil {
			return "", err
		}
		bodies = append(bodies, body)
	}
	return w.file(bodies), nil
}

// element is the map key of an element of the program's counter array. The element represents a counter of the
// schedule, a packet, or a block that meets other blocks.
type element struct {
	kind      byte
	of, block int
}

type writer struct {
	p       *schedule.Plan
	owner   []int  // for each cell: the rank in whose memory the cell is, -1 for none
	local   []int  // for each cell: index of the cell in the memory of its rank
	size    []int  // for each rank: number of cells
	sides   [2]int // maximum numbers of cells of a rank's input and output
	written []bool

	elements map[element]int
	raisers  map[int]int // for each element: the rank that raises the element
	waits    map[int]int // for each counter: the rank that waits for the counter
	taken    map[int]int // for each counter: number of signals taken so far
	takers   map[int]int // for each counter: the block that takes its signals
	posters  map[int]int // for each engine: the block that posts to it
	turns    map[[2]int]int
	users    map[int][]int // for each barrier: the blocks that meet at it

	// The following fields describe the current rank.
	text    strings.Builder
	stream  int // the stream whose on block is open; -1 for none
	streams []int
	most    int // maximum number of streams of a rank
	names   int
}

// memory assigns to each cell a location in the memory of its rank. A message is located on the rank that reads it.
func (w *writer) memory() error {
	p := w.p
	w.owner, w.local, w.size = make([]int, p.Cells), make([]int, p.Cells), make([]int, p.Ranks)
	w.written = make([]bool, p.Cells)
	for c := range w.owner {
		w.owner[c] = -1
	}
	for _, b := range p.Buffers {
		for c := b.Base; c < b.Base+b.Cells; c++ {
			w.owner[c] = b.Rank
			w.written[c] = w.written[c] || b.Kind == schedule.Input
		}
	}
	for i, b := range p.Buffers[:2*p.Ranks] {
		w.sides[i%2] = max(w.sides[i%2], b.Cells)
	}
	for k := range p.Blocks {
		rank := p.Blocks[k].Rank
		for i := range p.Blocks[k].Ops {
			o := &p.Blocks[k].Ops[i]
			for _, m := range o.Moves {
				for _, sp := range m.From {
					w.have(sp, rank)
				}
				for _, sp := range m.To {
					for c := sp.Cell; c < sp.Cell+sp.N*width(sp); c++ {
						w.written[c] = true
					}
				}
			}
			for _, l := range o.Lanes {
				if l.Kind == schedule.Take || l.Kind == schedule.Await {
					w.waits[l.Counter] = rank
				}
			}
			if o.Kind == schedule.Gather && !slices.Contains(w.users[o.Meet], k) {
				w.users[o.Meet] = append(w.users[o.Meet], k)
			}
		}
	}
	for c, rank := range w.owner {
		if rank >= 0 {
			w.local[c] = w.size[rank]
			w.size[rank]++
		}
	}
	return nil
}

// have assigns the cells of a message, which belong to no rank yet, to the given rank.
func (w *writer) have(sp schedule.Span, rank int) {
	for c := sp.Cell; c < sp.Cell+sp.N*width(sp); c++ {
		if w.owner[c] < 0 {
			w.owner[c] = rank
		}
	}
}

func width(sp schedule.Span) int {
	if sp.Mode == schedule.Plain {
		return 1
	}
	return 2
}

// element returns the number of an element of the counter array, which the rank of block k raises.
func (w *writer) element(of element) int {
	n, ok := w.elements[of]
	if !ok {
		n = len(w.elements)
		w.elements[of] = n
	}
	return n
}

// rank returns the statements that a rank executes.
func (w *writer) rank(rank int) (string, error) {
	w.text.Reset()
	w.stream, w.streams, w.names = -1, nil, 0
	for k := range w.p.Blocks {
		b := &w.p.Blocks[k]
		if b.Rank != rank {
			continue
		}
		for i := range b.Ops {
			if err := w.op(k, &b.Ops[i]); err != nil {
				o := &b.Ops[i]
				at := schedule.Place{Rank: b.Rank, Block: b.ID, Index: o.Index, Inner: o.Inner + 1, Name: o.Name}
				return "", fmt.Errorf("%s: %w", at, err)
			}
		}
	}
	w.close()
	for i := range w.streams {
		fmt.Fprintf(&w.text, "    wait %%s[%d]\n", i)
	}
	w.most = max(w.most, len(w.streams))
	return w.text.String(), nil
}

// on directs the following statements to a stream: that of the block with number of or, if of is negative, that of the
// engine with number -1-of. The stream starts after the preceding work on main.
func (w *writer) on(of int) {
	i := slices.Index(w.streams, of)
	first := i < 0
	if first {
		i = len(w.streams)
		w.streams = append(w.streams, of)
	}
	if w.stream == i {
		return
	}
	w.close()
	w.stream = i
	fmt.Fprintf(&w.text, "    on %%s[%d] {\n", i)
	if first {
		w.say("wait main")
	}
}

func (w *writer) close() {
	if w.stream >= 0 {
		w.text.WriteString("    }\n")
	}
	w.stream = -1
}

func (w *writer) say(format string, args ...any) {
	fmt.Fprintf(&w.text, "      "+format+"\n", args...)
}

func (w *writer) op(k int, o *schedule.Op) error {
	switch o.Kind {
	case schedule.Join: // the operations of a stream are already ordered
		return nil
	case schedule.Gather:
		return w.gather(k, o)
	}
	for i := range o.Moves {
		if err := w.move(k, &o.Moves[i]); err != nil {
			return err
		}
	}
	for i := range o.Lanes {
		if err := w.lane(k, &o.Lanes[i]); err != nil {
			return err
		}
	}
	return nil
}

// gather emits a barrier of several blocks of a rank: each block raises its own element and waits for the elements of
// the other blocks.
func (w *writer) gather(k int, o *schedule.Op) error {
	users := w.users[o.Meet]
	switch n := len(users); {
	case n < o.Size:
		return fmt.Errorf("the barrier is for %d blocks, but the number of blocks that use it is %d, so it never ends",
			o.Size, n)
	case n > o.Size:
		return fmt.Errorf("the barrier is for %d blocks, but %d blocks use it: which of them meet depends on timing, and in a "+
			"program each wait names the stream or counter that it waits for", o.Size, n)
	}
	w.on(k)
	w.turns[[2]int{o.Meet, k}]++
	rank := w.p.Blocks[k].Rank
	w.say("signal %%c[%d] at r[%d]", w.element(element{'b', o.Meet, k}), rank)
	for _, other := range users {
		if other != k {
			w.say("wait %%c[%d] >= %d", w.element(element{'b', o.Meet, other}), w.turns[[2]int{o.Meet, k}])
		}
	}
	return nil
}

func (w *writer) lane(k int, l *schedule.Lane) error {
	rank := w.p.Blocks[k].Rank
	n := l.Value
	switch l.Kind {
	case schedule.Add:
		at, waited := w.waits[l.Counter]
		if l.Engine >= 0 {
			if err := w.engine(k, l.Engine); err != nil {
				return err
			}
		} else {
			w.on(k)
		}
		if !waited {
			return nil
		}
		return w.raise(element{kind: 'c', of: l.Counter}, rank, at)
	case schedule.Flush:
		w.on(k)
		if i := slices.Index(w.streams, -1-l.Engine); i >= 0 {
			w.say("wait %%s[%d]", i)
		}
		return nil
	case schedule.Take:
		if by, ok := w.takers[l.Counter]; ok && by != k {
			return fmt.Errorf("blocks %d and %d both wait for signals of %s: which block gets which signal depends on "+
				"timing, but in a program it must not", w.p.Blocks[by].ID, w.p.Blocks[k].ID,
				w.p.Counters[l.Counter].Name)
		}
		w.takers[l.Counter] = k
		w.taken[l.Counter]++
		n = w.taken[l.Counter]
	case schedule.Await:
		if n >= schedule.Never {
			return fmt.Errorf("it waits for ever, so its program cannot be proved")
		}
	}
	w.on(k)
	if n -= w.p.Counters[l.Counter].Init; n > 0 {
		w.say("wait %%c[%d] >= %d", w.element(element{kind: 'c', of: l.Counter}), n)
	}
	return nil
}

// raise emits a signal that raises an element of another rank's counter.
func (w *writer) raise(of element, rank, at int) error {
	i := w.element(of)
	if by, ok := w.raisers[i]; ok && by != rank {
		return fmt.Errorf("ranks %d and %d both signal the counter for which rank %d waits, but in a program only one rank "+
			"raises an element of a counter", by, rank, at)
	}
	w.raisers[i] = rank
	w.say("signal %%c[%d] at r[%d]", i, at)
	return nil
}

// engine directs the following statements to an engine's stream, after the preceding work of the block.
func (w *writer) engine(k, e int) error {
	if by, ok := w.posters[e]; ok && by != k {
		return fmt.Errorf("blocks %d and %d both use %s: the order of its tasks depends on timing, but in a program it must not",
			w.p.Blocks[by].ID, w.p.Blocks[k].ID, w.p.Engines[e].Name)
	}
	w.posters[e] = k
	w.on(k)
	block := w.stream
	w.on(-1 - e)
	w.say("wait %%s[%d]", block)
	return nil
}

// move emits a move. Packets are moved element by element, because each packet has a separate counter.
func (w *writer) move(k int, m *schedule.Move) error {
	plain := true
	w.on(k)
	for _, list := range [][]schedule.Span{m.From, m.To} {
		for _, sp := range list {
			plain = plain && sp.Mode == schedule.Plain
		}
	}
	for _, sp := range m.From {
		for j := 0; sp.Mode == schedule.Packet && j < sp.N; j++ {
			w.say("wait %%c[%d] >= 1", w.element(element{kind: 'p', of: sp.Cell + 2*j}))
		}
	}
	if m.Engine >= 0 {
		if err := w.engine(k, m.Engine); err != nil {
			return err
		}
	}
	rank, n, step := w.p.Blocks[k].Rank, m.To[0].N, m.To[0].N
	if !plain {
		step = 1
	}
	for j := 0; j < n; j += step {
		part := func(list []schedule.Span) (out []place) {
			for _, sp := range list {
				w.have(sp, rank)
				c := sp.Cell + j*width(sp)
				out = append(out, place{w.owner[c], w.local[c], step, c, sp.Mode != schedule.Plain})
			}
			return out
		}
		w.sum(rank, part(m.From), part(m.To))
		for _, to := range part(m.To) {
			if to.packet {
				if err := w.raise(element{kind: 'p', of: to.cell}, rank, to.rank); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// place describes n cells of a rank's memory.
type place struct {
	rank, at, n, cell int
	packet            bool
}

// name begins a statement that defines a new name, and returns the name.
func (w *writer) name() string {
	w.names++
	return fmt.Sprintf("%%v%d", w.names)
}

func (w *writer) view(p place) string {
	v := w.name()
	w.say("%s = slice %%m, axis=0, %d*E..%d*E", v, p.at, p.at+p.n)
	return v
}

// sum emits the statements that compute the sum of the places in from, in the memory of any ranks, and write it to the
// places in to.
func (w *writer) sum(rank int, from, to []place) {
	temporary := func() string {
		v := w.name()
		w.say("%s = alloc f32[%d*E]", v, from[0].n)
		return v
	}
	near := func(p place) string { // returns p, or the name of a copy in this rank's memory if p is remote
		v := w.view(p)
		if p.rank == rank {
			return v
		}
		t := temporary()
		w.say("get %s at r[%d] into %s", v, p.rank, t)
		return t
	}
	if len(from) == 1 && from[0].rank != rank && len(to) == 1 && to[0].rank == rank {
		a, d := w.view(from[0]), w.view(to[0])
		w.say("get %s at r[%d] into %s", a, from[0].rank, d)
		return
	}
	total := near(from[0])
	for i, p := range from[1:] {
		into := total
		if i == 0 {
			into = temporary()
		}
		w.say("add %s, %s into %s", total, near(p), into)
		total = into
	}
	for _, p := range to {
		switch d := w.view(p); {
		case p.rank != rank:
			w.say("put %s into %s at r[%d]", total, d, p.rank)
		case len(from) > 1 || p.at != from[0].at || from[0].rank != rank:
			w.say("copy %s into %s", total, d)
		}
	}
}

// file returns the text of the program that contains the statements of all ranks.
func (w *writer) file(bodies []string) string {
	p, name := w.p, identifier(w.p.Name)
	in, out := w.sides[0], w.sides[1]
	var b strings.Builder
	fmt.Fprintf(&b, "// %s on %d ranks.\n", strings.TrimPrefix(name, "schedule_"), p.Ranks)
	fmt.Fprintf(&b, "dim E = 4  // elements of a part of a chunk\nmesh r[%d]\n\n", p.Ranks)
	x, y := fmt.Sprintf("%%x: f32[%d*E/r]", in*p.Ranks), fmt.Sprintf("f32[%d*E/r]", out*p.Ranks)
	refines := ""
	if lines := w.meaning(in, out); lines != nil {
		refines = fmt.Sprintf(" refines %s", p.Collective)
		fmt.Fprintf(&b, "func %s(%s) -> %s {\n  %s\n  return %%y\n}\n\n", p.Collective, x, y,
			strings.Join(lines, "\n  "))
	}
	fmt.Fprintf(&b, "func %s(%s) -> %s%s {\n", name, x, y, refines)
	fmt.Fprintf(&b, "  %%m = alloc f32[%d*E] symmetric\n", max(1, slices.Max(w.size)))
	if len(w.elements) > 0 {
		fmt.Fprintf(&b, "  %%c = counter[%d]\n", len(w.elements))
	}
	if w.most > 0 {
		fmt.Fprintf(&b, "  %%s = stream[%d]\n", w.most)
	}
	fmt.Fprintf(&b, "  %%y = alloc f32[%d*E] zero\n", out)
	b.WriteString("  %px = local %x\n")
	for r := range p.Ranks {
		if n := p.Buffers[2*r].Cells; n > 0 {
			at := w.local[p.Buffers[2*r].Base]
			fmt.Fprintf(&b, "  if rank(r) == %d {\n    %%from = slice %%px, axis=0, 0*E..%d*E\n", r, n)
			fmt.Fprintf(&b, "    %%in = slice %%m, axis=0, %d*E..%d*E\n    copy %%from into %%in\n  }\n", at, at+n)
		}
	}
	b.WriteString("  barrier over=r  // peers have finished the previous run\n")
	for r, body := range bodies {
		if body != "" {
			fmt.Fprintf(&b, "  if rank(r) == %d {\n%s  }\n", r, body)
		}
	}
	b.WriteString("  barrier over=r\n")
	for r := range p.Ranks {
		fmt.Fprintf(&b, "  if rank(r) == %d {\n", r)
		buf := p.Buffers[2*r+1]
		for lo := 0; lo < buf.Cells; { // cells that are not written are zero
			hi := lo
			for hi < buf.Cells && w.written[buf.Base+hi] == w.written[buf.Base+lo] {
				hi++
			}
			if at := w.local[buf.Base+lo]; w.written[buf.Base+lo] {
				fmt.Fprintf(&b, "    %%from%d = slice %%m, axis=0, %d*E..%d*E\n", lo, at, at+hi-lo)
				fmt.Fprintf(&b, "    %%to%d = slice %%y, axis=0, %d*E..%d*E\n    copy %%from%d into %%to%d\n", lo, lo,
					hi, lo, lo)
			}
			lo = hi
		}
		b.WriteString("  }\n")
	}
	b.WriteString("  return %y\n}\n")
	return b.String()
}

// meaning returns the statements that compute the collective on values, or nil if the language has no such operation.
func (w *writer) meaning(in, out int) []string {
	n := w.p.Ranks
	for i, b := range w.p.Buffers[:2*n] {
		if b.Cells != w.sides[i%2] {
			return nil
		}
	}
	last := fmt.Sprintf("%%y: f32[%d*E/r] = reshape %%t, shape=(%d*E)", out*n, out*n)
	switch w.p.Collective {
	case schedule.AllReduce:
		if in == out {
			return []string{fmt.Sprintf("%%a = reshape %%x, shape=(%d, %d*E)", n, in), "%s = sum %a, axis=0",
				fmt.Sprintf("%%t: f32[%d/r, %d*E] = broadcast %%s, shape=(%d, %d*E)", n, in, n, in), last}
		}
	case schedule.AllGather:
		if in*n == out {
			return []string{fmt.Sprintf("%%a = reshape %%x, shape=(1, %d*E)", out),
				fmt.Sprintf("%%t: f32[%d/r, %d*E] = broadcast %%a, shape=(%d, %d*E)", n, out, n, out), last}
		}
	case schedule.ReduceScatter:
		if in == out*n {
			return []string{fmt.Sprintf("%%a = reshape %%x, shape=(%d, %d*E)", n, in),
				fmt.Sprintf("%%y: f32[%d*E/r] = sum %%a, axis=0", in)}
		}
	case schedule.AllToAll:
		if in == out && in%n == 0 {
			return []string{fmt.Sprintf("%%a: f32[%d, %d*E] = reshape %%x, shape=(%d, %d*E)", n*n, in/n, n*n, in/n),
				fmt.Sprintf("%%b = reshape %%a, shape=(%d, %d, %d*E)", n, n, in/n), "%t = transpose %b, perm=(1, 0, 2)",
				last}
		}
	}
	return nil
}

// identifier converts the name of a schedule to a name that is valid in programs.
func identifier(name string) string {
	text := []byte("schedule_")
	for _, c := range []byte(name[:min(len(name), 60)]) {
		if c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			c = '_'
		}
		text = append(text, c)
	}
	return string(text)
}
