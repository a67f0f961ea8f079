package checker

import (
	"hocket.example/hocket/ir"
	"math"
	"slices"
)

// attentionRules infers the types of the operations of attention.
type attentionRules struct {
	*inference
	// lengths is the index of the operand that holds the numbers of keys. mask is the index of the operand that is
	// added to the scores. An index is 0 if the operation has no such operand.
	lengths, mask int
}

func ofAttention(in *inference) *attentionRules {
	a := &attentionRules{inference: in}
	if last := len(in.args) - 1; in.s.Op == ir.OpAttention && last > 2 {
		if in.args[3].DType.IsInt() {
			a.lengths = 3
		}
		if !in.args[last].DType.IsInt() {
			a.mask = last
		}
	}
	return a
}

// forward infers the type of attention q[…, Tq, Hq, Dh], k and v[…, Tk, Hkv, Dh]. Leading dimensions and heads may be
// split. All three operands must be split in the same way, because block r of q's heads uses block r of k's heads. The
// sequence dimensions and Dh must be whole.
func (in *attentionRules) forward() *ir.Type {
	if !in.floats() || !in.attentionTypes() || !in.attentionShapes() || !in.attentionSees() || !in.attentionScores() {
		return nil
	}
	if in.local {
		return in.args[0]
	}
	layouts := slices.Clone(in.args[:3])
	as := func(i int, layout *ir.Type) *ir.Type { return in.headLayout(in.args[i], layout) }
	from := layouts[in.cheapest(layouts, as)]
	for i := range 3 {
		t := as(i, from)
		in.requireShards(t)
		in.need(i, t)
	}
	if i := in.lengths; i > 0 { // the lengths are split like the leading dimensions; dimension Tq is whole
		in.follow(i, len(in.args[i].Dims), as(0, from))
	}
	if i := in.mask; i > 0 {
		mask, q := in.args[i].Reduced().Clone(), as(0, from)
		for d := range mask.Dims {
			if mask.Dims[d].Axes = nil; d < len(mask.Dims)-2 {
				mask.Dims[d].Axes = slices.Clone(q.Dims[d].Axes)
			}
		}
		mask.Mesh = q.Mesh
		in.requireShards(mask)
		in.need(i, mask)
	}
	return as(0, from)
}

// attentionTypes checks that queries, keys and values have the same type, and that lengths are integers.
func (in *attentionRules) attentionTypes() bool {
	for i, t := range in.sequences() {
		if t.DType != in.args[0].DType {
			in.errorf("type", in.s.Args[i].Pos, "%s mixes %s and %s", in.s.Op, in.args[0].DType,
				t.DType).help("convert one of the operands with cast")
			return false
		}
	}
	if i := in.mask; i > 0 && in.args[i].DType != in.args[0].DType {
		in.errorf("type", in.s.Args[i].Pos, "attention with operands of type %s needs a mask of the same type, but the mask is %s", in.args[0].DType,
			in.args[i].DType).help("convert the mask with cast; if the operand holds lengths, they must be i32 or i64")
		return false
	}
	return in.s.Op != ir.OpAttention || len(in.args) < 5 || in.integers(3, "lengths") && in.maskLast()
}

// maskLast checks that the fifth operand is a mask.
func (in *attentionRules) maskLast() bool {
	if in.mask > 0 {
		return true
	}
	in.errorf("type", in.s.Args[4].Pos, "the fifth operand of attention must be a mask of type %s, but %%%s is %s",
		in.args[0].DType, in.syms[4].Name, in.args[4].DType).
		help("attention: " + ir.OpAttention.Info().Doc)
	return false
}

// headLayout returns t with its leading dimensions and heads split as in the type from. If t has a single head, all
// heads of the type from use it, so the head dimension of t is whole.
func (in *attentionRules) headLayout(t, from *ir.Type) *ir.Type {
	out := t.Reduced().Clone()
	heads := len(t.Dims) - 2
	n, constant := in.norm.norm(t.Dims[heads].Extent).constValue()
	one := constant && n == 1
	for i := range out.Dims {
		out.Dims[i].Axes = nil
		if i < heads-1 || i == heads && !one {
			out.Dims[i].Axes = slices.Clone(from.Dims[i].Axes)
		}
	}
	out.Mesh = from.Mesh
	return out
}

// sequences returns the queries, keys and values of an attention. For attention_lse, which has no values, it returns
// the queries and keys.
func (in *attentionRules) sequences() []*ir.Type { return in.args[:min(3, len(in.args))] }

