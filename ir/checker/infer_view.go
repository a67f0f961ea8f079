package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// A view of a value names a part of the global tensor if its index is the same on all ranks. The view then has the
// layout of the value. If the index depends on the rank, the view names a part of each rank's own shard. The result is
// then local, as for a view of a buffer.

// viewRules types views.
type viewRules struct{ *inference }

func ofView(in *inference) *viewRules { return &viewRules{in} }

// localView changes the operand to its local type if one of the given index expressions depends on the rank.
func (in *viewRules) localView(es ...*ir.Expr) bool {
	if in.local || !slices.ContainsFunc(es, in.rankDependent) {
		return in.local
	}
	in.local, in.view = true, true
	in.args[0] = in.localType(in.syms[0])
	return true
}

// wholeDim requires that dimension d of operand 0 be whole, and returns the type of the operand after the reshard.
func (in *viewRules) wholeDim(d int) *ir.Type {
	x := in.args[0]
	if len(x.Dims[d].Axes) == 0 {
		return x
	}
	y := x.Clone()
	y.Dims[d].Axes = nil
	in.need(0, y)
	return y
}

func (in *viewRules) chunk() *ir.Type {
	index, count := in.s.Exprs[0], in.s.Exprs[1]
	if in.rankDependent(count) {
		in.errorf("type", count.Pos, "the number of chunks must be the same on every rank, but %s may differ "+
			"between ranks",
			ir.Brief(count)).help("only the index may depend on the rank")
		return nil
	}
	in.localView(index)
	d, ok := in.axisAttr("axis", 0, len(in.args[0].Dims))
	if !ok || !in.require(in.s, ir.CheckLess, ir.Int(0), count, count.Pos, "the number of chunks must be positive",
		"chunk %x, axis=0, I of C") ||
		!in.inRange(index, count, "the chunk's index") {
		return nil
	}
	x := in.wholeDim(d)
	extent := x.Dims[d].Extent
	out := x.Clone()
	if in.rankDependent(index) {
		// S1: ranks must agree on shapes, so the split must be exact.
		if !in.require(in.s, ir.CheckMultiple, extent, count, in.s.Pos, "if the index of a chunk depends on the "+
			"rank, all chunks must have the same size",
			"chunks may have different sizes only if the index is the same on all ranks (S1)") {
			return nil
		}
		out.Dims[d].Extent = in.fold(ir.Bin(ir.ExprFloorDiv, extent, count))
		return out
	}
	out.Dims[d].Extent = in.chunkExtent(extent, index, count)
	return out
}

// chunkExtent returns the number of rows of chunk index: ceildiv(extent, count), or fewer in the last chunks.
func (in *viewRules) chunkExtent(extent, index, count *ir.Expr) *ir.Expr {
	if in.norm.multiple(extent, count) == yes {
		return in.fold(ir.Bin(ir.ExprFloorDiv, extent, count))
	}
	rows := ir.Bin(ir.ExprCeilDiv, extent, count)
	left := ir.Bin(ir.ExprSub, extent, ir.Bin(ir.ExprMul, index, rows))
	return in.fold(ir.Bin(ir.ExprMax, ir.Int(0), ir.Bin(ir.ExprMin, rows, left)))
}

const sliceHelp = "a slice is LO..HI with 0 <= LO <= HI <= extent"

func (in *viewRules) slice() *ir.Type {
	lo, hi := in.s.Exprs[0], in.s.Exprs[1]
	in.localView(lo, hi)
	d, ok := in.axisAttr("axis", 0, len(in.args[0].Dims))
	if !ok {
		return nil
	}
	x := in.wholeDim(d)
	size := in.fold(ir.Bin(ir.ExprSub, hi, lo))
	if in.rankDependent(size) {
		p := in.norm.norm(size)
		if in.norm.rankDependent(p) {
			in.errorf("type", in.s.Pos, "the size of a slice must be the same on every rank, but %s may differ "+
				"between ranks",
				ir.Brief(size)).help("only the beginning of the slice may depend on the rank")
			return nil
		}
		size = in.norm.expr(p) // all rank-dependent terms have cancelled
	}
	ok = in.require(in.s, ir.CheckAtMost, ir.Int(0), lo, lo.Pos, "the slice begins before the tensor", sliceHelp) &&
		in.require(in.s, ir.CheckAtMost, lo, hi, lo.Pos, "the slice ends before it begins", sliceHelp) &&
		in.require(in.s, ir.CheckAtMost, hi, x.Dims[d].Extent, hi.Pos, "the slice ends after the tensor", sliceHelp)
	if !ok {
		return nil
	}
	out := x.Clone()
	out.Dims[d].Extent = size
	return out
}

func (in *viewRules) pick() *ir.Type {
	index := in.s.Attr("index").Exprs[0]
	in.localView(index)
	d, ok := in.axisAttr("axis", 0, len(in.args[0].Dims))
	if !ok {
		return nil
	}
	x := in.wholeDim(d)
	if !in.require(in.s, ir.CheckAtMost, ir.Int(0), index, index.Pos, "the index is negative",
		"indices are counted from 0") ||
		!in.require(in.s, ir.CheckLess, index, x.Dims[d].Extent, index.Pos, "the index is out of range",
			"indices are counted from 0") {
		return nil
	}
	out := x.Clone()
	out.Dims = slices.Delete(out.Dims, d, d+1)
	return out
}

