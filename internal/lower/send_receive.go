package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// pieces emits transfers that move the value arg, piece by piece, into a new buffer named buf on the ranks of the
// target mesh.
func (w *writer) pieces(arg, buf string, have, want *ir.Type, from, to *place) {
	w.deliver(courier{writer: w, arg: arg, buf: buf}, have, want, from, to)
}

// piecesOf is the same as pieces for an arg that is a buffer.
func (w *writer) piecesOf(arg, buf string, have, want *ir.Type, from, to *place) {
	w.deliver(courier{writer: w, arg: arg, buf: buf, local: arg}, have, want, from, to)
}

func (w *writer) deliver(c courier, have, want *ir.Type, from, to *place) {
	byRank := map[int64][]piece{}
	for _, p := range route(have, want, from, to) {
		byRank[p.to] = append(byRank[p.to], p)
		if p.from != p.to {
			byRank[p.from] = append(byRank[p.from], p)
		}
	}
	ranks := append(slices.Clone(from.devices), to.devices...)
	slices.Sort(ranks)
	w.out = append(w.out, alloc(w.pos, c.buf, want.LocalType()))
	for _, r := range slices.Compact(ranks) {
		c := c
		if stmts := c.rankPieces(r, byRank[r]); len(stmts) > 0 {
			w.out = append(w.out, onRank(w.pos, r, stmts...))
		}
	}
}

// courier builds the statements that one rank executes for a transfer.
type courier struct {
	*writer
	arg, buf string
	// local is the name of the local tensor of the rank's own shard of arg; it is empty until it is first needed.
	local                string
	views, posts, copies []*ir.Stmt
}

// rankPieces returns the statements that rank r executes: its sends and receives, in one group so that their order
// cannot cause a deadlock among the ranks, and its local copies.
func (c *courier) rankPieces(r int64, pieces []piece) []*ir.Stmt {
	for _, p := range pieces {
		switch {
		case p.from == r && p.to == r:
			c.copies = append(c.copies, into(c.pos, ir.OpCopy, c.source(p), c.target(p)))
		case p.from == r:
			c.posts = append(c.posts, transferStmt(c.pos, ir.OpSend, c.packed(p), p.to))
		case p.to == r:
			c.posts = append(c.posts, transferStmt(c.pos, ir.OpRecv, c.landing(p), p.from))
		}
	}
	return slices.Concat(c.views, group(c.pos, c.posts), c.copies)
}

// packed returns the name of a dense tensor with the data of the piece. The tensor is the piece itself if the piece is
// dense, and otherwise a copy.
func (c *courier) packed(p piece) string {
	source := c.source(p)
	if dense(p.source) {
		return source
	}
	name := c.names.fresh(c.name, "c")
	c.views = append(c.views, result(c.pos, name, ir.OpCopy, nil, source))
	return name
}

// landing returns the name of the tensor into which a piece is received: a view of buf if that view is dense, or else a
// temporary buffer, which is then copied into buf.
func (c *courier) landing(p piece) string {
	target := c.target(p)
	if dense(p.target) {
		return target
	}
	name := c.names.fresh(c.name, "t")
	t := &ir.Type{Pos: c.pos, DType: c.dst.DType}
	for d := range p.target {
		t.Dims = append(t.Dims, ir.Dimension{Extent: ir.Extent(target, int64(d))})
	}
	c.views = append(c.views, alloc(c.pos, name, t))
	c.copies = append(c.copies, into(c.pos, ir.OpCopy, name, target))
	return name
}

// source returns the name of the data that the sender sends: its whole block of arg, or a view of a part of it.
func (c *courier) source(p piece) string {
	if all(p.source) {
		return c.arg
	}
	if c.local == "" {
		c.local = c.names.fresh(c.name, "l")
		c.views = append(c.views, result(c.pos, c.local, ir.OpLocal, nil, c.arg))
	}
	return c.view(p.source, c.local, "s")
}

// target returns the name of the tensor in which the receiver stores a piece: buf, or a view of a part of it.
func (c *courier) target(p piece) string { return c.view(p.target, c.buf, "r") }

// view returns the name of a view of the tensor called whole: the part that spans selects.
func (c *courier) view(spans []span, whole, suffix string) string {
	for d, s := range spans {
		if s.count > 1 {
			name := c.names.fresh(c.name, suffix)
			c.views = append(c.views, chunk(c.pos, name, whole, d, ir.Int(s.index), ir.Int(s.count)))
			whole = name
		}
	}
	return whole
}

func all(spans []span) bool {
	return !slices.ContainsFunc(spans, func(s span) bool { return s.count > 1 })
}

// dense reports whether a part of a dense block is certain to be dense, which is so if the block is cut along the
// outermost dimension only.
func dense(spans []span) bool { return len(spans) == 0 || all(spans[1:]) }
