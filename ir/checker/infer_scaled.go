package checker

import (
	"hocket.example/hocket/ir"
	"math"
	"slices"
)

// Tensors with 8-bit types can be moved and converted. The only arithmetic on 8-bit tensors is contractions that have
// scales as operands.

// scaleBlock is the number of elements of a row that share a scale, and the number of rows of a weight that share a
// scale, if scales are given for blocks.
const scaleBlock = 128

// takesFloat8 reports whether an operation accepts 8-bit types. The accepted operations are those that only move
// elements, and those in this file.
func takesFloat8(s *ir.Stmt) bool {
	switch s.Op {
	case ir.OpCast, ir.OpCopy, ir.OpFill, ir.OpExpand, ir.OpConcat, ir.OpIndexCopy, ir.OpTakeAlong, ir.OpReshard,
		ir.OpLaunch, ir.OpQuantize:
		return true
	case ir.OpLinear:
		return len(s.Args) == 4
	}
	return s.Op.Info().Class != ir.ClassTensor && s.Op.Info().AttrSpec("op") == nil
}

// arithmeticTypes reports an error for an 8-bit type in an operation for which takesFloat8 returns false.
func (in *inference) arithmeticTypes() bool {
	for i, t := range in.args {
		if t != nil && t.DType.IsFloat8() && !takesFloat8(in.s) {
			in.errorf("type", in.s.Args[i].Pos, "%s is not defined for the type %s of %%%s", in.s.Op, t.DType,
				in.syms[i].Name).help("convert it with cast, or give linear the scales of both operands")
			return false
		}
	}
	return true
}

// scalesFit checks the scales, operand i, of operand of. scalesFit accepts one scale for the whole tensor, one for each
// row (all positions in all dimensions but the last), or one for each block. If square is set, operand of is a weight,
// whose blocks also span several rows. The argument need is the required layout of the scaled operand, or nil for local
// tensors. The scales must have the corresponding layout. A block must not extend over two ranks.
func (in *productRules) scalesFit(i, of int, need *ir.Type, square bool) bool {
	s, x, pos := in.args[i], in.args[of], in.s.Args[i].Pos
	last := len(x.Dims) - 1
	switch {
	case s.DType != ir.F32:
		in.errorf("type", pos, "scales must be f32, but %%%s is %s", in.syms[i].Name,
			s.DType).help("convert them with cast")
		return false
	case len(s.Dims) != 0 && len(s.Dims) != last && len(s.Dims) != last+1:
		in.errorf("type", pos, "the tensor %%%s has %s, so its scales cannot have %s", in.syms[of].Name, plural(last+1,
			"dimension"),
			plural(len(s.Dims), "dimension")).help("quantize: " + ir.OpQuantize.Info().Doc)
		return false
	}
	layout := s.Reduced().Clone()
	for d := range s.Dims {
		want, axes := x.Dims[d].Extent, []string(nil)
		if need != nil {
			axes = need.Dims[d].Axes
		}
		if len(s.Dims) == last+1 && (d == last || square && d == last-1) {
			want = in.fold(ir.Bin(ir.ExprCeilDiv, want, ir.Int(scaleBlock)))
			if len(axes) > 0 && !in.require(in.s, ir.CheckMultiple, x.Dims[d].Extent,
				ir.Bin(ir.ExprMul, ir.Int(scaleBlock), ir.SizeOf(axes)), pos,
				"a block of 128 elements that share a scale would be divided between two ranks",
				"split the dimension into multiples of 128, or use scales of rows") {
				return false
			}
		}
		if !in.equalExtents(want, s.Dims[d].Extent, pos,
			"the scales and the scaled tensor differ in dimension "+itoa(d)) {
			return false
		}
		layout.Dims[d].Axes = slices.Clone(axes)
	}
	if need != nil {
		layout.Mesh = need.Mesh
		in.requireShards(layout)
		in.need(i, layout)
	}
	return true
}

// scaledLinear infers the type of linear %x, %w, %sx, %sw. The layouts of x, w and the result are the same as for a
// linear without scales.
func (in *productRules) scaledLinear() *ir.Type {
	x, w := in.args[0], in.args[1]
	wide := x.DType == ir.BF16 || x.DType == ir.F16
	for i, t := range in.args[:2] {
		if !t.DType.IsFloat8() && !(i == 0 && wide && w.DType.IsFloat8()) {
			in.errorf("type", in.s.Args[i].Pos, "the operands of a linear with scales must be f8e4m3 or f8e5m2, "+
				"but %%%s is %s",
				in.syms[i].Name, t.DType).help("quantize it first; the input of an 8-bit weight may also be bf16 or f16")
			return nil
		}
	}
	if !in.wantRank(0, 1, "the input") || !in.matrixWeight() || !in.accumulates(true) {
		return nil
	}
	last := len(x.Dims) - 1
	if !in.equalExtents(x.Dims[last].Extent, w.Dims[1].Extent, in.s.Args[1].Pos,
		"the contracted dimensions of input and weight differ") {
		return nil
	}
	out := x.Reduced().Clone()
	out.Dims[last] = ir.Dimension{Extent: w.Dims[0].Extent, Axes: slices.Clone(w.Dims[0].Axes)}
	result := ir.BF16
	if wide {
		result = x.DType
	}
	if out.DType = in.resultType(result); out.DType != ir.BF16 && out.DType != ir.F16 && out.DType != ir.F32 {
		in.errorf("type", in.s.Pos, "the result of a linear with scales can be bf16, f16 or f32, not %s", out.DType).
			help("convert the result with cast")
		return nil
	}
	var needX, needW *ir.Type
	if !in.local {
		needX, needW = in.activationLayout(x, w, last, w.Dims[1].Axes), w.Reduced()
		in.need(0, needX)
		in.need(1, needW)
		for i := range last {
			out.Dims[i].Axes = slices.Clone(needX.Dims[i].Axes)
		}
		out.Mesh = w.Mesh
		out.Partial = partialOver(w.Dims[1].Axes, ir.Sum)
	}
	if !in.scalesFit(2, 0, needX, false) || !in.scalesFit(3, 1, needW, true) {
		return nil
	}
	return out
}

