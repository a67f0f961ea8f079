package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file moves a value from one mesh to another. Where the text says which
// ranks hold what, each fetches what it lacks (crossing.go, pieces.go).
//
// Where it leaves the main mesh's sizes open, or they are too large to spell out
// (maxListed), it cannot name the ranks, and a collective over all of them takes
// over: what is chosen must not depend on bound dims (S20). To or from one rank that is scatter,
// gather or reduce, and moves no more than it must, where one dimension is split
// over all axes or all axes are owed. What remains moves too much: a value
// arrives whole on all ranks, which cut it; it becomes whole on all ranks, of
// which those of the sub-mesh keep their blocks.
//
// One rank that gets what all owe, and is one of them, gets it by reduce
// anywhere: to reduce to blocks and fetch these would bring it more.

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
	arg = w.walk(arg, c.steps, from, false)
	buf := w.names.fresh(w.name, "b")
	w.pieces(arg, buf, c.have, c.want, from, to)
	return c.want, buf
}

// toAll brings the value to one rank of from, and from there to all: a block
// to each where a dimension is split over all axes, else the whole tensor.
func (w *writer) toAll(arg string, src *ir.Type, from, to *place) (*ir.Type, string) {
	root := from.devices[0]
	c := cross(src, wholeOf(w.dst), from, &place{devices: []int64{root}, sizes: []int64{}})
	arg = w.walk(arg, c.steps, from, false)
	buf := w.names.fresh(w.name, "b")
	w.pieces(arg, buf, c.have, c.want, from, &place{devices: []int64{root}, sizes: []int64{}})

	all := w.names.fresh(w.name, "a")
	if d := splitOverAll(w.dst, to); d >= 0 {
		want := inOrder(w.dst, d, to)
		w.out = append(w.out, alloc(w.pos, all, want.LocalType()),
			into(w.pos, ir.OpScatter, buf, all, overAttr(to.axisNames()...), exprAttr("root", root), exprAttr("axis", int64(d))))
		return want, all
	}
	want := wholeOf(w.dst)
	w.out = append(w.out, alloc(w.pos, all, want.LocalType()),
		into(w.pos, ir.OpBroadcast, buf, all, overAttr(ir.WorldAxis), exprAttr("root", root)))
	return want, all
}

// fromAll brings the value from all ranks, which the text cannot name, to
// those of to.
func (w *writer) fromAll(arg string, src *ir.Type, from, to *place) (*ir.Type, string) {
	want := wholeOf(w.dst)
	if d := splitOverAll(src, from); d >= 0 && len(to.devices) == 1 {
		arg = w.walk(arg, from.plan(src, inOrder(src, d, from)), from, false)
		buf := w.names.fresh(w.name, "b")
		w.out = append(w.out, alloc(w.pos, buf, want.LocalType()),
			into(w.pos, ir.OpGather, arg, buf, overAttr(from.axisNames()...), exprAttr("root", to.devices[0]), exprAttr("axis", int64(d))))
		return want, buf
	}
	arg = w.walk(arg, from.plan(src, wholeOf(src)), from, false)
	buf := w.names.fresh(w.name, "b")
	w.out = append(w.out, alloc(w.pos, buf, want.LocalType()))
	for _, r := range slices.Sorted(slices.Values(to.devices)) {
		w.out = append(w.out, onRank(w.pos, r, into(w.pos, ir.OpCopy, arg, buf)))
	}
	return want, buf
}

// reduceTo reduces what all ranks of from owe into a buffer of rank root, which
// is one of them. On a sub-mesh each joins for itself: elsewhere the value must
// not be named.
func (w *writer) reduceTo(root int64, arg string, src *ir.Type, from *place) string {
	buf := w.names.fresh(w.name, "b")
	w.out = append(w.out, alloc(w.pos, buf, src.LocalType()))
	reduce := func(place int64) *ir.Stmt {
		return into(w.pos, ir.OpReduce, arg, buf, overAttr(from.axisNames()...), redAttr(src.Partial[0].Red), exprAttr("root", place))
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

// splitOverAll returns the dimension of t that is split over all axes, -1
// where there is none.
func splitOverAll(t *ir.Type, at *place) int {
	if len(at.axes) == 0 {
		return -1
	}
	return slices.IndexFunc(t.Dims, func(d ir.Dimension) bool { return len(d.Axes) == len(at.axes) })
}

// inOrder returns t with dimension d split over the mesh's axes in the order of
// its ranks.
func inOrder(t *ir.Type, d int, at *place) *ir.Type {
	u := t.Clone()
	u.Dims[d].Axes = at.axisNames()
	return u
}
