package ir

import "slices"

// This file holds what layouts are made of: how a dimension's axes, a type's
// partial reductions and its mesh combine and compare (S1, S10, S17).

// Clone returns a copy of t that shares only expressions; nil for nil.
func (t *Type) Clone() *Type {
	if t == nil {
		return nil
	}
	u := *t
	u.Dims = make([]Dimension, len(t.Dims))
	for i, d := range t.Dims {
		u.Dims[i] = Dimension{Extent: d.Extent, Axes: slices.Clone(d.Axes)}
	}
	u.Partial = slices.Clone(t.Partial)
	return &u
}

// Axes returns every mesh axis the type mentions in a dimension or partial.
func (t *Type) Axes() []string {
	var out []string
	for _, d := range t.Dims {
		out = append(out, d.Axes...)
	}
	for _, p := range t.Partial {
		out = append(out, p.Axis)
	}
	return out
}

// Whole reports whether every rank of the type's mesh holds all of it.
func (t *Type) Whole() bool { return len(t.Axes()) == 0 }

// SameLayout reports whether values of t and u are placed alike: same axes on
// each dimension, same partials, same mesh. Extents are not compared.
func SameLayout(t, u *Type) bool {
	if len(t.Dims) != len(u.Dims) || t.Mesh != u.Mesh {
		return false
	}
	for i := range t.Dims {
		if !slices.Equal(t.Dims[i].Axes, u.Dims[i].Axes) {
			return false
		}
	}
	return samePartial(t.Partial, u.Partial)
}

// samePartial compares as sets: the order of partial clauses means nothing.
func samePartial(a, b []Partial) bool {
	if len(a) != len(b) {
		return false
	}
	for _, p := range a {
		if !slices.Contains(b, p) {
			return false
		}
	}
	return true
}

// WithLayout returns t's dtype and extents in the layout of u, which has as
// many dimensions.
func (t *Type) WithLayout(u *Type) *Type {
	out := t.Clone()
	for i := range out.Dims {
		out.Dims[i].Axes = slices.Clone(u.Dims[i].Axes)
	}
	out.Partial, out.Mesh = slices.Clone(u.Partial), u.Mesh
	return out
}

// Reduced returns t with no partial.
func (t *Type) Reduced() *Type {
	if len(t.Partial) == 0 {
		return t
	}
	u := t.Clone()
	u.Partial = nil
	return u
}

// SizeOf returns the product of the axes' sizes as an expression; 1 for none.
func SizeOf(axes []string) *Expr {
	e := Int(1)
	for i, a := range axes {
		s := &Expr{Kind: ExprSize, Name: a}
		if i == 0 {
			e = s
		} else {
			e = Bin(ExprMul, e, s)
		}
	}
	return e
}

// LocalType returns what one rank holds of a value of type t: each extent
// divided by the sizes of its axes, no layout.
func (t *Type) LocalType() *Type {
	u := &Type{Pos: t.Pos, DType: t.DType, Dims: make([]Dimension, len(t.Dims))}
	for i, d := range t.Dims {
		u.Dims[i].Extent = LocalExtent(d)
	}
	return u
}

func LocalExtent(d Dimension) *Expr {
	if len(d.Axes) == 0 {
		return d.Extent
	}
	return Bin(ExprFloorDiv, d.Extent, SizeOf(d.Axes))
}
