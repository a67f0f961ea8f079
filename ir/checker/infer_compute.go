package checker

import (
	"hocket.example/hocket/ir"
	"math"
	"slices"
)

// inferElementwise infers the type of an elementwise operation according to its row in the Op table. The numeric
// attributes of the operation must be representable in the operands' type.
func inferElementwise(in *inference) *ir.Type {
	info := in.s.Op.Info()
	if !in.sameDType() || info.Floats && !in.floats() {
		return nil
	}
	for _, spec := range info.Numbers() {
		if !in.constant(spec.Name, in.args[0].DType) {
			return nil
		}
	}
	if len(in.args) > 1 {
		return inferSeveral(in)
	}
	x := in.args[0]
	if !info.Linear || !allSums(x) {
		x = x.Reduced()
		in.need(0, x)
	}
	return x
}

// inferSeveral infers the types of elementwise operations with several operands. The shape of each operand must equal
// the first operand's shape or its trailing dimensions.
func inferSeveral(in *inference) *ir.Type {
	first, alike := in.args[0], true
	for k, t := range in.args[1:] {
		skip, pos := len(first.Dims)-len(t.Dims), in.s.Args[k+1].Pos
		if skip < 0 {
			in.errorf("type", pos, "the %s operand of %s has more dimensions than the first", ordinals[k], in.s.Op).
				help("swap the operands")
			return nil
		}
		for i := range t.Dims {
			what := "the operands of " + in.s.Op.String() + " differ in dimension " + itoa(skip+i)
			if !in.equalExtents(first.Dims[skip+i].Extent, t.Dims[i].Extent, pos, what) {
				return nil
			}
		}
		alike = alike && skip == 0 && ir.SameLayout(first, t)
	}
	if in.local || alike && (len(first.Partial) == 0 || passesPartial(in.s.Op, ir.Sum) && allSums(first)) {
		return first
	}
	out := first.WithLayout(in.commonLayout())
	for k, t := range in.args {
		need, skip := t.Reduced().Clone(), len(first.Dims)-len(t.Dims)
		for i := range need.Dims {
			need.Dims[i].Axes = slices.Clone(out.Dims[skip+i].Axes)
		}
		need.Mesh = out.Mesh
		in.need(k, need)
	}
	return out
}

var ordinals = []string{"second", "third"}

// commonLayout returns the layout of an operand that has as many dimensions as the result. commonLayout chooses the
// operand for which the fewest other operands have to move data between ranks (cutCost). In a tie, commonLayout chooses
// the last such operand, so earlier operands are resharded (S20).
func (in *inference) commonLayout() *ir.Type {
	var best *ir.Type
	least := 0
	for _, to := range in.args {
		if len(to.Dims) < len(in.args[0].Dims) {
			continue
		}
		cost := 0
		for _, t := range in.args {
			if len(t.Dims) == len(to.Dims) {
				cost += cutCost(t.Reduced(), to.Reduced())
			}
		}
		if best == nil || cost <= least {
			best, least = to.Reduced(), cost
		}
	}
	return best
}

func allSums(t *ir.Type) bool {
	return !slices.ContainsFunc(t.Partial, func(p ir.Partial) bool { return p.Red != ir.Sum })
}

// inferCopy types copy. The operand may be partial, and the result is then partial in the same way.
func inferCopy(in *inference) *ir.Type { return in.args[0] }

// floats reports an error for integer operands if the operation is not defined for integers.
func (in *inference) floats() bool {
	if !in.args[0].DType.IsInt() {
		return true
	}
	in.errorf("type", in.s.Args[0].Pos, "%s is defined for floating-point types only, but %%%s is %s", in.s.Op,
		in.syms[0].Name,
		in.args[0].DType).help("convert it with cast")
	return false
}

// inferCast uses the dtype of the annotation or of the destination.
func inferCast(in *inference) *ir.Type {
	to := ir.InvalidDType
	switch {
	case in.s.Into != nil:
		to = in.in.Into[in.s].Type.DType
	case in.s.Type != nil:
		to = in.s.Type.DType
	default:
		in.errorf("type", in.s.Pos, "cast has no target type").help("annotate the result: %y: f32[…] = cast %x, " +
			"or write it into a buffer")
		return nil
	}
	x := in.args[0].Reduced()
	in.need(0, x)
	out := x.Clone()
	out.DType = to
	return out
}

// axesRed maps each reducing operation to the partial reduction of its result if the reduced dimension is split. For a
// mean, this reduction is the average of the ranks' means, because all shards have the same size.
var axesRed = map[ir.Op]ir.Red{ir.OpSum: ir.Sum, ir.OpMax: ir.Max, ir.OpMin: ir.Min, ir.OpMean: ir.Avg}

