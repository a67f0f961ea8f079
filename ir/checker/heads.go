package checker

import (
	"hocket.example/hocket/ir"
	"maps"
	"slices"
)

// heads holds a program's declarations.
type heads struct {
	*reporter
	lost *ir.Lost
	list []*ir.Func // the program's functions, except those whose heads could not be read
	// lostDims lists the words in function heads that the parser could not read. Some of these words may have declared
	// dims.
	lostDims []string
	// unknown holds the undefined names in the current function for which no further error must be reported.
	unknown map[string]bool
	dims    map[string]*ir.Dim
	axes    map[string]*ir.Mesh
	funcs   map[string]*ir.Func
	// sizes holds the sizes of mesh axes. badSize holds the names of the axes whose sizes were reported as errors.
	sizes   map[string]poly
	badSize map[string]bool
	norm    normalizer
}

func newHeads(r *reporter, lost *ir.Lost) *heads {
	c := &heads{reporter: r, lost: lost, dims: map[string]*ir.Dim{}, axes: map[string]*ir.Mesh{},
		funcs: map[string]*ir.Func{},
		sizes: map[string]poly{}, badSize: map[string]bool{}}
	c.norm.resolve = c.sizeOfAxis
	if lost.All {
		return c
	}
	for _, f := range r.p.Funcs {
		if !lost.Heads[f.Name] {
			c.list = append(c.list, f)
		} else {
			c.lostDims = append(c.lostDims, lost.Words(f, r.p.Source)...)
		}
	}
	c.forgive(nil)
	return c
}

// sizeOfAxis returns the size of a mesh axis as a polynomial. The normalizer calls it.
func (c *heads) sizeOfAxis(e *ir.Expr) (poly, bool) {
	if e.Kind != ir.ExprSize {
		return nil, false
	}
	p, ok := c.sizes[e.Name]
	return p, ok
}

// declared reports an error if x is a dim or refers to a mesh axis, and this dim or axis is not declared.
func (c *heads) declared(x *ir.Expr) {
	switch x.Kind {
	case ir.ExprName:
		if c.dims[x.Name] == nil {
			c.unknownDim(x)
		}
	case ir.ExprRank, ir.ExprSize:
		c.knownAxis("scope", x.Name, x.Pos)
	}
}

// checkHeads checks that no declaration has missing parts. A parsed program never has missing parts, but a program that
// was built in Go may.
func (c *heads) checkHeads() {
	for _, m := range c.p.Meshes {
		if len(m.Axes) == 0 {
			c.errorf("structure", m.Pos, "this mesh has no axis").help("mesh tp[4]")
		}
		for _, ax := range m.Axes {
			c.wholeExpr(ax.Pos, ax.Size)
		}
	}
	for _, f := range c.list {
		if f.Body == nil {
			c.errorf("structure", f.Pos, "function %s has no body", f.Name)
		}
		for _, p := range f.Params {
			c.wholeType(p.Pos, p.Type)
		}
		for _, t := range f.Results {
			c.wholeType(f.Pos, t)
		}
	}
}

func (c *heads) wholeType(pos ir.Pos, t *ir.Type) {
	if t == nil {
		c.errorf("structure", pos, "a parameter or result has no type")
		return
	}
	if !t.DType.Valid() {
		c.errorf("structure", t.Pos, "this type has no element type").help("f32, f16, bf16, f64, i32, i64, f8e4m3 " +
			"or f8e5m2")
	}
	for _, d := range t.Dims {
		c.wholeExpr(t.Pos, d.Extent)
	}
}

// wholeExpr reports an error for an expression that lacks an operand.
func (c *heads) wholeExpr(pos ir.Pos, e *ir.Expr) bool {
	if e == nil {
		c.errorf("structure", pos, "an expression is missing")
		return false
	}
	want := 0
	if e.Kind >= ir.ExprAdd {
		want = 2
	}
	if len(e.Args) != want || e.Kind > ir.ExprMax {
		c.errorf("structure", pos, "an expression has the wrong number of operands")
		return false
	}
	for _, a := range e.Args {
		if !c.wholeExpr(pos, a) {
			return false
		}
	}
	return true
}

// checkDecls checks dims and meshes and collects function names.
func (c *heads) checkDecls() {
	for _, d := range c.p.Dims {
		if old := c.dims[d.Name]; old != nil {
			c.errorf("scope", d.Pos, "dim %s is declared twice", d.Name).at(old.Pos, "first here").help("remove one of them")
			continue
		}
		if d.HasValue && d.Default < 0 {
			c.errorf("type", d.Pos, "dim %s is %d, but an extent cannot be negative", d.Name,
				d.Default).help("0 is allowed")
		}
		c.dims[d.Name] = d
	}
	for _, f := range c.list {
		if old := c.funcs[f.Name]; old != nil {
			c.errorf("scope", f.Pos, "function %s is declared twice", f.Name).at(old.Pos,
				"first here").help("choose another name")
			continue
		}
		c.funcs[f.Name] = f
		c.declareByUse(f)
	}
	var main *ir.Mesh
	for _, m := range c.p.Meshes {
		if !m.HasDevices {
			if main != nil {
				c.errorf("structure", m.Pos, "there are two main meshes").at(main.Pos, "the first").
					help("declare all axes in one mesh (mesh dp[2] tp[4]), or list the ranks of a sub-mesh (mesh d[2] = {0 2})")
			} else {
				main = m
			}
		}
		for _, ax := range m.Axes {
			c.checkAxis(m, ax)
		}
	}
	c.setSizes()
	if len(c.p.Funcs) == 0 && !c.lost.Funcs {
		c.errorf("structure", ir.Pos{}, "the program has no function").help("func f(%x: f32[4]) -> f32[4] { return %x }")
	}
}

