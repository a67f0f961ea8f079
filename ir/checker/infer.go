package checker

import (
	"hocket.example/hocket/ir"
	"slices"
	"strconv"
)

// inference infers the type of the result of one tensor operation. In value mode, operands have global extents and
// layouts. Local mode applies if the statement has an into clause or a buffer operand. All types are then local and
// have no layout.
type inference struct {
	*relations
	s     *ir.Stmt
	syms  []*ir.Sym
	args  []*ir.Type
	local bool
	// want is the layout that the annotation or the signature requires for the result. want is nil if none is required.
	want *ir.Type
	// needs[i] is the type to which operand i must be resharded, or nil if no reshard is needed.
	needs []*ir.Type
	// view reports that the result is a view of the rank's own shard of the operand, even in value mode. A view with a
	// rank-dependent index is an example.
	view bool
	// after is the final type of the result if the operation itself produces another type. For example, a row-parallel
	// linear produces a partial sum; the reduction and the bias follow and produce the type after.
	after *ir.Type
}

// inferOf maps each operation to the function that determines the type of its result. The function returns the type
// before any reshard, or nil after an error. The type of an elementwise operation that is not listed is determined
// by its row in the Op table.
var inferOf = map[ir.Op]func(*inference) *ir.Type{
	ir.OpLinear: by(ofProduct, (*productRules).linear), ir.OpMatmul: by(ofProduct, (*productRules).matmul),
	ir.OpGroupedLinear: by(ofProduct, (*productRules).grouped), ir.OpScales: by(ofProduct, (*productRules).scales),
	ir.OpQuantize: by(ofProduct, (*productRules).quantize),
	ir.OpCopy:     inferCopy, ir.OpCast: inferCast, ir.OpFill: inferFill, ir.OpExpand: inferExpand,
	ir.OpReshard: inferReshard,
	ir.OpSum:     inferReduce, ir.OpMax: inferReduce, ir.OpMin: inferReduce, ir.OpMean: inferReduce,
	ir.OpSoftmax: inferSoftmax, ir.OpRMSNorm: inferNorm, ir.OpLayerNorm: inferNorm,
	ir.OpRMSNormDX: inferNormGrad, ir.OpRMSNormDW: inferNormGrad,
	ir.OpConcat:       by(ofConcatenation, (*concatRules).concat),
	ir.OpAttention:    by(ofAttention, (*attentionRules).forward),
	ir.OpAttentionLSE: by(ofAttention, (*attentionRules).gradient),
	ir.OpAttentionDQ:  by(ofAttention, (*attentionRules).gradient),
	ir.OpAttentionDKV: by(ofAttention, (*attentionRules).gradient),
	ir.OpEmbedding:    by(ofIndexing, (*indexRules).embedding),
	ir.OpReduceSlots:  by(ofIndexing, (*indexRules).reduceSlots),
	ir.OpIndexCopy:    by(ofIndexing, (*indexRules).indexCopy), ir.OpRope: by(ofIndexing, (*indexRules).rope),
	ir.OpArgmax: by(ofIndexing, (*indexRules).argmax), ir.OpIota: by(ofIndexing, (*indexRules).iota),
	ir.OpTopK: by(ofIndexing, (*indexRules).topK), ir.OpArgTopK: by(ofIndexing, (*indexRules).topK),
	ir.OpArgsort: by(ofIndexing, (*indexRules).argsort), ir.OpTakeAlong: by(ofIndexing, (*indexRules).takeAlong),
	ir.OpBincount: by(ofIndexing, (*indexRules).bincount), ir.OpIndexAdd: by(ofIndexing, (*indexRules).indexAdd),
	ir.OpChunk: by(ofView, (*viewRules).chunk), ir.OpSlice: by(ofView, (*viewRules).slice),
	ir.OpSelect:    by(ofView, (*viewRules).pick),
	ir.OpTranspose: by(ofView, (*viewRules).transpose), ir.OpReshape: by(ofView, (*viewRules).reshape),
	ir.OpClaim: by(ofView, (*viewRules).claim), ir.OpLocal: by(ofView, (*viewRules).ownShard),
	ir.OpAllReduce:      by(ofCollective, (*collectiveRules).allReduce),
	ir.OpAllGather:      by(ofCollective, (*collectiveRules).allGather),
	ir.OpReduceScatter:  by(ofCollective, (*collectiveRules).reduceScatter),
	ir.OpAllToAll:       by(ofCollective, (*collectiveRules).allToAll),
	ir.OpBroadcast:      by(ofCollective, (*collectiveRules).rooted),
	ir.OpReduce:         by(ofCollective, (*collectiveRules).rooted),
	ir.OpGather:         by(ofCollective, (*collectiveRules).rooted),
	ir.OpScatter:        by(ofCollective, (*collectiveRules).rooted),
	ir.OpPermute:        by(ofCollective, (*collectiveRules).rooted),
	ir.OpAllGatherV:     by(ofCollective, (*collectiveRules).uneven),
	ir.OpReduceScatterV: by(ofCollective, (*collectiveRules).uneven),
	ir.OpAllToAllV:      by(ofCollective, (*collectiveRules).uneven),
}