var axesWord = map[ir.Op]string{ir.OpMax: "maximum", ir.OpMin: "minimum", ir.OpMean: "mean"}

// inferReduce infers the type of sum, max, min and mean over axis=. If a reduced dimension is split, the result is
// partial.
func inferReduce(in *inference) *ir.Type {
	x := in.args[0]
	red := axesRed[in.s.Op]
	if red == ir.Avg && !in.floats() {
		return nil
	}
	var drop []int
	axes := in.s.Attr("axis")
	if len(axes.Exprs) == 0 {
		in.errorf("type", axes.Pos, "axis= of %s names no dimension", in.s.Op).help("write axis=0 or axis=(0, 1)")
		return nil
	}
	for _, e := range axes.Exprs {
		d, ok := in.dimension(e, len(x.Dims))
		if !ok {
			return nil
		}
		if slices.Contains(drop, d) {
			in.errorf("type", e.Pos, "dimension %d is named twice", d).help("remove one of them")
			return nil
		}
		if red != ir.Sum && !in.require(in.s, ir.CheckLess, ir.Int(0), x.Dims[d].Extent, e.Pos,
			"the "+axesWord[in.s.Op]+" of no elements", "the dimension must not be empty") {
			return nil
		}
		drop = append(drop, d)
	}
	if slices.ContainsFunc(x.Partial, func(p ir.Partial) bool { return p.Red != red || !passesPartial(in.s.Op, red) }) {
		x = x.Reduced()
	}
	in.need(0, x)
	out := x.Clone()
	out.Dims = nil
	for i, d := range x.Dims {
		if slices.Contains(drop, i) {
			out.Partial = append(out.Partial, partialOver(d.Axes, red)...)
		} else {
			out.Dims = append(out.Dims, d)
		}
	}
	return out
}

// inferFill uses the type and layout of the annotation or of the destination.
func inferFill(in *inference) *ir.Type {
	switch {
	case in.s.Into != nil:
		t := in.in.Into[in.s].Type
		if !in.constant("value", t.DType) {
			return nil
		}
		return t
	case in.s.Type == nil:
		in.errorf("type", in.s.Pos, "fill has no result type").help("annotate the result: %z: f32[4] = fill " +
			"value=0, or write into a buffer")
		return nil
	case len(in.s.Type.Partial) > 0:
		in.errorf("layout", in.s.Type.Pos, "the result of fill cannot be partial").help("remove partial(…)")
		return nil
	case !in.constant("value", in.s.Type.DType):
		return nil
	}
	return in.s.Type
}

// constant checks that a number in the text is representable in the type of the computation. An integer type requires
// an integer. A floating-point type requires a number that does not overflow to an infinity.
func (in *inference) constant(name string, dt ir.DType) bool {
	a := in.s.Attr(name)
	if a == nil || !a.IsNum {
		return true
	}
	least, most := -float64(1<<53), float64(1<<53) // integers that a float64 in the text can represent exactly
	if dt == ir.I32 {
		least, most = math.MinInt32, math.MaxInt32
	}
	switch {
	case dt.IsInt() && (a.Num != math.Trunc(a.Num) || a.Num < least || a.Num > most):
		in.errorf("type", a.Pos, "%s=%v is not a value of type %s", name, a.Num,
			dt).help("use an integer in the range of the type, or cast the operand to a floating-point type first")
	case dt.Accum() == ir.F32 && !math.IsInf(a.Num, 0) && math.IsInf(float64(float32(a.Num)), 0):
		in.errorf("type", a.Pos, "%s=%v exceeds the range of f32, in which the operation is computed", name,
			a.Num).help("cast the operand to f64 first, or use a number up to 3.4e38")
	default:
		return true
	}
	return false
}

// inferReshard uses the layout of the annotation.
func inferReshard(in *inference) *ir.Type {
	switch {
	case in.local:
		in.errorf("type", in.s.Args[0].Pos, "reshard applies to values, but %%%s is a buffer", in.syms[0].Name).
			help("use a collective, or " + in.claimHelp(in.syms[0], in.args[0]))
		return nil
	case in.s.Type == nil:
		in.errorf("type", in.s.Pos, "reshard has no target layout").help("annotate the result: %y: f32[T/tp, K] = " +
			"reshard %x")
		return nil
	case !in.stillPartial(in.s.Type, in.args[0]):
		return nil
	}
	if !in.sameShape(in.s, in.args[0], in.s.Type, in.s.Type.Pos) {
		return nil
	}
	in.requireShards(in.s.Type)
	return in.s.Type
}

func partialOver(axes []string, red ir.Red) []ir.Partial {
	var ps []ir.Partial
	for _, a := range axes {
		ps = append(ps, ir.Partial{Axis: a, Red: red})
	}
	return ps
}
