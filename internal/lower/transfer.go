package lower

import (
	"slices"
	"strconv"

	"hocket.example/hocket/ir"
)

// This file moves a value from one mesh to another: first to a layout that both
// sides can cut alike, then block by block, then on to the layout asked for.

// move writes the reshard s of a value of type src between two meshes.
func (d *decomposer) move(w *writer, s *ir.Stmt, src *ir.Type, from, to *place) error {
	have, want := meet(src, s.Type, from, to)
	arg := w.walk(s.Args[0].Name, from.plan(src, have), from, false)
	rest := to.plan(want, s.Type)

	buf := w.names.fresh(w.name, "b")
	switch {
	case to.main && (!to.known() || have.Whole() && want.Whole()):
		buf = w.toAll(arg, buf, want.LocalType(), from)
	case from.main && !from.known():
		w.keep(arg, buf, want.LocalType(), to)
	default:
		w.pieces(arg, buf, have, want, from, to)
	}
	name, t := w.next(len(rest) == 0, want)
	w.out = append(w.out, value(w.pos, name, t, ir.OpClaim, nil, buf))
	if len(rest) > 0 {
		w.walk(name, rest, to, true)
	}
	return nil
}

// meet returns the layouts in which the value leaves one mesh and arrives on
// the other. A dimension stays cut where both sides cut it into equally many
// blocks; the outermost, whose parts are dense, also where blocks of one side
// are made of several of the other. Where the text leaves the ranks open, the
// value travels whole.
func meet(src, dst *ir.Type, from, to *place) (have, want *ir.Type) {
	have, want = src.Clone(), dst.Clone()
	have.Partial = nil
	for i := range have.Dims {
		a, b := &have.Dims[i], &want.Dims[i]
		if !from.known() || !to.known() || !compatible(from.parts(a.Axes), to.parts(b.Axes), i) {
			a.Axes, b.Axes = nil, nil
		}
	}
	return have, want
}

func compatible(p, q int64, dim int) bool {
	return p == q || dim == 0 && (p%q == 0 || q%p == 0)
}

// toAll gives the whole tensor arg, which all ranks of from hold, to every
// rank, and returns the buffer they find it in.
func (w *writer) toAll(arg, buf string, local *ir.Type, from *place) string {
	root := from.devices[0]
	all := w.names.fresh(w.name, "a")
	w.out = append(w.out,
		alloc(w.pos, buf, local),
		onRank(w.pos, root, into(w.pos, ir.OpCopy, arg, buf)),
		alloc(w.pos, all, local.Clone()),
		into(w.pos, ir.OpBroadcast, buf, all, overAttr(ir.WorldAxis), exprAttr("root", root)))
	return all
}

// keep copies the whole tensor arg, which every rank holds, on the ranks of to.
func (w *writer) keep(arg, buf string, local *ir.Type, to *place) {
	w.out = append(w.out, alloc(w.pos, buf, local))
	for _, r := range slices.Sorted(slices.Values(to.devices)) {
		w.out = append(w.out, onRank(w.pos, r, into(w.pos, ir.OpCopy, arg, buf)))
	}
}

// piece is a block on its way: the index-th of count along the outermost
// dimension of what the receiver gathers (join) or of what the sender has.
type piece struct {
	from, to     int64
	index, count int64
	join         bool
	block        []int64 // the sender's block, of each dimension
}

// pieces moves arg block by block into buf on the ranks of to.
func (w *writer) pieces(arg, buf string, have, want *ir.Type, from, to *place) {
	byRank := map[int64][]piece{}
	for _, p := range route(have, want, from, to) {
		byRank[p.to] = append(byRank[p.to], p)
		if p.from != p.to {
			byRank[p.from] = append(byRank[p.from], p)
		}
	}
	ranks := append(slices.Clone(from.devices), to.devices...)
	slices.Sort(ranks)
	local := want.LocalType()
	w.out = append(w.out, alloc(w.pos, buf, local))
	for _, r := range slices.Compact(ranks) {
		c := &courier{writer: w, arg: arg, buf: buf}
		if stmts := c.rankPieces(r, byRank[r]); len(stmts) > 0 {
			w.out = append(w.out, onRank(w.pos, r, stmts...))
		}
	}
}