// by converts a rule to a function of the type that inferOf contains. A rule is a method of a family, such as
// attentionRules, which adds state and checks to an inference.
func by[F any](family func(*inference) F, rule func(F) *ir.Type) func(*inference) *ir.Type {
	return func(in *inference) *ir.Type { return rule(family(in)) }
}

// checkTensorOp checks tensor operations, views and collectives, and defines their results.
func (c *checker) checkTensorOp(s *ir.Stmt) {
	syms, ok := c.tensors(s)
	if s.Op.Info().Class == ir.ClassCollective {
		ok = c.onDevice(s, syms) && ok
	}
	var dst *ir.Sym
	if s.Into != nil {
		dst = c.destination(s)
		ok = ok && dst != nil
	}
	if dst != nil && s.Op.Info().Class == ir.ClassCollective && flagsOf(dst)&ir.Host != 0 {
		c.errorf("type", s.Into.Pos, "%s needs device memory, but %%%s is a host buffer", s.Op, dst.Root().Name).
			at(dst.Root().Pos, "defined here").help("write to a device buffer, and copy it to the host buffer")
		ok = false
	}
	if s.Type != nil {
		ok = c.checkType(s.Type) && ok
	}
	if !ok {
		c.defineBad(s)
		return
	}
	in := c.newInference(s, syms)
	if !in.arithmeticTypes() || !in.wholeOperands() || !in.sameOnAllRanks() {
		c.defineBad(s)
		return
	}
	infer := inferOf[s.Op]
	if infer == nil {
		infer = inferElementwise
	}
	t := infer(in)
	if t == nil {
		c.defineBad(s)
		return
	}
	if dst != nil {
		if s.Type != nil {
			c.errorf("structure", s.Type.Pos, "an op with into has no result, so it cannot have a type annotation").help("remove the type")
		}
		if c.assignable(s, t, dst.Type, s.Into.Pos) {
			in.checkOverlap(dst)
		}
		return
	}
	c.defineResult(in, t)
}

func (c *checker) newInference(s *ir.Stmt, syms []*ir.Sym) *inference {
	in := &inference{relations: c.relations, s: s, syms: syms, needs: make([]*ir.Type, len(syms)), want: s.Type}
	in.local = s.Into != nil || slices.ContainsFunc(syms, func(x *ir.Sym) bool { return x.Kind == ir.SymBuffer })
	for _, sym := range syms {
		t := c.boundedType(sym)
		if in.local {
			t = c.localType(sym)
		}
		in.args = append(in.args, t)
	}
	if in.want == nil && !in.local && len(s.Results) == 1 && c.blocks == 1 {
		if w := c.wanted[s.Results[0].Text]; w != nil {
			in.want = w
		}
	}
	return in
}

// defineResult defines the operation's result with its annotated or inferred type.
func (c *checker) defineResult(in *inference, t *ir.Type) {
	s := in.s
	sym := &ir.Sym{Name: s.Results[0].Text, Pos: s.Results[0].Pos, Def: s, Type: t, Kind: ir.SymValue}
	if in.view || (in.local && s.Op != ir.OpClaim) {
		sym.Kind = ir.SymBuffer
	}
	if in.view || (in.local && s.Op.Info().Class == ir.ClassView && s.Op != ir.OpClaim) {
		sym.Base = in.syms[0].Root()
	}
	if sym.Kind == ir.SymBuffer {
		if s.Type != nil {
			in.checkLocalAnnotation(t)
		}
	} else {
		in.settleLayout(sym, t)
	}
	in.define(sym)
	in.in.Results[s] = []*ir.Sym{sym}
	if slices.ContainsFunc(in.needs, func(n *ir.Type) bool { return n != nil }) {
		in.in.Needs[s] = in.needs
	}
}

