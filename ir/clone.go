package ir

import "slices"

// Clone returns a copy of p that a pass may change. Declarations, statements, blocks and types are copied. Index
// expressions are shared, since no pass changes them. The copy has the same positions and comments.
func (p *Program) Clone() *Program {
	q := *p
	made := make(map[Decl]Decl, len(p.Dims)+len(p.Meshes)+len(p.Funcs))
	q.Dims = cloneAll(p.Dims, func(d *Dim) *Dim { c := d.clone(); made[d] = c; return c })
	q.Meshes = cloneAll(p.Meshes, func(m *Mesh) *Mesh { c := m.clone(); made[m] = c; return c })
	q.Funcs = cloneAll(p.Funcs, func(f *Func) *Func { c := f.Clone(); made[f] = c; return c })
	q.Order = cloneAll(p.Order, func(d Decl) Decl { return made[d] })
	q.Order = slices.DeleteFunc(q.Order, func(d Decl) bool { return d == nil })
	q.End = slices.Clone(p.End)
	return &q
}

// Clone returns a copy of f that shares only expressions with f.
func (f *Func) Clone() *Func {
	g := *f
	g.Params = cloneAll(f.Params, func(p *Param) *Param {
		c := *p
		c.Type = p.Type.Clone()
		return &c
	})
	g.Results = cloneAll(f.Results, (*Type).Clone)
	g.Body = f.Body.Clone()
	g.Comments = f.Comments.clone()
	return &g
}

// Clone returns a copy of b that shares only expressions with b. The copy of nil is nil.
func (b *Block) Clone() *Block {
	if b == nil {
		return nil
	}
	c := *b
	c.Stmts = cloneAll(b.Stmts, (*Stmt).Clone)
	c.Tail = slices.Clone(b.Tail)
	return &c
}

// Clone returns a copy of s and its blocks that shares only expressions with s.
func (s *Stmt) Clone() *Stmt {
	c := *s
	c.Results = slices.Clone(s.Results)
	c.Type = s.Type.Clone()
	c.Args, c.Carry = slices.Clone(s.Args), slices.Clone(s.Carry)
	c.Into = cloneOne(s.Into)
	if c.Launch = cloneOne(s.Launch); c.Launch != nil {
		c.Launch.Params = slices.Clone(c.Launch.Params)
	}
	c.Attrs = cloneAll(s.Attrs, func(a Attr) Attr {
		a.Exprs, a.Words = slices.Clone(a.Exprs), slices.Clone(a.Words)
		return a
	})
	c.Exprs = slices.Clone(s.Exprs)
	c.Peer = cloneOne(s.Peer)
	c.Body, c.Else = s.Body.Clone(), s.Else.Clone()
	c.Comments = s.Comments.clone()
	return &c
}

func (c Comments) clone() Comments {
	c.Lead = slices.Clone(c.Lead)
	return c
}

func (d *Dim) clone() *Dim {
	c := *d
	c.Comments = d.Comments.clone()
	return &c
}

func (m *Mesh) clone() *Mesh {
	c := *m
	c.Comments = m.Comments.clone()
	c.Axes, c.Devices = slices.Clone(m.Axes), slices.Clone(m.Devices)
	return &c
}

// cloneAll returns the results of f for the elements of a slice. The result for a nil slice is nil.
func cloneAll[T any](xs []T, f func(T) T) []T {
	if xs == nil {
		return nil
	}
	out := make([]T, len(xs))
	for i, x := range xs {
		out[i] = f(x)
	}
	return out
}

func cloneOne[T any](x *T) *T {
	if x == nil {
		return nil
	}
	c := *x
	return &c
}