// courier writes what one rank does for a transfer.
type courier struct {
	*writer
	arg, buf string
	// local names the rank's own shard of arg, once it is needed.
	local                string
	views, posts, copies []*ir.Stmt
}

// rankPieces returns what rank r does: its sends and receives in one group, so
// that no order among the ranks can block them, and its copies.
func (c *courier) rankPieces(r int64, pieces []piece) []*ir.Stmt {
	for _, p := range pieces {
		switch {
		case p.from == r && p.to == r:
			c.copies = append(c.copies, into(c.pos, ir.OpCopy, c.source(p), c.target(p)))
		case p.from == r:
			c.posts = append(c.posts, transferStmt(c.pos, ir.OpSend, c.source(p), p.to))
		case p.to == r:
			c.posts = append(c.posts, transferStmt(c.pos, ir.OpRecv, c.target(p), p.from))
		}
	}
	return slices.Concat(c.views, group(c.pos, c.posts), c.copies)
}

// source names what the sender gives of arg: all it holds, or a part of that.
func (c *courier) source(p piece) string {
	if p.count == 1 || p.join {
		return c.arg
	}
	if c.local == "" {
		c.local = c.names.fresh(c.name, "l")
		c.views = append(c.views, result(c.pos, c.local, ir.OpLocal, nil, c.arg))
	}
	return c.view(p, c.local, "s")
}

// target names where the receiver wants it: buf or a part of it.
func (c *courier) target(p piece) string {
	if p.count == 1 || !p.join {
		return c.buf
	}
	return c.view(p, c.buf, "r")
}

func (c *courier) view(p piece, whole, suffix string) string {
	name := c.names.fresh(c.name, suffix)
	c.views = append(c.views, chunk(c.pos, name, whole, 0, ir.Int(p.index), ir.Int(p.count)))
	return name
}

// route says which rank sends which block to whom. A rank that holds what it
// needs keeps it; of several holders the receivers take turns.
func route(have, want *ir.Type, from, to *place) []piece {
	holders := map[string][]int64{} // by block
	holds := map[int64]string{}     // the block of each sender
	for i, r := range from.devices {
		k := key(from.blocks(have, i))
		holders[k], holds[r] = append(holders[k], r), k
	}
	var out []piece
	for i, r := range to.devices {
		for _, p := range sources(have, want, from, to, i) {
			k := key(p.block)
			p.from, p.to = holders[k][i%len(holders[k])], r
			if h, ok := holds[r]; ok && h == k {
				p.from = r
			}
			out = append(out, p)
		}
	}
	return out
}

// sources returns the pieces of which the i-th receiver's block is made.
func sources(have, want *ir.Type, from, to *place, i int) []piece {
	block := to.blocks(want, i)
	if len(block) == 0 {
		return []piece{{count: 1}}
	}
	p, q := from.parts(have.Dims[0].Axes), to.parts(want.Dims[0].Axes)
	if p < q {
		index := block[0] % (q / p)
		block[0] /= q / p
		return []piece{{block: block, index: index, count: q / p}}
	}
	out := make([]piece, p/q)
	for c := range out {
		b := slices.Clone(block)
		b[0] = block[0]*(p/q) + int64(c)
		out[c] = piece{block: b, index: int64(c), count: p / q, join: true}
	}
	return out
}

// key makes a map key of a block's coordinates.
func key(block []int64) string {
	var b []byte
	for _, x := range block {
		b = strconv.AppendInt(b, x, 10)
		b = append(b, ' ')
	}
	return string(b)
}