func (in *inference) checkLocalAnnotation(t *ir.Type) {
	a := in.s.Type
	if !a.Whole() || a.Mesh != "" {
		in.errorf("layout", a.Pos, "the result is local to each rank, so its type cannot have a layout").
			help("turn the local tensor into a value with claim: %v: " + a.String() + " = claim %" + in.s.Results[0].Text)
		return
	}
	in.assignable(in.s, t, a, a.Pos)
}

// settleLayout gives a value its annotated layout. If the operation produces another layout, settleLayout records that
// layout in Info.Natural.
func (in *inference) settleLayout(sym *ir.Sym, natural *ir.Type) {
	s := in.s
	target := natural
	if in.after != nil {
		target = in.after
	}
	if s.Type != nil {
		if !in.sameShape(s, natural, s.Type, s.Type.Pos) || !in.stillPartial(s.Type, natural) {
			sym.Type = nil // the error was reported; uses of the symbol are not reported
			return
		}
		target = s.Type
	}
	if target != natural || s.Op == ir.OpFill || s.Op == ir.OpIota {
		in.requireShards(target)
	}
	sym.Type = target
	if !ir.SameLayout(natural, target) {
		in.in.Natural[s] = natural
	}
}

// stillPartial reports an error if the annotation of a value is partial and the operation's result is not.
func (c *relations) stillPartial(want, have *ir.Type) bool {
	for _, p := range want.Partial {
		if !slices.Contains(have.Partial, p) {
			c.errorf("layout", want.Pos, "the result cannot be partial(%s, %s): the op computes %s", p.Axis, p.Red,
				ir.Brief(have)).
				help("remove partial(…)")
			return false
		}
	}
	return true
}

// passesPartial reports whether an operation that is applied to each rank's contribution produces the contributions to
// its result (S10). passesPartial also returns true for views, collectives and transfers, which only move
// contributions.
func passesPartial(op ir.Op, red ir.Red) bool {
	switch op {
	case ir.OpSum:
		return red == ir.Sum
	case ir.OpMax:
		return red == ir.Max
	case ir.OpMin:
		return red == ir.Min
	}
	return op.Info().Linear && red == ir.Sum || op == ir.OpCopy || op == ir.OpExpand || op == ir.OpConcat ||
		op.Info().Class != ir.ClassTensor
}

// wholeOperands reports an error for a partial operand in local mode, because the operation would use the
// contribution of one rank as if it were the whole value.
func (in *inference) wholeOperands() bool {
	if !in.local {
		return true
	}
	for i, sym := range in.syms {
		if slices.ContainsFunc(sym.Type.Partial, func(p ir.Partial) bool { return !passesPartial(in.s.Op, p.Red) }) {
			in.errorf("layout", in.s.Args[i].Pos,
				"%s cannot use the partial value %%%s: each rank has only a contribution to it", in.s.Op, sym.Name).
				at(sym.Pos, "it is %s", ir.Brief(sym.Type)).help("reduce the value first: %r = all_reduce %" + sym.Name +
				", over=" + sym.Type.Partial[0].Axis + ", op=" + sym.Type.Partial[0].Red.String())
			return false
		}
	}
	return true
}

// sameOnAllRanks is for operations on values. sameOnAllRanks reports an error for a factor, a fill value or an extent
// that depends on the rank, because the copies of the result on different ranks would then differ.
func (in *inference) sameOnAllRanks() bool {
	for _, a := range in.s.Attrs {
		if !in.local && a.Kind == ir.AttrNumber && len(a.Exprs) > 0 && in.rankDependent(a.Exprs[0]) {
			in.errorf("type", a.Exprs[0].Pos, "a value must be the same on every rank, but %s may differ between ranks",
				ir.Brief(a.Exprs[0])).help("write the result to a buffer: … into %b")
			return false
		}
	}
	if in.s.Type == nil || in.local && in.s.Op != ir.OpClaim {
		return true
	}
	for _, d := range in.s.Type.Dims {
		if in.rankDependent(d.Extent) {
			in.errorf("type", in.s.Type.Pos, "the extents of a value must be the same on every rank, but %s may differ between ranks",
				ir.Brief(d.Extent)).help("write the result to a buffer: … into %b")
			return false
		}
	}
	return true
}