func (in *viewRules) transpose() *ir.Type {
	x := in.args[0]
	n := len(x.Dims)
	perm := make([]int, n)
	for i := range perm {
		perm[i] = i
	}
	if a := in.s.Attr("perm"); a != nil {
		if len(a.Exprs) != n {
			in.errorf("type", a.Pos, "perm names %s, but the tensor has %d", plural(len(a.Exprs), "dimension"),
				n).help("name every dimension once")
			return nil
		}
		for i, e := range a.Exprs {
			d, ok := in.dimension(e, n)
			if !ok {
				return nil
			}
			if slices.Contains(perm[:i], d) {
				in.errorf("type", e.Pos, "dimension %d is named twice", d).help("name every dimension once")
				return nil
			}
			perm[i] = d
		}
	} else {
		if !in.wantRank(0, 2, "the operand") {
			return nil
		}
		perm[n-1], perm[n-2] = n-2, n-1
	}
	out := x.Clone()
	for i, d := range perm {
		out.Dims[i] = ir.Dimension{Extent: x.Dims[d].Extent, Axes: slices.Clone(x.Dims[d].Axes)}
	}
	return out
}

// reshape splits or merges dimensions. A split dimension keeps its axes if it is the outermost dimension of a group of
// dimensions that are merged or split together. Other split dimensions must first be resharded to whole.
func (in *viewRules) reshape() *ir.Type {
	x := in.args[0]
	shape := in.s.Attr("shape").Exprs
	out := &ir.Type{Pos: x.Pos, DType: x.DType, Partial: slices.Clone(x.Partial), Mesh: x.Mesh}
	for _, e := range shape {
		if !in.extentOf(e) {
			return nil
		}
		out.Dims = append(out.Dims, ir.Dimension{Extent: in.fold(e)})
	}
	if !in.equalExtents(elements(x), elements(out), in.s.Pos, "reshape must keep the number of elements") {
		return nil
	}
	if in.local || x.Whole() {
		return out
	}
	need := x.Clone()
	keep := in.keptAxes(x, out)
	for i := range need.Dims {
		if to, ok := keep[i]; ok {
			out.Dims[to].Axes = slices.Clone(x.Dims[i].Axes)
		} else {
			need.Dims[i].Axes = nil
		}
	}
	in.need(0, need)
	in.requireShards(out)
	return out
}

// elements returns the product of the extents.
func elements(t *ir.Type) *ir.Expr {
	e := ir.Int(1)
	for i, d := range t.Dims {
		if i == 0 {
			e = d.Extent
		} else {
			e = ir.Bin(ir.ExprMul, e, d.Extent)
		}
	}
	return e
}

// keptAxes maps dimensions of x to the dimensions of out that hold the same outermost blocks. The mapped dimensions are
// the first dimensions of the groups that have equal products of extents, where dimensions of extent 1 are ignored.
func (in *viewRules) keptAxes(x, out *ir.Type) map[int]int {
	keep := map[int]int{}
	i, j := 0, 0
	for {
		for i < len(x.Dims) && in.unit(x.Dims[i]) {
			i++
		}
		for j < len(out.Dims) && in.unit(out.Dims[j]) {
			j++
		}
		if i == len(x.Dims) || j == len(out.Dims) {
			return keep
		}
		keep[i] = j
		a, b := x.Dims[i].Extent, out.Dims[j].Extent
		i, j = i+1, j+1
		for in.norm.equal(a, b) != yes {
			// Add the next dimension of the side with the smaller product of extents so far. If the products cannot be
			// compared symbolically, no later group can be matched.
			switch {
			case j < len(out.Dims) && in.norm.multiple(a, b) == yes:
				b = ir.Bin(ir.ExprMul, b, out.Dims[j].Extent)
				j++
			case i < len(x.Dims) && in.norm.multiple(b, a) == yes:
				a = ir.Bin(ir.ExprMul, a, x.Dims[i].Extent)
				i++
			default:
				return keep
			}
		}
	}
}

// unit reports whether a dimension has extent 1 and no axes, not even an axis of size 1.
func (in *viewRules) unit(d ir.Dimension) bool {
	return len(d.Axes) == 0 && in.norm.equal(d.Extent, ir.Int(1)) == yes
}

// claim infers the type of a claim, which makes a value from a buffer.
func (in *viewRules) claim() *ir.Type {
	sym := in.syms[0]
	switch {
	case sym.Kind != ir.SymBuffer:
		in.errorf("type", in.s.Args[0].Pos, "claim applies to buffers, but %%%s is already a value",
			sym.Name).help("remove the claim")
		return nil
	case in.s.Type == nil:
		in.errorf("type", in.s.Pos, "claim has no type for the value").help("write, for example, %v: f32[T/tp, K] " +
			"= claim %" + sym.Name)
		return nil
	case !in.assignable(in.s, in.args[0], in.localTypeOf(in.s.Type), in.s.Args[0].Pos):
		return nil
	}
	root := sym.Root()
	if root.Kind == ir.SymBuffer && in.of(root).depth < in.loops { // a value must not be written, but the loop would write the buffer again
		in.errorf("alias", in.s.Pos, "%%%s would be claimed in one iteration and written in the next", root.Name).
			at(root.Pos, "it is defined outside the loop").help("claim the buffer after the loop, or allocate it " +
			"inside the loop")
		return nil
	}
	in.requireShards(in.s.Type)
	root.Claimed = true
	in.ended.set(root, bufferEnd{pos: in.s.Pos, claimed: true})
	return in.s.Type
}

// ownShard infers the type of an operation that names each rank's own shard of a value.
func (in *viewRules) ownShard() *ir.Type {
	if in.local {
		in.errorf("type", in.s.Args[0].Pos, "local applies to values, but %%%s is already local",
			in.syms[0].Name).help("for a part of a buffer, use chunk, slice or select")
		return nil
	}
	in.local, in.view = true, true
	return in.args[0].LocalType()
}
