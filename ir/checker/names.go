package checker

import (
	"fmt"
	"hocket.example/hocket/ir"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// scope holds the names that are visible at one point of a function. A name cannot be redefined while it is visible
// (S9), so one map and a list of the names that each block added suffice.
type scope struct {
	names map[string]*ir.Sym
	added []string
}

// open returns a mark, which must be passed to close at the end of the block.
func (s *scope) open() int { return len(s.added) }

// close removes the names that were defined since mark.
func (s *scope) close(mark int) {
	for _, n := range s.added[mark:] {
		delete(s.names, n)
	}
	s.added = s.added[:mark]
}

// names resolves the names that are visible in a function.
type names struct {
	*heads
	fn    *ir.Func
	scope scope
	// ended maps buffers to the positions at which they were freed or claimed.
	ended ended
	// loops counts the enclosing loops, and syms the loop variables so far.
	loops, syms int
	facts       map[*ir.Sym]*facts
}

// facts holds properties of a symbol that are needed only while its function is checked.
type facts struct {
	// depth is the number of loops around the definition.
	depth int
	// value is the polynomial of an index, and extents are the polynomials of a tensor's local extents. value and
	// extents are nil until they are first computed.
	value   poly
	extents []poly
	// raggedRanks[i] reports that local extent i may differ between ranks.
	raggedRanks []bool
}

// of returns the facts of a symbol.
func (c *names) of(s *ir.Sym) *facts {
	f := c.facts[s]
	if f == nil {
		f = &facts{}
		c.facts[s] = f
	}
	return f
}

// takenHelp returns the help for an error about a name that is already in use. The name may be generated, for an
// operand that has no name in the text.
func takenHelp(name string) string {
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		if _, err := strconv.Atoi(name[i+1:]); err == nil {
			return fmt.Sprintf("this name is generated for operand %s of %%%s, which has no name in the text: "+
				"choose another name", name[i+1:],
				name[:i])
		}
	}
	return "a name cannot be redefined while it is visible: choose another name"
}

// define adds a symbol to the scope. It reports an error if the name is already in use.
func (c *names) define(s *ir.Sym) {
	if s.Name == "" {
		return
	}
	if old := c.scope.names[s.Name]; old != nil {
		c.errorf("scope", s.Pos, "%%%s is already defined", s.Name).at(old.Pos, "defined here").
			help(takenHelp(s.Name))
		return
	}
	f := c.of(s)
	f.depth = c.loops
	if s.Type != nil {
		f.raggedRanks = make([]bool, len(s.Type.Dims))
		for i, d := range s.Type.Dims {
			f.raggedRanks[i] = c.rankDependent(d.Extent)
		}
	}
	c.scope.names[s.Name] = s
	c.scope.added = append(c.scope.added, s.Name)
}

// lookup returns the symbol of a name. If there is no such symbol, lookup reports an error and returns nil. Each
// unknown name in a function is reported once.
func (c *names) lookup(name string, pos ir.Pos) *ir.Sym {
	if s := c.scope.names[name]; s != nil {
		return s
	}
	if c.unknown[name] || c.lost.Names[c.fn] {
		c.failed++
		return nil
	}
	c.unknown[name] = true
	d := c.errorf("scope", pos, "%%%s is not defined here", name)
	if near := similar(name, slices.Sorted(maps.Keys(c.scope.names))); near != "" {
		d.help("did you mean %" + near + "?")
	} else {
		d.help("a name is visible only until the end of the block that defines it")
	}
	return nil
}

// checkExpr checks the names in an index expression.
func (c *names) checkExpr(e *ir.Expr) bool {
	before := c.failed
	e.Walk(func(x *ir.Expr) {
		switch x.Kind {
		case ir.ExprVar:
			if s := c.lookup(x.Name, x.Pos); s != nil && s.Kind != ir.SymIndex {
				c.errorf("type", x.Pos, "%%%s is %s, not an index", x.Name, s.Kind).help(indexHelp(s))
			}
		case ir.ExprExtent:
			c.checkExtent(x)
		default:
			c.declared(x)
		}
	})
	return c.failed == before
}

func indexHelp(s *ir.Sym) string {
	if s.Kind == ir.SymValue || s.Kind == ir.SymBuffer {
		return "index expressions may contain dims, loop variables, lets, ranks and extents: extent(%" + s.Name + ", 0)"
	}
	return "index expressions may contain dims, loop variables, lets, ranks and extents"
}

func (c *names) checkExtent(x *ir.Expr) {
	s := c.lookup(x.Name, x.Pos)
	switch {
	case s == nil:
	case s.Kind != ir.SymValue && s.Kind != ir.SymBuffer:
		c.errorf("type", x.Pos, "%%%s is %s; only tensors have extents", x.Name,
			s.Kind).help("extent(%tensor, dimension)")
	case s.Type == nil:
		c.failed++ // the error in its definition was reported
	case x.Val < 0 || x.Val >= int64(len(s.Type.Dims)):
		c.errorf("type", x.Pos, "%%%s has %s, so there is no dimension %d", x.Name,
			plural(len(s.Type.Dims), "dimension"), x.Val).
			help("dimensions are numbered from 0")
	}
}