// accumulates reports an error for fast_accum=true in a linear whose tensor cores cannot add up a whole sum: without
// 8-bit operands, or if the factor of a product changes with its block.
func (in *productRules) accumulates(scaled bool) bool {
	if in.s.Word("fast_accum", "") != "true" {
		return true
	}
	pos := in.s.Attr("fast_accum").Pos
	if !scaled || !in.args[0].DType.IsFloat8() {
		in.errorf("type", pos, "fast_accum=true needs 8-bit operands with scales").help(
			"remove it: sums of other types are added in f32")
		return false
	}
	for i := range 2 {
		if len(in.args[2+i].Dims) == len(in.args[i].Dims) {
			in.errorf("type", pos, "fast_accum=true cannot be combined with scales of blocks: the sum of each block "+
				"of 128 products is multiplied by the block's scales").help(
				"remove it, or use scales of rows or one scale")
			return false
		}
	}
	return true
}

// resultType returns the dtype of the destination or annotation, or def if there is none.
func (in *inference) resultType(def ir.DType) ir.DType {
	switch {
	case in.s.Into != nil:
		return in.in.Into[in.s].Type.DType
	case in.s.Type != nil:
		return in.s.Type.DType
	}
	return def
}

// quantize types quantize %x, %s. The result has the layout of x.
func (in *productRules) quantize() *ir.Type {
	x, s := in.args[0], in.args[1]
	if !in.floats() || !in.quantizable() {
		return nil
	}
	out := x.Reduced().Clone()
	if out.DType = in.resultType(ir.F8E4M3); !out.DType.IsFloat8() {
		in.errorf("type", in.s.Pos, "the result of quantize can be f8e4m3 or f8e5m2, not %s", out.DType).help(
			"convert with cast")
		return nil
	}
	in.need(0, x.Reduced())
	need := x.Reduced()
	if in.local {
		need = nil
	}
	last := len(x.Dims) - 1
	square := last == 1 && len(s.Dims) == 2 && in.norm.equal(x.Dims[last-1].Extent, s.Dims[last-1].Extent) != yes
	if !in.scalesFit(1, 0, need, square) {
		return nil
	}
	return out
}

// quantizable reports an error for an operand that already has an 8-bit type.
func (in *productRules) quantizable() bool {
	if in.args[0].DType.IsFloat8() {
		in.errorf("type", in.s.Args[0].Pos, "%%%s already has the 8-bit type %s", in.syms[0].Name, in.args[0].DType).
			help("to use other scales, quantize the original values")
		return false
	}
	return true
}

// scales types scales %x. If elements that share a scale are on several ranks, the result is a partial maximum.
func (in *productRules) scales() *ir.Type {
	if !in.floats() || !in.constant("max", in.args[0].DType) {
		return nil
	}
	if a := in.s.Attr("max"); a != nil && a.IsNum && !(float32(a.Num) > 0 && !math.IsInf(a.Num, 0)) {
		in.errorf("type", a.Pos, "max=%v is not a positive number of type f32", a.Num).
			help("write the largest magnitude of the quantized type, such as 448 for f8e4m3")
		return nil
	}
	x := in.args[0].Reduced()
	in.need(0, x)
	out, last := x.Clone(), len(x.Dims)-1
	out.DType = ir.F32
	block, ok := in.scaleBlocks(last + 1)
	if !ok {
		return nil
	}
	if keep := min(len(block), 1) * last; len(block) < 2 {
		for _, d := range out.Dims[keep:] {
			out.Partial = append(out.Partial, partialOver(d.Axes, ir.Max)...)
		}
		out.Dims = out.Dims[:keep]
		return out
	}
	for i, size := range block {
		d := &out.Dims[last-1+i]
		if size == 1 {
			continue
		}
		if len(d.Axes) > 0 && !in.require(in.s, ir.CheckMultiple, d.Extent,
			ir.Bin(ir.ExprMul, ir.Int(size), ir.SizeOf(d.Axes)),
			in.s.Pos, "a block of 128 elements that share a scale would be divided between two ranks",
			"split the dimension into multiples of 128, or use scales of rows") {
			return nil
		}
		d.Extent = in.fold(ir.Bin(ir.ExprCeilDiv, d.Extent, ir.Int(size)))
	}
	return out
}

// scaleBlocks reads the attribute block=. Without the attribute, all elements of x share one scale. With block=1, each
// row has one scale. With two extents, each block of these extents has one scale. The argument dims is the number of
// dimensions of x.
func (in *productRules) scaleBlocks(dims int) ([]int64, bool) {
	a := in.s.Attr("block")
	if a == nil {
		return nil, true
	}
	var block []int64
	for _, e := range a.Exprs {
		v, _ := in.norm.norm(e).constValue()
		block = append(block, v)
	}
	rows := slices.Equal(block, []int64{1}) && dims > 0
	blocks := slices.Equal(block, []int64{1, scaleBlock}) && dims > 1
	square := slices.Equal(block, []int64{scaleBlock, scaleBlock}) && dims == 2
	if !rows && !blocks && !square {
		in.errorf("type", a.Pos, "this block= is not possible for a tensor with %s", plural(dims, "dimension")).
			help("use block=1 for rows, block=(1, 128), block=(128, 128) for a matrix, or no block= for one scale")
		return nil, false
	}
	return block, true
}
