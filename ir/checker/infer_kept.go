package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// This file infers the types of the operations on key/value caches, which are preserved between runs: writing rows at
// given positions, and operations that depend on positions.

// integers checks that operand i has type i32 or i64.
func (in *inference) integers(i int, what string) bool {
	if t := in.args[i]; !t.DType.IsInt() {
		in.errorf("type", in.s.Args[i].Pos, "%s must be i32 or i64, but %%%s is %s", what, in.syms[i].Name,
			t.DType).help("convert it with cast")
		return false
	}
	return true
}

// leads checks that the shape of operand i consists of the first n dimensions of operand 0, or only of dimension n-1.
func (in *indexRules) leads(i, n int, what string) bool {
	x, t := in.args[0], in.args[i]
	if len(t.Dims) != n && len(t.Dims) != 1 {
		in.errorf("type", in.s.Args[i].Pos, "%s must have %s or one, but %%%s has %d", what, plural(n, "dimension"),
			in.syms[i].Name, len(t.Dims)).
			help(in.s.Op.String() + ": " + in.s.Op.Info().Doc)
		return false
	}
	first := n - len(t.Dims)
	for d := range t.Dims {
		if !in.equalExtents(x.Dims[first+d].Extent, t.Dims[d].Extent, in.s.Args[i].Pos,
			what+" differ from the rows in dimension "+itoa(d)) {
			return false
		}
	}
	return true
}

// follow requires that operand i have the layout of the first n dimensions of x. The function leads must have checked
// the shape of the operand.
func (in *inference) follow(i, n int, x *ir.Type) {
	t := in.args[i].Reduced().Clone()
	first := n - len(t.Dims)
	for d := range t.Dims {
		t.Dims[d].Axes = slices.Clone(x.Dims[first+d].Axes)
	}
	t.Mesh = x.Mesh
	in.requireShards(t)
	in.need(i, t)
}

// indexCopy infers the type of index_copy %rows, %at into %cache. The rows have the shape of the cache except for the
// number of rows.
func (in *indexRules) indexCopy() *ir.Type {
	rows, cache := in.args[0], in.in.Into[in.s].Type
	if !in.integers(1, "positions") {
		return nil
	}
	if len(rows.Dims) != len(cache.Dims) || rows.DType != cache.DType {
		in.errorf("type", in.s.Args[0].Pos,
			"rows of type %s need a destination with the same element type and number of dimensions, but %%%s is %s",
			ir.Brief(rows),
			in.s.Into.Name, ir.Brief(cache)).
			help("index_copy: " + ir.OpIndexCopy.Info().Doc)
		return nil
	}
	axis, ok := in.axisAttr("axis", 0, len(rows.Dims))
	if !ok || !in.leads(1, axis+1, "positions") {
		return nil
	}
	for d := range rows.Dims {
		if d != axis && !in.equalExtents(rows.Dims[d].Extent, cache.Dims[d].Extent, in.s.Args[0].Pos,
			"rows differ from the destination in dimension "+itoa(d)) {
			return nil
		}
	}
	return cache
}

// rope infers the type of rope x[…, T, H, Dh] by positions […, T], or [T], and frequencies [R] if given. Dimension Dh
// must be whole, and all ranks must hold all frequencies.
func (in *indexRules) rope() *ir.Type {
	if in.args[0].DType.IsInt() {
		in.floats()
		return nil
	}
	if !in.integers(1, "positions") || !in.wantRank(0, 3, "the first operand") || !in.rightRope() {
		return nil
	}
	n := len(in.args[0].Dims)
	dh := in.args[0].Dims[n-1].Extent
	switch {
	case !in.leads(1, n-2, "positions"):
		return nil
	case len(in.args) == 3 && !in.frequencies(dh):
		return nil
	case len(in.args) == 2 && !in.require(in.s, ir.CheckMultiple, dh, ir.Int(2), in.s.Args[0].Pos,
		"rope rotates pairs of elements, but a head has an odd number of elements", "rope: "+ir.OpRope.Info().Doc):
		return nil
	}
	x := in.wholeAlong(0, n-1)
	if !in.local {
		in.follow(1, n-2, x)
	}
	if !in.local && len(in.args) == 3 {
		freqs := in.args[2].Reduced().Clone()
		freqs.Dims[0].Axes, freqs.Mesh = nil, x.Mesh
		in.need(2, freqs)
	}
	return x
}

// frequencies checks the third operand of a rope. The operand must have one frequency for each pair of elements of a
// head, or for the first pairs only. A head has dh elements.
func (in *indexRules) frequencies(dh *ir.Expr) bool {
	t, pos, help := in.args[2], in.s.Args[2].Pos, "rope: "+ir.OpRope.Info().Doc
	if t.DType != ir.F32 || len(t.Dims) != 1 {
		in.errorf("type", pos, "frequencies must be f32[R], but %%%s is %s", in.syms[2].Name, ir.Brief(t)).help(help)
		return false
	}
	for _, a := range in.s.Attrs {
		if a.Name != "scale" {
			in.errorf("type", a.Pos, "%s= determines frequencies, but the third operand already gives them",
				a.Name).help("remove the attribute, or remove %" + in.syms[2].Name)
			return false
		}
	}
	return in.require(in.s, ir.CheckLess, ir.Int(0), t.Dims[0].Extent, pos, "the list of frequencies is empty", help) &&
		in.require(in.s, ir.CheckAtMost, ir.Bin(ir.ExprMul, ir.Int(2), t.Dims[0].Extent), dh, pos,
			"the number of frequencies exceeds the number of pairs of elements in a head", help)
}

// rightRope reports an error for attributes of a rope whose values do not define angles.
func (in *indexRules) rightRope() bool {
	for _, name := range []string{"theta", "factor", "low", "high", "original", "scale"} {
		if a := in.s.Attr(name); a != nil && !(a.IsNum && a.Num > 0) {
			in.errorf("type", a.Pos, "%s must be a positive number", name).help("rope: " + ir.OpRope.Info().Doc)
			return false
		}
	}
	if r := in.s.Rope(); r.Low >= r.High {
		in.errorf("type", in.s.Pos, "low=%v must be less than high=%v", r.Low,
			r.High).help("rope: " + ir.OpRope.Info().Doc)
		return false
	}
	return true
}

// argmax infers the type of argmax over one dimension, which is the last by default and must be whole.
func (in *indexRules) argmax() *ir.Type {
	if !in.wantRank(0, 1, "the operand") {
		return nil
	}
	n := len(in.args[0].Dims)
	d, ok := in.axisAttr("axis", n-1, n)
	if !ok || !in.require(in.s, ir.CheckLess, ir.Int(0), in.args[0].Dims[d].Extent, in.s.Args[0].Pos,
		"argmax of no elements", "the dimension must not be empty") {
		return nil
	}
	out := in.wholeAlong(0, d).Clone()
	out.Dims = slices.Delete(out.Dims, d, d+1)
	out.DType = ir.I32
	return out
}
