package verify

import (
	"fmt"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// memory finds conflicting accesses. An atom is a largest set of bytes such that each tensor covers either all or none
// of these bytes. For each atom of each rank, memory stores the last write and the reads since that write, as epochs. A
// new read must be ordered after the stored write, and a new write after the stored write and reads. If all earlier
// accesses were ordered, a comparison with the stored epochs finds the same conflicts as a comparison with all earlier
// accesses.
//
// For each atom, memory also stores the buffer whose contents the atom holds. If an atom was written through one buffer
// and is read through another, or was never written, the read is a fault even if all accesses are ordered.
type memory struct {
	ix      *index
	regions []region
	pieces  [][]int32 // for each region: its atoms
	atoms   int
	access  []access
	opens   []int32 // for each command: index of the command's first access
	cells   [][]cell
	crowds  [][]epoch // for atoms that several streams read: the further reads; entry 0 is always empty

	races  map[raceKey]*race
	order  []*race // the races, in the order of their discovery
	blanks map[blankKey]*blank
	unread []*blank

	lives     *lifetimes
	turns     map[turnsKey]*turn
	turnOrder []*turn
}

// access describes how a command accesses one of its tensors.
type access struct {
	region, rank, buf int32
	write             bool
}

// cell holds the state of one atom on one rank.
type cell struct {
	write epoch
	read  epoch
	more  int32 // index in crowds of further reads since the write, or 0 if there are none
	owner int32 // buffer through which the atom was last written, or one of these constants:
}

const (
	nobody   int32 = -1 // the atom was never written
	somebody int32 = -2 // the atom may have been written: the bytes of an access are over-approximated
)

type raceKey struct {
	siteA, siteB int32
	writeA       bool
	writeB       bool
	bufSite      int32
}

// race describes two conflicting accesses that are not ordered.
type race struct {
	a, b   epoch
	writeA bool
	writeB bool
	bufA   int32
	bufB   int32
	rank   int32 // the rank whose memory both commands access
	// number of commands on the stream of a that were certain to be complete according to the stream of b
	upTo   int32
	count  int
	rough  bool
	inside bool // one command performs both accesses
}

type blankKey struct{ site, bufSite, ownerSite int32 }

// blank describes a read of bytes through a buffer through which they were not written.
type blank struct {
	at         epoch
	buf, owner int32
	last       epoch // the last write to the bytes that are read
	rank       int32
	count      int
	rough      bool
}

// newMemory determines the regions and atoms of all tensors.
func newMemory(ix *index) (*memory, *Finding) {
	p := ix.p
	m := &memory{ix: ix, races: map[raceKey]*race{}, blanks: map[blankKey]*blank{}, cells: make([][]cell, p.Ranks), lives: newLifetimes(ix), turns: map[turnsKey]*turn{}, crowds: make([][]epoch, 1)}
	var set regionSet
	var coarse []int32 // regions that consist of too many intervals of bytes
	total := 0
	m.opens = make([]int32, len(p.Cmds)+1)
	m.access = make([]access, 0, 2*len(p.Cmds))
	for i := range p.Cmds {
		refs(p, &p.Cmds[i], func(r *plan.Ref, write bool) {
			g, ok := regionOf(p, r)
			if !ok {
				return
			}
			id, known := set.id(&g)
			if !known {
				n := g.runCount()
				if n > maxRuns || total+n > maxTotalRuns {
					coarse, n = append(coarse, id), 1
				}
				total += n
			}
			m.access = append(m.access, access{id, r.Rank, r.Buf, write})
		})
		m.opens[i+1] = int32(len(m.access))
	}
	m.regions = set.regions
	for _, id := range coarse {
		m.regions[id] = m.regions[id].coarse()
	}
	m.pieces, m.atoms = atomize(m.regions)
	if m.atoms > maxAtoms/p.Ranks {
		return nil, &Finding{Kind: KindBounds, Unsure: true, Message: fmt.Sprintf("the proof is too large: the accesses divide the memory into %d pieces on each of %d ranks", m.atoms, p.Ranks)}
	}
	return m, nil
}

// maxAtoms limits the number of cells, summed over all ranks.
const maxAtoms = 1 << 28

// touch compares the accesses of a command with earlier accesses. The view v holds the knowledge of the command's lane
// at the start of the command. touch returns the number of atoms that it examined.
func (m *memory) touch(v *view, cmd int32, run int) int64 {
	me := epoch{v.stream, v.done + 1}
	n := int64(0)
	for k := m.opens[cmd]; k < m.opens[cmd+1]; k++ {
		a := &m.access[k]
		if other, at, clash := m.lives.use(v, me, int8(run), a.rank, a.buf); clash {
			m.overlapLives(at, other, me, a.buf, a.rank)
		}
		n += m.compare(v, me, cmd, run, a)
	}
	return n
}

// compare compares one access with the earlier accesses.
func (m *memory) compare(v *view, me epoch, cmd int32, run int, a *access) int64 {
	cells := m.cells[a.rank]
	if cells == nil {
		cells = make([]cell, m.atoms)
		for i := range cells {
			cells[i].owner = nobody
		}
		m.cells[a.rank] = cells
	}
	atoms := m.pieces[a.region]
	for _, atom := range atoms {
		if c := &cells[atom]; a.write {
			m.write(v, me, cmd, a, atom, c)
		} else {
			m.read(v, me, cmd, run, a, atom, c)
		}
	}
	return int64(len(atoms))
}

func (m *memory) read(v *view, me epoch, cmd int32, run int, a *access, atom int32, c *cell) {
	if c.write.pos != 0 && !v.knows(c.write) {
		m.conflict(v, c.write, true, me, a, atom, cmd)
	}
	if c.owner != a.buf && run == 0 {
		m.wrongContents(me, a, c, cmd)
	}
	if c.read.pos == 0 || c.read == me || v.knows(c.read) {
		c.read = me
	} else {
		m.crowd(c)
		c.read = me
	}
	if more := m.crowds[c.more]; len(more) > 0 {
		kept := more[:0]
		for _, e := range more {
			if !v.knows(e) {
				kept = append(kept, e)
			}
		}
		m.crowds[c.more] = kept
	}
}

// crowd moves the read in the field read of a cell to the cell's list of further reads.
func (m *memory) crowd(c *cell) {
	if c.more == 0 {
		c.more = int32(len(m.crowds))
		m.crowds = append(m.crowds, nil)
	}
	m.crowds[c.more] = append(m.crowds[c.more], c.read)
}

func (m *memory) write(v *view, me epoch, cmd int32, a *access, atom int32, c *cell) {
	if c.write.pos != 0 && !v.knows(c.write) {
		m.conflict(v, c.write, true, me, a, atom, cmd)
	}
	if c.read.pos != 0 && !v.knows(c.read) {
		m.conflict(v, c.read, false, me, a, atom, cmd)
	}
	for _, e := range m.crowds[c.more] {
		if !v.knows(e) {
			m.conflict(v, e, false, me, a, atom, cmd)
		}
	}
	c.write, c.read = me, epoch{}
	if c.more > 0 {
		m.crowds[c.more] = m.crowds[c.more][:0]
	}
	switch {
	case !m.regions[a.region].rough:
		c.owner = a.buf
	case c.owner != a.buf:
		c.owner = somebody
	}
}

// maxKept limits the number of different conflicts that are stored for the report.
const maxKept = 1000

// conflict records that the command in epoch e is not ordered before access a of the command in epoch me.
func (m *memory) conflict(v *view, e epoch, writeA bool, me epoch, a *access, atom, cmd int32) {
	if e == me && m.atOnce(cmd) {
		return
	}
	p := m.ix.p
	first := m.ix.act(e)
	k := raceKey{p.Cmds[first.Cmd].Site, p.Cmds[cmd].Site, writeA, a.write, p.Buffers[a.buf].Site}
	r := m.races[k]
	if r == nil {
		if len(m.races) >= maxKept {
			return
		}
		r = &race{a: e, b: me, writeA: writeA, writeB: a.write, bufB: a.buf, rank: a.rank, upTo: v.upTo(e.stream), rough: true, inside: e == me}
		m.races[k] = r
		m.order = append(m.order, r)
	}
	r.count++
	with := m.accessOf(first.Cmd, a.rank, atom, writeA)
	rough := m.regions[a.region].rough || m.regions[with.region].rough
	if r.count == 1 || r.rough && !rough { // keeps a conflict whose overlap is certain, if there is one
		r.a, r.b, r.bufA, r.bufB, r.rank, r.upTo, r.rough = e, me, with.buf, a.buf, a.rank, v.upTo(e.stream), rough
	}
}

// accessOf returns a command's access to an atom.
func (m *memory) accessOf(cmd, rank, atom int32, write bool) *access {
	var any *access
	for k := m.opens[cmd]; k < m.opens[cmd+1]; k++ {
		a := &m.access[k]
		if a.rank != rank {
			continue
		}
		for _, x := range m.pieces[a.region] {
			if x == atom {
				if a.write == write {
					return a
				}
				any = a
			}
		}
	}
	return any
}

// atOnce reports whether a command may read and write the same bytes. Three kinds of commands may read and write the
// same bytes: a collective within one buffer, since it copies its operand first; the caller's transfers; and an
// elementwise operation in place, which processes one element at a time. Two different buffers of one command never
// share bytes, because both are in use at the same time.
func (m *memory) atOnce(cmd int32) bool {
	c := &m.ix.p.Cmds[cmd]
	switch c.Kind {
	case plan.Input, plan.Output:
		return true
	case plan.Collective:
		part := &m.ix.p.Colls[c.Coll].Parts[c.Part]
		for _, r := range part.Reads() {
			if part.Out.Present() && r.Buf != part.Out.Buf && overlaps(m.ix.p, &part.Out, &r) {
				return false
			}
		}
		return true
	case plan.Group:
		return false
	}
	for i := range c.Outs {
		for j := range c.Ins {
			if overlaps(m.ix.p, &c.Outs[i], &c.Ins[j]) && !(inPlace(m.ix.p, c, j) && samePlace(&c.Outs[i], &c.Ins[j])) {
				return false
			}
		}
		for j := range i {
			if overlaps(m.ix.p, &c.Outs[i], &c.Outs[j]) {
				return false
			}
		}
	}
	return true
}

// inPlace reports whether a command's result may overwrite its j-th operand, because each element of the result depends
// only on the corresponding element of that operand. A launched kernel may update its tensors in any way.
func inPlace(p *plan.Plan, c *plan.Cmd, j int) bool {
	if c.Op == ir.OpLaunch {
		return p.Launches[c.Launch-1].Updates(j)
	}
	return c.Kind == plan.Copy || c.Op.Info().Elementwise || c.Op == ir.OpReduceSlots && j == 1 || c.Op == ir.OpIndexCopy && j == 2
}

// overlaps reports whether two tensors may share bytes. It compares only the first and last bytes of the tensors.
func overlaps(p *plan.Plan, a, b *plan.Ref) bool {
	x, y := &p.Buffers[a.Buf], &p.Buffers[b.Buf]
	n, _ := reach(a)
	k, _ := reach(b)
	if a.Rank != b.Rank || x.Space != y.Space || n == 0 || k == 0 {
		return false
	}
	lo, lo2 := x.Offset+a.Off, y.Offset+b.Off
	return lo < lo2+k && lo2 < lo+n
}

// samePlace reports whether, for every i, element i of a has the same address as element i of b.
func samePlace(a, b *plan.Ref) bool {
	if a.Buf != b.Buf || a.Off != b.Off || a.DType.Size() != b.DType.Size() || len(a.Shape) != len(b.Shape) {
		return false
	}
	for i := range a.Shape {
		if a.Shape[i] != b.Shape[i] || a.Shape[i] > 1 && a.Strides[i] != b.Strides[i] {
			return false
		}
	}
	return true
}

func (m *memory) wrongContents(me epoch, a *access, c *cell, cmd int32) {
	p := m.ix.p
	ownerSite := int32(-1)
	if c.owner >= 0 {
		ownerSite = p.Buffers[c.owner].Site
	}
	k := blankKey{p.Cmds[cmd].Site, p.Buffers[a.buf].Site, ownerSite}
	b := m.blanks[k]
	if b == nil {
		if len(m.blanks) >= maxKept {
			return
		}
		b = &blank{at: me, buf: a.buf, owner: c.owner, last: c.write, rank: a.rank, rough: true}
		m.blanks[k] = b
		m.unread = append(m.unread, b)
	}
	b.count++
	rough := m.regions[a.region].rough || c.owner == somebody
	if b.rough && !rough {
		b.at, b.buf, b.owner, b.last, b.rank, b.rough = me, a.buf, c.owner, c.write, a.rank, false
	}
}