const shardHelp = "all ranks must have blocks of the same size (S1)"

// requireShards requires that each dimension be divisible by the sizes of its axes.
func (in *inference) requireShards(t *ir.Type) {
	for _, d := range t.Dims {
		if len(d.Axes) > 0 {
			in.require(in.s, ir.CheckMultiple, d.Extent, ir.SizeOf(d.Axes), in.s.Pos,
				"a dimension is not divisible by the size of "+ir.SizeWords(d.Axes), shardHelp)
		}
	}
}

// need requires operand i in layout t. It records nothing if the operand already has this layout.
func (in *inference) need(i int, t *ir.Type) {
	if !ir.SameLayout(in.args[i], t) {
		in.needs[i] = t
	}
}

// checkOverlap reports an error for an operation that writes memory which it also reads. There are two exceptions. An
// elementwise operation may overwrite an operand that has as many dimensions as the result, because each result element
// depends only on the operand element at the same index. A collective may overwrite its operand, because it copies the
// operand first.
func (in *inference) checkOverlap(dst *ir.Sym) {
	info := in.s.Op.Info()
	if info.Class == ir.ClassCollective {
		return
	}
	for i, a := range in.syms {
		if a.Root() != dst.Root() || dst.Root().Count != nil && !samePlaces(&in.s.Args[i], in.s.Into) {
			continue
		}
		if a == dst && info.Elementwise && len(in.args[i].Dims) == len(dst.Type.Dims) {
			continue
		}
		if a != dst && a.Base != nil && dst.Base != nil {
			continue // two parts of one buffer are compared by the planner, by their byte ranges
		}
		in.errorf("alias", in.s.Into.Pos, "%s reads and writes %%%s at the same time", in.s.Op, dst.Root().Name).
			help("write to another buffer, or copy the operand first")
	}
}

func samePlaces(a, b *ir.Place) bool { return a.Name == b.Name && ir.SameExpr(a.Index, b.Index) }

// equalExtents requires that two extents be equal.
func (in *inference) equalExtents(a, b *ir.Expr, pos ir.Pos, what string) bool {
	return in.require(in.s, ir.CheckEqual, a, b, pos, what, in.s.Op.String()+": "+in.s.Op.Info().Doc)
}

func (in *inference) sameDType() bool {
	for i, t := range in.args {
		if t.DType != in.args[0].DType {
			in.errorf("type", in.s.Args[i].Pos, "%s mixes %s and %s", in.s.Op, in.args[0].DType, t.DType).
				help("convert one of the operands with cast")
			return false
		}
	}
	return true
}

func (in *inference) wantRank(i, least int, what string) bool {
	if n := len(in.args[i].Dims); n < least {
		in.errorf("type", in.s.Args[i].Pos, "%s of %s needs at least %s, and %%%s has %d", what, in.s.Op,
			plural(least, "dimension"), in.syms[i].Name, n).
			help(in.s.Op.String() + ": " + in.s.Op.Info().Doc)
		return false
	}
	return true
}

// axisAttr returns the value of a constant attribute that names a dimension, or def if the attribute is absent.
func (in *inference) axisAttr(name string, def, dims int) (int, bool) {
	a := in.s.Attr(name)
	if a == nil {
		if def >= dims {
			in.errorf("type", in.s.Pos, "a scalar has no dimension %d", def).help("add a dimension with reshape")
			return 0, false
		}
		return def, true
	}
	return in.dimension(a.Exprs[0], dims)
}

func (in *inference) dimension(e *ir.Expr, dims int) (int, bool) {
	v, ok := in.norm.norm(e).constValue()
	switch {
	case !ok:
		in.errorf("type", e.Pos, "the dimension must be a constant, but %s is not constant",
			ir.Brief(e)).help("dimensions are numbered from 0")
		return 0, false
	case v < 0 || v >= int64(dims):
		in.errorf("type", e.Pos, "dimension %d does not exist; the tensor has %s", v,
			plural(dims, "dimension")).help("dimensions are numbered from 0")
		return 0, false
	}
	return int(v), true
}

func itoa(i int) string { return strconv.Itoa(i) }
