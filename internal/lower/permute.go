package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file handles reshards in which ranks exchange blocks: the two layouts have the same number of blocks in every
// dimension and use the same axes. Each rank then needs exactly one block, which exactly one other rank holds.

// trades returns the permute steps that are possible from layout t. Each step either reorders the axes of one
// dimension, or changes all dimensions to the axes that they have in dst.
func (p *planner) trades(t *ir.Type) []step {
	var out []step
	add := func(u *ir.Type) {
		if axes := p.traded(t, u); len(axes) > 0 {
			out = append(out, step{kind: stepPermute, axes: axes, after: u})
		}
	}
	if u := p.arranged(t); u != nil {
		add(u)
	}
	for i, d := range t.Dims {
		for _, order := range permutations(d.Axes) {
			u := t.Clone()
			u.Dims[i].Axes = order
			add(u)
		}
	}
	return out
}

// arranged returns t with the axes of dst's dimensions. It returns nil unless t and dst cut each dimension into the
// same number of blocks and use the same axes. The sizes of the axes must be numbers in the text.
func (p *planner) arranged(t *ir.Type) *ir.Type {
	if !p.exact {
		return nil
	}
	u := t.Clone()
	for i := range u.Dims {
		u.Dims[i].Axes = slices.Clone(p.dst.Dims[i].Axes)
		if p.parts(u.Dims[i].Axes) != p.parts(t.Dims[i].Axes) {
			return nil
		}
	}
	if !subset(dimAxes(u), dimAxes(t)) || !subset(dimAxes(t), dimAxes(u)) {
		return nil
	}
	return u
}

// dimAxes returns the axes over which t's dimensions are split.
func dimAxes(t *ir.Type) []string {
	var out []string
	for _, d := range t.Dims {
		out = append(out, d.Axes...)
	}
	return out
}

// traded returns the axes, in mesh order, whose coordinates determine the rank that holds in layout u the block that a
// given rank holds in layout t. For each dimension these are the axes between the unchanged major axes and the
// unchanged minor axes. An axis between two axes that exchange their positions is included, because the two may differ
// in size.
func (p *planner) traded(t, u *ir.Type) []string {
	var moved []string
	for i := range t.Dims {
		a, b := t.Dims[i].Axes, u.Dims[i].Axes
		for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
			a, b = a[1:], b[1:]
		}
		for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
			a, b = a[:len(a)-1], b[:len(b)-1]
		}
		moved = append(append(moved, a...), b...)
	}
	return filter(p.mesh, func(a string) bool { return slices.Contains(moved, a) })
}

// permutations returns all orders of axes except the given one.
func permutations(axes []string) [][]string {
	var out [][]string
	var grow func(have, rest []string)
	grow = func(have, rest []string) {
		if len(rest) == 0 && !slices.Equal(have, axes) {
			out = append(out, slices.Clone(have))
		}
		for i, a := range rest {
			grow(append(slices.Clone(have), a), append(slices.Clone(rest[:i]), rest[i+1:]...))
		}
	}
	grow(nil, axes)
	return out
}

// permute writes a step in which ranks exchange blocks. The attribute from gives the rank that holds the block that
// this rank needs; to gives the rank that needs the block that this rank holds.
func (w *writer) permute(st step, name string, t *ir.Type, arg string) {
	mine, got := w.names.fresh(w.name, "l"), w.names.fresh(w.name, "t")
	attrs := []ir.Attr{ir.Over(st.axes...),
		{Name: "to", Kind: ir.AttrExpr, Exprs: []*ir.Expr{holder(st.axes, st.before, st.after)}},
		{Name: "from", Kind: ir.AttrExpr, Exprs: []*ir.Expr{holder(st.axes, st.after, st.before)}}}
	w.out = append(w.out,
		result(w.pos, mine, ir.OpLocal, nil, arg),
		result(w.pos, got, ir.OpPermute, attrs, mine),
		value(w.pos, name, t, ir.OpClaim, nil, got))
}

// holder returns the index, in the team over axes, of the rank that holds in layout there the block that this rank
// holds in layout here.
func holder(axes []string, here, there *ir.Type) *ir.Expr {
	coords := map[string]*ir.Expr{}
	for i := range here.Dims {
		if slices.Equal(there.Dims[i].Axes, axes) { // the members of the team are in the order of the blocks
			return number(here.Dims[i].Axes, axes, ir.Rank)
		}
		block := number(here.Dims[i].Axes, axes, ir.Rank)
		spread(block, there.Dims[i].Axes, axes, coords)
	}
	return number(axes, axes, func(a string) *ir.Expr { return coords[a] })
}

// number returns a mixed-radix number with one digit for each of axes that is in team. The first axis has the most
// significant digit.
func number(axes, team []string, digit func(string) *ir.Expr) *ir.Expr {
	n := ir.Int(0)
	for _, a := range axes {
		if slices.Contains(team, a) {
			if n.IsInt(0) {
				n = digit(a)
			} else {
				n = ir.Add(ir.Mul(n, ir.Size(a)), digit(a))
			}
		}
	}
	return n
}

// spread computes the digits of the mixed-radix number n for those of axes that are in team, and stores them in
// digits.
func spread(n *ir.Expr, axes, team []string, digits map[string]*ir.Expr) {
	var mine []string
	for _, a := range axes {
		if slices.Contains(team, a) {
			mine = append(mine, a)
		}
	}
	for i, a := range slices.Backward(mine) {
		if i == 0 {
			digits[a] = n
			break
		}
		digits[a] = ir.Mod(n, ir.Size(a))
		n = ir.FloorDiv(n, ir.Size(a))
	}
}
