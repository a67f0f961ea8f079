package checker

import (
	"hocket.example/hocket/ir"
	"slices"
)

// concatRules types concat.
type concatRules struct{ *inference }

func ofConcatenation(in *inference) *concatRules { return &concatRules{in} }

// concat determines the type of concat %a, %b, … along axis=. The dimension axis= must not be split. If all
// operands have the same layout, the result has the same partial reductions. Otherwise all operands are resharded
// to the layout of one of them. The layout is chosen so that the fewest operands are resharded; among equally good
// ones, the last is used (S20).
func (in *concatRules) concat() *ir.Type {
	if !in.sameDType() || !in.wantRank(0, 1, "an operand") {
		return nil
	}
	n := len(in.args[0].Dims)
	d, ok := in.axisAttr("axis", 0, n)
	if !ok || !in.concatShapes(d) {
		return nil
	}
	out := in.args[0]
	if !in.local {
		out = in.concatLayout(d)
		for i, t := range in.args {
			in.need(i, t.WithLayout(out))
		}
	}
	out = out.Clone()
	out.Dims[d].Extent = in.args[0].Dims[d].Extent
	for _, t := range in.args[1:] {
		out.Dims[d].Extent = ir.Bin(ir.ExprAdd, out.Dims[d].Extent, t.Dims[d].Extent)
	}
	out.Dims[d].Extent = in.fold(out.Dims[d].Extent)
	for i := range out.Dims {
		if i != d {
			out.Dims[i].Extent = in.args[0].Dims[i].Extent
		}
	}
	return out
}

// concatShapes checks that operands have equal extents in all dimensions except d.
func (in *concatRules) concatShapes(d int) bool {
	first := in.args[0]
	for k, t := range in.args[1:] {
		pos := in.s.Args[k+1].Pos
		if len(t.Dims) != len(first.Dims) {
			in.errorf("type", pos, "the operands of concat must have the same number of dimensions, but %%%s has "+
				"%d, not %d",
				in.syms[k+1].Name, len(t.Dims), len(first.Dims)).
				help("reshape one of them")
			return false
		}
		for i := range t.Dims {
			if i != d && !in.equalExtents(first.Dims[i].Extent, t.Dims[i].Extent, pos,
				"the operands of concat differ in dimension "+itoa(i)) {
				return false
			}
		}
	}
	return true
}

// concatLayout chooses the layout in which operands are joined along d.
func (in *concatRules) concatLayout(d int) *ir.Type {
	first := in.args[0]
	if len(first.Dims[d].Axes) == 0 && !slices.ContainsFunc(in.args,
		func(t *ir.Type) bool { return !ir.SameLayout(t, first) }) {
		return first
	}
	var layouts []*ir.Type
	for _, t := range in.args {
		t = t.Reduced().Clone()
		t.Dims[d].Axes = nil
		layouts = append(layouts, t)
	}
	return layouts[in.cheapest(layouts, func(i int, layout *ir.Type) *ir.Type { return in.args[i].WithLayout(layout) })]
}

// cheapest returns the layout for which the fewest operands have to be resharded. Among equally good layouts, it
// returns the last one, so that the first operand is resharded (S20). The argument as is a function that returns the
// layout that operand i must have if the given layout is chosen.
func (in *inference) cheapest(layouts []*ir.Type, as func(i int, layout *ir.Type) *ir.Type) int {
	best, least := 0, len(in.args)+1
	for k, layout := range layouts {
		cost := 0
		for i, t := range in.args[:len(layouts)] {
			cost += cutCost(t, as(i, layout))
		}
		if cost <= least {
			best, least = k, cost
		}
	}
	return best
}

// cutCost returns 0 if each rank can extract its block of layout u from its block of layout t, and 1 if a reshard from
// t to u moves bytes between ranks. cutCost uses only the text of the program, not the values of dims (S20).
func cutCost(t, u *ir.Type) int {
	if t.Mesh != u.Mesh || len(t.Partial) > 0 {
		if ir.SameLayout(t, u) {
			return 0
		}
		return 1
	}
	for i := range t.Dims {
		have, want := t.Dims[i].Axes, u.Dims[i].Axes
		if len(have) > len(want) || !slices.Equal(have, want[:len(have)]) {
			return 1
		}
	}
	return 0
}

// without returns the axes that are not in drop.
func without(axes, drop []string) []string {
	var out []string
	for _, a := range axes {
		if !slices.Contains(drop, a) {
			out = append(out, a)
		}
	}
	return out
}
