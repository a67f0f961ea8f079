package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file moves a value from one mesh to another. If the text determines the block that each rank holds, each rank
// fetches the data that it lacks (crossing.go, pieces.go).
//
// If the sizes of the main mesh are open, or their product is more than maxListed, the text cannot name the ranks.
// Collectives are used where the text cannot name the ranks, because choices must not depend on bound dims (S20). If
// the value moves to the main mesh, one rank of the other mesh collects the whole value and scatters the blocks. If the
// value moves from the main mesh, one rank of the other mesh gathers the blocks (pack.go), and the ranks of the other
// mesh then distribute the value among themselves. A transfer through one rank is not optimal, because that rank needs
// memory for the whole value.
//
// If a value is partial on all ranks and one of these ranks is the only receiver, the value is always transferred by
// the collective reduce. A reduction to blocks and a fetch of the blocks would move more bytes.

// move writes the reshard of arg, which has type src, to the type w.dst on another mesh.
func (w *writer) move(arg string, src *ir.Type, from, to *place) {
	want, buf := w.arrive(arg, src, from, to)
	rest := to.plan(want, w.dst)
	name, t := w.next(len(rest) == 0, want)
	w.out = append(w.out, value(w.pos, name, t, ir.OpClaim, nil, buf))
	if len(rest) > 0 {
		w.walk(name, rest, to, true)
	}
}

// arrive emits the transfers of the value to the ranks of the target mesh. It returns the layout that the value then
// has and the name of the buffer.
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

// alone returns a mesh that contains one rank.
func alone(rank int64) *place { return &place{devices: []int64{rank}, sizes: []int64{}} }

// toAll emits statements that collect the value on one rank of the source mesh. The rank that collects the value then
// sends each rank of the main mesh its block.
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

// fromAll emits statements that move the value from all ranks, which the text cannot name, to the ranks of the target
// mesh. The value is gathered on one rank of that mesh, which sends the other ranks of the mesh their blocks. If
// several ranks of the target mesh need the whole value, the value is made whole on all ranks instead, because
// otherwise one rank would have to send it to each of them.
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

// collect emits statements that move %arg into a buffer on the rank root. If the value is partial, it is first reduced
// to the ranks that have the same coordinates as root along the partial axes. The ranks that hold the reduced value
// then send root their blocks.
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

// reduceBeside emits the reduction of a partial value of type src into a buffer. The buffer is on the ranks that have
// the same coordinates as root along the partial axes.
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

// keepOn emits a copy of %arg, which is whole on all ranks, into a buffer on the given ranks.
func (w *writer) keepOn(ranks []int64, arg string, whole *ir.Type) string {
	buf := w.names.fresh(w.name, "b")
	w.out = append(w.out, alloc(w.pos, buf, whole.LocalType()))
	for _, r := range slices.Sorted(slices.Values(ranks)) {
		w.out = append(w.out, onRank(w.pos, r, into(w.pos, ir.OpCopy, arg, buf)))
	}
	return buf
}

// reduceTo emits a reduction of a value that is partial on all ranks of the source mesh, into a buffer on the rank root
// of that mesh. On a sub-mesh, each rank joins the reduction in a separate branch, because ranks outside the sub-mesh
// must not name the value.
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

// reaches reports whether the mesh is certain to contain rank.
func (pl *place) reaches(rank int64) bool { return pl.main || pl.index(rank) >= 0 }

// owesAll reports whether t is partial over all axes of the mesh with the same reduction.
func owesAll(t *ir.Type, at *place) bool {
	return len(at.axes) > 0 && len(t.Partial) == len(at.axes) && len(reds(t)) == 1
}