// meaning returns the polynomial that a name denotes, for the normalizer. The name may be a let, a loop variable, the
// size of a mesh axis, or a local extent of a tensor.
func (c *names) meaning(e *ir.Expr) (poly, bool) {
	switch e.Kind {
	case ir.ExprVar:
		if s := c.scope.names[e.Name]; s != nil && c.of(s).value != nil {
			return c.of(s).value, true
		}
	case ir.ExprExtent:
		s := c.scope.names[e.Name]
		if s != nil && s.Type != nil && e.Val >= 0 && int(e.Val) < len(s.Type.Dims) {
			return c.extentOf(s, int(e.Val)), true
		}
	}
	return c.sizeOfAxis(e)
}

// extentOf returns local extent i of a tensor.
func (c *names) extentOf(s *ir.Sym, i int) poly {
	f := c.of(s)
	if f.extents == nil {
		f.extents = make([]poly, len(s.Type.Dims))
	}
	if f.extents[i] == nil {
		f.extents[i] = c.norm.norm(ir.LocalExtent(s.Type.Dims[i]))
	}
	return f.extents[i]
}

// ragged reports whether local extent i of s may differ between ranks.
func (c *names) ragged(s *ir.Sym, i int64) bool {
	r := c.of(s).raggedRanks
	return i >= 0 && i < int64(len(r)) && r[i]
}

// rankDependent reports whether the value of e may differ between ranks.
func (c *names) rankDependent(e *ir.Expr) bool {
	dep := false
	e.Walk(func(x *ir.Expr) {
		s := c.scope.names[x.Name]
		switch x.Kind {
		case ir.ExprRank:
			dep = true
		case ir.ExprVar:
			dep = dep || s != nil && s.RankDependent
		case ir.ExprExtent:
			dep = dep || s != nil && c.ragged(s, x.Val)
		}
	})
	return dep
}

// report is a reported error to which notes and help can be added.
type report struct{ *ir.Diagnostic }

// at adds a note that has a position.
func (r report) at(pos ir.Pos, format string, args ...any) report {
	r.Notes = append(r.Notes, ir.Note{Pos: pos, Message: fmt.Sprintf(format, args...)})
	return r
}

// help sets the text that suggests a correction.
func (r report) help(text string) report {
	r.Help = text
	return r
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// similar returns the known name with the smallest edit distance to name. It returns "" for names of one character,
// which are too short for a meaningful comparison.
func similar(name string, known []string) string {
	if len(name) < 2 {
		return ""
	}
	return ir.Nearest(name, known)
}

func didYouMean(name string, known []string) string {
	if near := similar(name, known); near != "" {
		return "did you mean " + near + "?"
	}
	if len(known) == 0 {
		return ""
	}
	slices.Sort(known)
	return "known: " + strings.Join(known[:min(len(known), 12)], ", ")
}

func orMean(name string, known []string) string {
	if near := similar(name, known); near != "" {
		return "; or did you mean " + near + "?"
	}
	return ""
}

// checkType checks axes, mesh and extents of a type as written.
func (c *names) checkType(t *ir.Type) bool {
	before := c.failed
	mesh, ok := c.typeMesh(t)
	if !ok {
		return false
	}
	var seen []string
	use := func(axis string) {
		m, known := c.axes[axis]
		switch {
		case axis == ir.WorldAxis:
			c.errorf("layout", t.Pos, "a value cannot be split over the built-in axis %s",
				ir.WorldAxis).help("name the axes of the mesh, major axis first: /(dp, tp)")
		case !known:
			c.errorf("layout", t.Pos, "the program has no mesh axis %s", axis).help(c.axisHelp(axis))
		case slices.Contains(seen, axis):
			c.errorf("layout", t.Pos, "mesh axis %s occurs twice in one type",
				axis).help("an axis can split one dimension, once (S1)")
		case m != mesh:
			c.errorf("layout", t.Pos, "mesh axis %s is not an axis of the value's mesh", axis).help(placeHelp(m))
		}
		seen = append(seen, axis)
	}
	for _, d := range t.Dims {
		c.checkExpr(d.Extent)
		for _, ax := range d.Axes {
			use(ax)
		}
	}
	for _, p := range t.Partial {
		use(p.Axis)
		if t.DType.IsFloat8() {
			c.errorf("type", t.Pos, "sums of type %s are not supported: the contributions of ranks need a wider type",
				t.DType).
				help("bf16, f16 or f32")
		}
		if p.Red == ir.NoRed {
			c.errorf("layout", t.Pos, "partial has no reduction").help("write sum, max, min or avg")
		}
	}
	return c.failed == before
}

func placeHelp(m *ir.Mesh) string {
	if m.HasDevices {
		return "write the sub-mesh after the type: @" + m.Axes[0].Name
	}
	return "a value on a sub-mesh is split over that mesh's axes only"
}