func (c *heads) checkAxis(m *ir.Mesh, ax ir.MeshAxis) {
	if ax.Name == ir.WorldAxis {
		c.errorf("scope", ax.Pos, "the mesh axis %s is built in: it contains all ranks", ir.WorldAxis).help("choose another name")
		return
	}
	if old := c.axes[ax.Name]; old != nil {
		for _, here := range m.Axes {
			if here.Name == ax.Name && here.Pos != ax.Pos {
				old = m
			}
		}
		c.errorf("scope", ax.Pos, "mesh axis %s is declared twice", ax.Name).at(old.Pos,
			"first here").help("choose another name")
		return
	}
	c.axes[ax.Name] = m
	before := c.failed
	ax.Size.Walk(func(e *ir.Expr) {
		switch e.Kind {
		case ir.ExprRank, ir.ExprSize, ir.ExprExtent, ir.ExprVar:
			c.errorf("structure", e.Pos,
				"a mesh's size may contain only dims and numbers").help("mesh " + ax.Name + "[4], or a dim: dim P = 4")
		}
	})
	if c.failed == before {
		ax.Size.Walk(c.declared)
	}
	if c.failed != before {
		c.badSize[ax.Name] = true
	} else if v, ok := c.norm.norm(ax.Size).constValue(); ok && (v < 1 || v > ir.MaxRanks) {
		c.errorf("type", ax.Pos, "mesh axis %s has size %d, but a mesh has between 1 and %d ranks", ax.Name, v,
			ir.MaxRanks).help("mesh " + ax.Name + "[4]")
		c.badSize[ax.Name] = true
	}
}

// declareByUse declares the dims that occur alone as the extent of a parameter (S8).
func (c *heads) declareByUse(f *ir.Func) {
	for _, p := range f.Params {
		for _, d := range p.Type.Dims {
			if e := d.Extent; e.Kind == ir.ExprName && c.dims[e.Name] == nil {
				c.dims[e.Name] = &ir.Dim{Pos: e.Pos, Name: e.Name}
			}
		}
	}
}

// typeMesh returns the mesh on which a type is placed, or nil for the mesh of all ranks. Each mesh has only one name,
// so that layouts can be compared by name.
func (c *heads) typeMesh(t *ir.Type) (*ir.Mesh, bool) {
	if t.Mesh == "" {
		return c.p.MainMesh(), true
	}
	m := c.axes[t.Mesh]
	switch {
	case m == nil:
		c.errorf("layout", t.Pos, "the program has no mesh axis %s", t.Mesh).help(c.axisHelp(t.Mesh))
	case !m.HasDevices:
		c.errorf("layout", t.Pos, "@%s names the main mesh; values are on the main mesh by default",
			t.Mesh).help("leave @" + t.Mesh + " out")
	case m.Axes[0].Name != t.Mesh:
		c.errorf("layout", t.Pos, "@%s does not name a mesh: a mesh is named by its first axis", t.Mesh).help("write @" + m.Axes[0].Name)
	default:
		return m, true
	}
	return nil, false
}

// knownAxis reports an error for a mesh axis that is not declared.
func (c *heads) knownAxis(kind, axis string, pos ir.Pos) bool {
	if axis == ir.WorldAxis || c.axes[axis] != nil {
		return true
	}
	c.errorf(kind, pos, "the program has no mesh axis %s", axis).help(c.axisHelp(axis))
	return false
}

func (c *heads) axisHelp(axis string) string {
	if len(c.axes) == 0 {
		return "declare it: mesh " + axis + "[4]"
	}
	return didYouMean(axis, c.axisNames())
}

// unknownDim reports an error for a dim that is not declared. It reports each dim once.
func (c *heads) unknownDim(x *ir.Expr) {
	if c.unknown[x.Name+" dim"] {
		c.failed++
		return
	}
	c.unknown[x.Name+" dim"] = true
	c.errorf("scope", x.Pos, "the program has no dim %s", x.Name).
		help("declare it: dim " + x.Name + " = 64" + orMean(x.Name, slices.Sorted(maps.Keys(c.dims))))
}

// setSizes records the sizes of all mesh axes, including the axis world.
func (c *heads) setSizes() {
	for _, m := range c.p.Meshes {
		for _, ax := range m.Axes {
			if ax.Size != nil && !c.badSize[ax.Name] {
				c.sizes[ax.Name] = c.norm.norm(ax.Size)
			}
		}
	}
	m := c.p.MainMesh()
	if m == nil {
		return
	}
	world := constant(1)
	for _, ax := range m.Axes {
		size, ok := c.sizes[ax.Name]
		if ok {
			world, ok = product(world, size)
		}
		if !ok {
			return
		}
	}
	c.sizes[ir.WorldAxis] = world
}

func (c *heads) funcNames() []string { return slices.Sorted(maps.Keys(c.funcs)) }

func (c *heads) axisNames() []string { return slices.Sorted(maps.Keys(c.axes)) }

// forgive suppresses errors about undefined names that the unread lines of a function may define. It also suppresses
// errors about dims that the unread heads of other functions may declare.
func (c *heads) forgive(f *ir.Func) {
	c.unknown = map[string]bool{}
	for _, w := range c.lostDims {
		c.unknown[w+" dim"] = true
	}
	for _, w := range c.lost.Words(f, c.p.Source) {
		c.unknown[w] = true
	}
}