// attentionShapes checks that the shapes of queries, keys and values match.
func (in *attentionRules) attentionShapes() bool {
	q, n, help := in.args[0], len(in.args[0].Dims), in.s.Op.String()+": "+in.s.Op.Info().Doc
	for i, t := range in.sequences() {
		if len(t.Dims) != n || n < 3 {
			in.errorf("type", in.s.Args[i].Pos, "all operands of %s must have the same number of dimensions, at least 3, but %%%s has %s",
				in.s.Op, in.syms[i].Name, plural(len(t.Dims), "dimension")).
				help(help)
			return false
		}
	}
	seq, heads, dh := n-3, n-2, n-1
	if in.lengths > 0 && !in.attentionLengths(seq) || in.mask > 0 && !in.attentionMask(seq) {
		return false
	}
	last := len(in.sequences()) - 1
	for i := 1; i <= last; i++ {
		t, pos := in.args[i], in.s.Args[i].Pos
		for d := range seq {
			if !in.equalExtents(q.Dims[d].Extent, t.Dims[d].Extent, pos,
				"leading dimension "+itoa(d)+" of "+in.s.Op.String()+" differs") {
				return false
			}
		}
		if !in.equalExtents(q.Dims[dh].Extent, t.Dims[dh].Extent, pos, "the operands differ in the size of a head") {
			return false
		}
	}
	k, v := in.args[1], in.args[last]
	return in.equalExtents(k.Dims[seq].Extent, v.Dims[seq].Extent, in.s.Args[last].Pos,
		"keys and values differ in their number of positions") &&
		in.equalExtents(k.Dims[heads].Extent, v.Dims[heads].Extent, in.s.Args[last].Pos,
			"keys and values differ in their number of heads") &&
		in.require(in.s, ir.CheckLess, ir.Int(0), k.Dims[heads].Extent, in.s.Args[1].Pos, "attention needs at least one head",
			"the dimension must not be empty") &&
		in.require(in.s, ir.CheckMultiple, q.Dims[heads].Extent, k.Dims[heads].Extent, in.s.Args[0].Pos,
			"the number of heads of q must be a multiple of that of k and v", help) &&
		in.require(in.s, ir.CheckLess, ir.Int(0), q.Dims[dh].Extent, in.s.Args[0].Pos, "a head must have at least one element",
			"the dimension must not be empty")
}

// attentionLengths checks that the lengths operand has one element for each sequence or one for each query.
func (in *attentionRules) attentionLengths(seq int) bool {
	n, pos := len(in.args[3].Dims), in.s.Args[3].Pos
	switch {
	case n != seq && n != seq+1:
		in.errorf("type", pos, "lengths need %s (one length for each sequence) or %d (one for each query), but %%%s has %d",
			plural(seq, "dimension"), seq+1, in.syms[3].Name, n).
			help("attention: " + ir.OpAttention.Info().Doc)
		return false
	case n == seq+1 && in.s.Word("causal", "false") == "true":
		in.errorf("type", pos, "causal=true cannot be combined with a length for each query").help("remove causal=true: the lengths already limit the keys of each query")
		return false
	}
	for d := range n {
		if !in.equalExtents(in.args[0].Dims[d].Extent, in.args[3].Dims[d].Extent, pos,
			"lengths differ from the queries in dimension "+itoa(d)) {
			return false
		}
	}
	return true
}

// attentionMask checks that the mask has an element for each query and key, either of each sequence or shared by all
// sequences.
func (in *attentionRules) attentionMask(seq int) bool {
	i := in.mask
	t, pos, n := in.args[i], in.s.Args[i].Pos, len(in.args[i].Dims)
	if n != 2 && n != seq+2 {
		in.errorf("type", pos, "a mask must be [Tq, Tk], or have %s to hold one mask for each sequence, but %%%s has %d",
			plural(seq+2, "dimension"), in.syms[i].Name, n).
			help("attention: " + ir.OpAttention.Info().Doc)
		return false
	}
	for d := range n - 2 {
		if !in.equalExtents(in.args[0].Dims[d].Extent, t.Dims[d].Extent, pos,
			"the mask differs from the queries in dimension "+itoa(d)) {
			return false
		}
	}
	return in.equalExtents(in.args[0].Dims[seq].Extent, t.Dims[n-2].Extent, pos,
		"the mask's number of queries differs from that of q") &&
		in.equalExtents(in.args[1].Dims[seq].Extent, t.Dims[n-1].Extent, pos,
			"the mask's number of keys differs from that of k")
}

