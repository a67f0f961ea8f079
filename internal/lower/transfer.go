package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file moves a value from one mesh to another. If the text determines which ranks hold what, each rank fetches
// what it lacks (crossing.go, pieces.go).
//
// If the sizes of the main mesh are open or too large to list (maxListed), the text cannot name the ranks, and
// collectives are used, because choices must not depend on bound dims (S20). One rank of the other mesh has, or
// receives, the whole value, and gives each rank its block, or receives it from there (pack.go). If the other mesh has
// several ranks, they then distribute the value among themselves. This is not optimal: one of them needs memory for
// the whole value.
//
// If one rank receives a value that is partial on all, and is one of them, it always gets it by reduce: reducing to
// blocks and fetching these would move more.

// move writes the reshard of arg, of type src, to the type w.dst on another mesh.
func (w *writer) move(arg string, src *ir.Type, from, to *place) {
	want, buf := w.arrive(arg, src, from, to)
	rest := to.plan(want, w.dst)
	name, t := w.next(len(rest) == 0, want)
	w.out = append(w.out, value(w.pos, name, t, ir.OpClaim, nil, buf))
	if len(rest) > 0 {
		w.walk(name, rest, to, true)
	}
}

// arrive brings the value to the ranks of to, and returns in which layout and
// in which buffer they find it.
func (w *writer) arrive(arg string, src *ir.Type, from, to *place) (*ir.Type, string) {
	switch {
	case len(to.devices) == 1 && owesAll(src, from) && from.reaches(to.devices[0]):
		return wholeOf(w.dst), w.reduceTo(to.devices[0], arg, src, from)
	case to.main && (!to.known() || len(from.devices) == 1 && w.dst.Whole()):
		return w.toAll(arg, src, from, to)
	case from.main && !from.known():
		return w.fromAll(arg, src, from, to)
	}
	c := cross(src, w.dst, from, to)
	switch {
	case c.isWhole && to.main:
		return w.toAll(arg, src, from, to)
	case c.isWhole && from.main:
		return w.fromAll(arg, src, from, to)
	}
	arg = w.walk(arg, c.steps, from, false)
	buf := w.names.fresh(w.name, "b")
	w.pieces(arg, buf, c.have, c.want, from, to)
	return c.want, buf
}

// alone is the place of one rank.
func alone(rank int64) *place { return &place{devices: []int64{rank}, sizes: []int64{}} }

// toAll brings the value to one rank of from, and from there each rank of the
// main mesh its block.
func (w *writer) toAll(arg string, src *ir.Type, from, to *place) (*ir.Type, string) {
	root := from.devices[0]
	c := cross(src, wholeOf(w.dst), from, alone(root))
	arg = w.walk(arg, c.steps, from, false)
	buf := w.names.fresh(w.name, "b")
	w.pieces(arg, buf, c.have, c.want, from, alone(root))
	want := w.dst.Clone()
	want.Partial = nil
	return want, w.scatterFrom(root, buf, want, to)
}

// fromAll brings the value from all ranks, which the text cannot name, to those
// of to: to one of them, which gives the others their blocks. Where several want
// it whole, it becomes so on all ranks: one would have to send it to each.
func (w *writer) fromAll(arg string, src *ir.Type, from, to *place) (*ir.Type, string) {
	whole, root := wholeOf(w.dst), to.devices[0]
	single := len(to.devices) == 1
	held := len(dimAxes(src)) == 0 && len(src.Partial) == 0
	if held || !single && (w.dst.Whole() || !to.known()) {
		return whole, w.keepOn(to.devices, w.walk(arg, from.plan(src, wholeOf(src)), from, false), whole)
	}
	buf := w.collect(root, arg, src, from)
	if single {
		return whole, buf
	}
	want, shares := w.dst.Clone(), w.names.fresh(w.name, "b")
	want.Partial = nil
	w.piecesOf(buf, shares, whole, want, alone(root), to)
	return want, shares
}

// collect moves %arg into a buffer of rank root: partial sums are first reduced to the ranks with the same
// coordinates, which then give root their blocks.
func (w *writer) collect(root int64, arg string, src *ir.Type, from *place) string {
	split := len(dimAxes(src)) > 0
	switch len(reds(src)) {
	case 0:
	case 1:
		if arg = w.reduceBeside(root, arg, src, from); !split {
			return arg
		}
	default: // one after the other
		done := src.Clone()
		done.Partial = nil
		if arg = w.walk(arg, from.plan(src, done), from, false); !split {
			return w.keepOn([]int64{root}, arg, done)
		}
	}
	return w.gatherTo(root, arg, src, from)
}

// reduceBeside reduces what src owes into a buffer of the ranks that have
// root's coordinates along the axes that it is owed over.
func (w *writer) reduceBeside(root int64, arg string, src *ir.Type, from *place) string {
	var axes []string
	for _, a := range from.axisNames() {
		if slices.ContainsFunc(src.Partial, func(q ir.Partial) bool { return q.Axis == a }) {
			axes = append(axes, a)
		}
	}
	buf := w.names.fresh(w.name, "b")
	w.out = append(w.out, alloc(w.pos, buf, plain(src).LocalType()), into(w.pos, ir.OpReduce, arg, buf,
		ir.Over(axes...), ir.WordAttr("op", src.Partial[0].Red.String()), rootAttr(from.numberOf(axes, root))))
	return buf
}

// keepOn copies %arg, which is whole on all ranks, into a buffer of some.
func (w *writer) keepOn(ranks []int64, arg string, whole *ir.Type) string {
	buf := w.names.fresh(w.name, "b")
	w.out = append(w.out, alloc(w.pos, buf, whole.LocalType()))
	for _, r := range slices.Sorted(slices.Values(ranks)) {
		w.out = append(w.out, onRank(w.pos, r, into(w.pos, ir.OpCopy, arg, buf)))
	}
	return buf
}

// reduceTo reduces what all ranks of from owe into a buffer of rank root, which
// is one of them. On a sub-mesh each joins for itself: elsewhere the value must
// not be named.
func (w *writer) reduceTo(root int64, arg string, src *ir.Type, from *place) string {
	buf := w.names.fresh(w.name, "b")
	w.out = append(w.out, alloc(w.pos, buf, src.LocalType()))
	reduce := func(place int64) *ir.Stmt {
		return into(w.pos, ir.OpReduce, arg, buf, ir.Over(from.axisNames()...), ir.WordAttr("op", src.Partial[0].Red.String()), ir.ExprAttr("root", ir.Int(place)))
	}
	if from.main {
		w.out = append(w.out, reduce(root))
		return buf
	}
	for _, r := range slices.Sorted(slices.Values(from.devices)) {
		w.out = append(w.out, onRank(w.pos, r, reduce(int64(from.index(root)))))
	}
	return buf
}

// reaches reports whether rank surely is one of the mesh's.
func (pl *place) reaches(rank int64) bool { return pl.main || pl.index(rank) >= 0 }

// owesAll reports whether t is partial over all axes, by one reduction.
func owesAll(t *ir.Type, at *place) bool {
	return len(at.axes) > 0 && len(t.Partial) == len(at.axes) && len(reds(t)) == 1
}
