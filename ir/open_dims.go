package ir

import (
	"maps"
	"slices"
)

// OpenDims lists, in order, the dims without a value in the types of the parameters of fn and of the functions that it
// calls, and in the sizes of meshes. The argument known has the dims that have a value.
func (p *Program) OpenDims(fn *Func, known map[string]bool) []string {
	open := map[string]bool{}
	look := func(e *Expr) {
		if e.Kind == ExprName && !known[e.Name] {
			open[e.Name] = true
		}
	}
	for _, fn := range p.called(fn) {
		fn.walkExtents(look)
	}
	for _, m := range p.Meshes {
		for _, ax := range m.Axes {
			ax.Size.Walk(look)
		}
	}
	return slices.Sorted(maps.Keys(open))
}

// HasDims reports whether the shape of a parameter depends on a dim.
func (f *Func) HasDims() (found bool) {
	f.walkExtents(func(e *Expr) { found = found || e.Kind == ExprName })
	return found
}

// walkExtents calls visit for the expressions in the types of the parameters.
func (f *Func) walkExtents(visit func(*Expr)) {
	for _, param := range f.Params {
		for _, d := range param.Type.Dims {
			d.Extent.Walk(visit)
		}
	}
}

// called lists fn and all functions that it calls, directly or indirectly.
func (p *Program) called(fn *Func) []*Func {
	byName := map[string]*Func{}
	for _, f := range p.Funcs {
		byName[f.Name] = f
	}
	list := []*Func{fn}
	delete(byName, fn.Name)
	for i := 0; i < len(list); i++ {
		list[i].Body.Walk(func(s *Stmt) {
			if g := byName[s.Callee.Text]; s.Op == OpCall && g != nil {
				delete(byName, g.Name)
				list = append(list, g)
			}
		})
	}
	return list
}
