package ir

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// scope holds the names visible at one point of a function. There is no
// shadowing (S9), so one map and a list of what each block added suffice.
type scope struct {
	names map[string]*Sym
	added []string
}

// open returns a mark to be given to close at the block's end.
func (s *scope) open() int { return len(s.added) }

// close forgets what was defined since mark.
func (s *scope) close(mark int) {
	for _, n := range s.added[mark:] {
		delete(s.names, n)
	}
	s.added = s.added[:mark]
}

// define adds a symbol; a name in use is an error.
func (c *checker) define(s *Sym) {
	if s.Name == "" {
		return
	}
	if old := c.scope.names[s.Name]; old != nil {
		c.errorf("scope", s.Pos, "%%%s is already defined", s.Name).at(old.Pos, "here").
			help("there is no shadowing: choose another name")
		return
	}
	s.depth = c.loops
	c.scope.names[s.Name] = s
	c.scope.added = append(c.scope.added, s.Name)
}

// lookup finds the symbol of a name in use; nil and an error without one.
func (c *checker) lookup(name string, pos Pos) *Sym {
	if s := c.scope.names[name]; s != nil {
		return s
	}
	d := c.errorf("scope", pos, "%%%s is not defined here", name)
	if near := nearest(name, slices.Sorted(maps.Keys(c.scope.names))); near != "" {
		d.help("did you mean %" + near + "?")
	} else {
		d.help("names end with the block that defines them")
	}
	return nil
}

func (c *checker) funcNames() []string { return slices.Sorted(maps.Keys(c.funcs)) }
func (c *checker) axisNames() []string { return slices.Sorted(maps.Keys(c.axes)) }

// checkExpr checks the names in an index expression.
func (c *checker) checkExpr(e *Expr) bool {
	before := len(c.ds)
	e.Walk(func(x *Expr) {
		switch x.Kind {
		case ExprName:
			if c.in.Dims[x.Name] == nil {
				c.errorf("scope", x.Pos, "there is no dim %s", x.Name).
					help("declare it: dim " + x.Name + " = 64" + orMean(x.Name, slices.Sorted(maps.Keys(c.in.Dims))))
			}
		case ExprVar:
			if s := c.lookup(x.Name, x.Pos); s != nil && s.Kind != SymIndex {
				c.errorf("type", x.Pos, "%%%s is %s, not an index", x.Name, s.Kind)
			}
		case ExprRank, ExprSize:
			if x.Name != WorldAxis && c.axes[x.Name] == nil {
				c.errorf("scope", x.Pos, "there is no mesh axis %s", x.Name).help(didYouMean(x.Name, c.axisNames()))
			}
		case ExprExtent:
			c.checkExtent(x)
		}
	})
	return len(c.ds) == before
}

func (c *checker) checkExtent(x *Expr) {
	s := c.lookup(x.Name, x.Pos)
	switch {
	case s == nil:
	case s.Kind != SymValue && s.Kind != SymBuffer:
		c.errorf("type", x.Pos, "%%%s is %s; only tensors have extents", x.Name, s.Kind)
	case s.Type != nil && (x.Val < 0 || x.Val >= int64(len(s.Type.Dims))):
		c.errorf("type", x.Pos, "%%%s has %s, so there is no dimension %d", x.Name, plural(len(s.Type.Dims), "dimension"), x.Val)
	}
}

// definition gives the normalizer what a name stands for: a let's expression,
// a mesh axis' size, a tensor's local extent.
func (c *checker) definition(e *Expr) *Expr {
	switch e.Kind {
	case ExprVar:
		if s := c.scope.names[e.Name]; s != nil && s.Kind == SymIndex && s.Def.Op == OpLet {
			return s.Def.Exprs[0]
		}
	case ExprSize:
		if e.Name == WorldAxis {
			return c.worldSize()
		}
		if m := c.axes[e.Name]; m != nil {
			for _, ax := range m.Axes {
				if ax.Name == e.Name {
					return ax.Size
				}
			}
		}
	case ExprExtent:
		s := c.scope.names[e.Name]
		if s != nil && s.Type != nil && e.Val >= 0 && int(e.Val) < len(s.Type.Dims) {
			return localExtent(s.Type.Dims[e.Val])
		}
	}
	return nil
}

func (c *checker) worldSize() *Expr {
	m := c.p.mainMesh()
	if m == nil {
		return nil
	}
	e := m.Axes[0].Size
	for _, ax := range m.Axes[1:] {
		e = Bin(ExprMul, e, ax.Size)
	}
	return e
}

// rankDependent reports whether e may differ between ranks.
func (c *checker) rankDependent(e *Expr) bool {
	if e == nil {
		return false
	}
	return e.RankDependent(func(name string) bool {
		s := c.scope.names[name]
		if s == nil {
			return false
		}
		if s.Kind == SymIndex {
			return s.RankDependent
		}
		return s.Type != nil && slices.ContainsFunc(s.Type.Dims, func(d Dimension) bool { return c.rankDependent(d.Extent) })
	})
}

// at adds a note with a place to a diagnostic.
func (d *Diagnostic) at(pos Pos, format string, args ...any) *Diagnostic {
	d.Notes = append(d.Notes, Note{Pos: pos, Message: fmt.Sprintf(format, args...)})
	return d
}

// help sets what to do about it.
func (d *Diagnostic) help(text string) *Diagnostic {
	d.Help = text
	return d
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func didYouMean(name string, known []string) string {
	if near := nearest(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	if len(known) == 0 {
		return ""
	}
	slices.Sort(known)
	return "known: " + strings.Join(known[:min(len(known), 12)], ", ")
}

func orMean(name string, known []string) string {
	if near := nearest(name, known); near != "" {
		return "; or did you mean " + near + "?"
	}
	return ""
}