// attentionScores checks that a window and a soft cap are positive. A window needs the position of each query among the
// keys, so attentionScores also checks that causal=true or lengths for each query define this position.
func (in *attentionRules) attentionScores() bool {
	for _, name := range []string{"window", "softcap"} {
		a := in.s.Attr(name)
		switch {
		case a == nil:
		case a.IsNum && !(a.Num > 0 && a.Num < math.Inf(1) && (name == "softcap" || a.Num == math.Trunc(a.Num))):
			what := map[string]string{"window": "a whole number of keys, 1 or more",
				"softcap": "a positive number"}[name]
			in.errorf("type", a.Pos, "%s=%v is not %s", name, a.Num, what).help("omit the attribute to disable it")
			return false
		case !in.constant(name, in.args[0].DType):
			return false
		case !a.IsNum && !in.require(in.s, ir.CheckLess, ir.Int(0), a.Exprs[0], a.Pos, name+" is not positive",
			"omit the attribute to disable it"):
			return false
		}
	}
	perQuery := in.lengths > 0 && len(in.args[3].Dims) == len(in.args[0].Dims)-2
	if a := in.s.Attr("window"); a != nil && !perQuery && in.s.Word("causal", "false") != "true" {
		in.errorf("type", a.Pos, "window= needs the position of each query among the keys, which causal=true or lengths define").
			help("add causal=true, or an operand with a length for each query")
		return false
	}
	return true
}

// attentionSees reports an error if a query may have no keys. If the attention has a lengths operand, a query without
// keys is allowed, and its result is zero.
func (in *attentionRules) attentionSees() bool {
	if in.lengths > 0 {
		return true
	}
	seq := len(in.args[0].Dims) - 3
	tq, tk := in.args[0].Dims[seq].Extent, in.args[1].Dims[seq].Extent
	if in.s.Word("causal", "false") == "true" {
		return in.require(in.s, ir.CheckAtMost, tq, tk, in.s.Args[0].Pos,
			"with causal=true the first queries would attend to no key",
			"the last query attends to all keys, and each query before it to one key less: use at least as many keys as queries")
	}
	return in.require(in.s, ir.CheckLess, ir.Int(0), tk, in.s.Args[1].Pos, "attention needs at least one key",
		"the number of keys must be 1 or more")
}

// gradient infers the types of attention_lse, attention_dq and attention_dkv. The operands of these operations are
// split in the same way as the operands of attention. Operands with one number for each query are split in the same way
// as the queries.
func (in *attentionRules) gradient() *ir.Type {
	if !in.floats() || !in.attentionTypes() || !in.attentionShapes() || !in.attentionSees() || !in.attentionRows() {
		return nil
	}
	q := in.args[0]
	if !in.local {
		layouts := slices.Clone(in.sequences())
		as := func(i int, layout *ir.Type) *ir.Type { return in.headLayout(in.args[i], layout) }
		from := layouts[in.cheapest(layouts, as)]
		for i, t := range in.args {
			t = in.headLayout(q, from)
			switch {
			case i == 1 || i == 2:
				t = as(i, from)
			case i > 3:
				t = in.perQuery(t)
			}
			in.requireShards(t)
			in.need(i, t)
		}
		q = as(0, from)
	}
	switch in.s.Op {
	case ir.OpAttentionLSE:
		return in.perQuery(q)
	case ir.OpAttentionDQ:
		return q
	}
	both := in.args[1].Clone()
	if heads := len(q.Dims) - 2; !in.local {
		if both = in.headLayout(in.args[1], q); len(both.Dims[heads].Axes) == 0 {
			both.Partial = partialOver(q.Dims[heads].Axes, ir.Sum) // a single head is used by the heads of all ranks, so its gradient is a partial sum
		}
	}
	both.Dims = append([]ir.Dimension{{Extent: ir.Int(2)}}, both.Dims...)
	return both
}

// perQuery returns the type of a tensor with one number for each query of each head of q.
func (in *attentionRules) perQuery(q *ir.Type) *ir.Type {
	t := q.Clone()
	t.DType, t.Dims = q.DType.Accum(), t.Dims[:len(t.Dims)-1]
	return t
}

// attentionRows checks that dy has the shape of q, and that the operands with one number for each query of each head
// have the corresponding dimensions.
func (in *attentionRules) attentionRows() bool {
	if len(in.args) < 4 {
		return true
	}
	q := in.args[0]
	for i, t := range in.args[3:] {
		want := q
		if i > 0 {
			want = in.perQuery(q)
		}
		pos := in.s.Args[3+i].Pos
		if t.DType != want.DType || len(t.Dims) != len(want.Dims) {
			in.errorf("type", pos, "%s with queries of type %s needs %s of type %s, but %%%s is %s", in.s.Op, ir.Brief(q),
				want.DType, plural(len(want.Dims), "dimension"), in.syms[3+i].Name, ir.Brief(t)).
				help(in.s.Op.String() + ": " + in.s.Op.Info().Doc)
			return false
		}
		for d := range want.Dims {
			if !in.equalExtents(want.Dims[d].Extent, t.Dims[d].Extent, pos,
				"it differs from the queries in dimension "+itoa(d)) {
				return false
			}
		}
	}
	return true
}
