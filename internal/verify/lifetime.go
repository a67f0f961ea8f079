package verify

import "hocket.example/hocket/internal/plan"

// lifetimes checks that the lifetimes of buffers that share bytes do not overlap. The first use of a buffer in a run
// must be ordered after all uses of the buffers that occupied the same bytes before, and those buffers must not be used
// again in the run. A comparison of accesses byte by byte would not suffice: it would accept two buffers that are live
// at the same time and access different halves of the shared bytes. If one of the two buffers were cleared at the
// beginning or end of its life, the contents of the other would be destroyed.
type lifetimes struct {
	ix     *index
	pieces [][]int32 // for each buffer: its atoms
	atoms  int
	owner  [][]int32     // for each rank and atom: the buffer that owns the atom, or -1
	uses   [][]bufferUse // for each rank and buffer: the uses of the buffer
}

// bufferUse records the last uses of one rank's copy of a buffer.
type bufferUse struct {
	last  epoch   // the last use of the buffer by one stream
	more  []epoch // the last use of the buffer by each other stream that uses it
	run   int8    // the run of the buffer's last use, or -1
	ended int8    // the last run in which another buffer took over bytes of this one, or -1
}

// add records a use. Only the last use by each stream is retained.
func (u *bufferUse) add(e epoch) {
	if u.last.pos == 0 || u.last.stream == e.stream {
		u.last = e
		return
	}
	for i := range u.more {
		if u.more[i].stream == e.stream {
			u.more[i] = e
			return
		}
	}
	u.more = append(u.more, e)
}

// unknown returns a use of the buffer that is not certain to be complete according to v.
func (u *bufferUse) unknown(v *view) (epoch, bool) {
	if u.last.pos != 0 && !v.knows(u.last) {
		return u.last, true
	}
	for _, e := range u.more {
		if !v.knows(e) {
			return e, true
		}
	}
	return epoch{}, false
}

func newLifetimes(ix *index) *lifetimes {
	p := ix.p
	l := &lifetimes{ix: ix, pieces: make([][]int32, len(p.Buffers)), owner: make([][]int32, p.Ranks), uses: make([][]bufferUse, p.Ranks)}
	regions, of := make([]region, 0, len(p.Buffers)), make([]int, 0, len(p.Buffers))
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Bytes > 0 {
			regions, of = append(regions, region{space: b.Space, off: b.Offset, run: b.Bytes}), append(of, i)
		}
	}
	pieces, atoms := atomize(regions)
	for k, i := range of {
		l.pieces[i] = pieces[k]
	}
	l.atoms = atoms
	return l
}

// use records a use of the copy of buffer buf on a rank. If a use of another buffer with the same bytes is not ordered
// with this use, use returns the other buffer and its use.
func (l *lifetimes) use(v *view, me epoch, run int8, rank, buf int32) (other int32, at epoch, clash bool) {
	if l.uses[rank] == nil {
		l.start(rank)
	}
	u := &l.uses[rank][buf]
	other = -1
	if u.run < run {
		other, at = l.take(v, run, rank, buf)
		u.run, u.last, u.more = run, epoch{}, u.more[:0]
	} else if u.ended == run {
		other, at = l.taker(rank, buf)
	}
	u.add(me)
	return other, at, other >= 0
}

func (l *lifetimes) start(rank int32) {
	l.owner[rank] = make([]int32, l.atoms)
	for i := range l.owner[rank] {
		l.owner[rank][i] = -1
	}
	l.uses[rank] = make([]bufferUse, len(l.pieces))
	for i := range l.uses[rank] {
		l.uses[rank][i].run, l.uses[rank][i].ended = -1, -1
	}
}

// take makes buf the current owner of its bytes.
func (l *lifetimes) take(v *view, run int8, rank, buf int32) (other int32, at epoch) {
	other = -1
	owner := l.owner[rank]
	for _, atom := range l.pieces[buf] {
		o := owner[atom]
		owner[atom] = buf
		if o < 0 || o == buf {
			continue
		}
		u := &l.uses[rank][o]
		if u.run == run {
			u.ended = run
		}
		if e, open := u.unknown(v); open && other < 0 {
			other, at = o, e
		}
	}
	return other, at
}

// taker returns a buffer that took over bytes of buf, and the last use of that buffer.
func (l *lifetimes) taker(rank, buf int32) (int32, epoch) {
	for _, atom := range l.pieces[buf] {
		if o := l.owner[rank][atom]; o != buf && l.uses[rank][o].last.pos > 0 {
			return o, l.uses[rank][o].last
		}
	}
	return -1, epoch{}
}

// turnsKey identifies a report about the lifetimes of two buffers, so that each report is made only once.
type turnsKey struct{ siteA, siteB, bufSite int32 }

// turn records two buffers whose uses of shared bytes are not ordered.
type turn struct {
	a, b       epoch
	bufA, bufB int32
	rank       int32
	count      int
}

// overlapLives records that buffers a and b are in use at the same time.
func (m *memory) overlapLives(a epoch, bufA int32, b epoch, bufB, rank int32) {
	p := m.ix.p
	k := turnsKey{m.siteOf(a), m.siteOf(b), p.Buffers[bufB].Site}
	t := m.turns[k]
	if t == nil {
		if len(m.turns) >= maxKept {
			return
		}
		t = &turn{a: a, b: b, bufA: bufA, bufB: bufB, rank: rank}
		m.turns[k] = t
		m.turnOrder = append(m.turnOrder, t)
	}
	t.count++
}

// tellTurn returns the finding that reports the turn t.
func (m *memory) tellTurn(t *turn) Finding {
	a, b := m.ix.act(t.a), m.ix.act(t.b)
	name := func(buf int32) string { return m.ix.p.Buffers[buf].Name }
	a.What, b.What = "uses "+name(t.bufA), "uses "+name(t.bufB)
	f := Finding{
		Kind: KindReuse, Acts: []Act{a, b}, Count: t.count,
		Message: subject(m.ix, a) + " (" + place(m.ix, a) + ") and " + subject(m.ix, b) + " (" + place(m.ix, b) + ") use " +
			name(t.bufA) + " and " + name(t.bufB) + ", which share bytes although the lifetimes of the two buffers overlap",
		Help: "this is a fault of hocket's planner, not of the program: please report it",
	}
	if m.ix.cmd(a).Kind != plan.Input {
		f.Picture = picture(m.ix, a, b)
	}
	return f
}
