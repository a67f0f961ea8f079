package ir

import "slices"

// This file holds the operations on layouts: how the axes of dimensions, the partial reductions and the mesh of types
// combine and compare (S1, S10, S17).

// Clone returns a copy of t that shares only expressions with t. The copy of nil is nil.
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

// Axes returns every mesh axis that occurs in a dimension or partial reduction of the type.
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

// Whole reports whether every rank of the type's mesh holds the whole tensor.
func (t *Type) Whole() bool { return len(t.Axes()) == 0 }

// SameLayout reports whether values of types t and u have the same placement: the same axes on each dimension, the same
// partial reductions and the same mesh. It does not compare extents.
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

// samePartial compares two lists as sets, since the order of partial clauses has no meaning.
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

// WithLayout returns a type with the dtype and extents of t and the layout of u, which must have the same number of
// dimensions.
func (t *Type) WithLayout(u *Type) *Type {
	out := t.Clone()
	for i := range out.Dims {
		out.Dims[i].Axes = slices.Clone(u.Dims[i].Axes)
	}
	out.Partial, out.Mesh = slices.Clone(u.Partial), u.Mesh
	return out
}

// Reduced returns t without partial reductions.
func (t *Type) Reduced() *Type {
	if len(t.Partial) == 0 {
		return t
	}
	u := t.Clone()
	u.Partial = nil
	return u
}

// SizeOf returns an expression for the product of the axes' sizes, or 1 if there are no axes.
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

// LocalType returns the type of one rank's part of a value of type t. Each extent is divided by the sizes of its axes,
// and the result has no layout.
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
