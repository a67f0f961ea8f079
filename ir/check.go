package ir

import "slices"

// Check resolves every name, infers every type and layout, and reports what is
// wrong with the program's structure, types, layouts, scopes and aliases. The
// Info is complete only when no error is reported.
func Check(p *Program) (*Info, Diagnostics) { return checkBeside(p, &lost{}) }

// checkBeside is Check for a program of which the parser lost statements.
func checkBeside(p *Program, lost *lost) (*Info, Diagnostics) {
	c := &checker{
		p:    p,
		lost: lost,
		in: &Info{
			Prog:           p,
			Dims:           map[string]*Dim{},
			Params:         map[*Func][]*Sym{},
			Results:        map[*Stmt][]*Sym{},
			Operands:       map[*Stmt][]*Sym{},
			Into:           map[*Stmt]*Sym{},
			Needs:          map[*Stmt][]*Type{},
			Natural:        map[*Stmt]*Type{},
			Constraints:    map[*Stmt][]Constraint{},
			SigConstraints: map[*Func][]Constraint{},
		},
		axes:       map[string]*Mesh{},
		sizes:      map[string]poly{},
		badSize:    map[string]bool{},
		funcs:      map[string]*Func{},
		chainKnown: map[*Func]bool{},
		inCycle:    map[*Func]bool{},
	}
	c.norm.resolve = c.meaning
	if lost.all {
		return c.in, nil
	}
	for _, f := range p.Funcs {
		if !lost.heads[f.Name] {
			c.list = append(c.list, f)
		} else {
			c.lostDims = append(c.lostDims, lost.words(f, p.Source)...)
		}
	}
	c.forgive(nil)
	if c.checkHeads(); c.failed == 0 {
		c.checkDecls()
		for _, f := range c.list {
			c.checkFunc(f)
		}
		c.checkCalls()
	}
	c.ds.Sort()
	return c.in, c.ds
}

type checker struct {
	p    *Program
	lost *lost
	list []*Func // the program's, but those whose heads were lost
	// lostDims are words of those heads, which may declare dims.
	lostDims []string
	in       *Info
	ds       Diagnostics
	norm     normalizer
	axes     map[string]*Mesh
	funcs    map[string]*Func
	// sizes are the sizes of mesh axes; badSize names those reported as wrong.
	sizes   map[string]poly
	badSize map[string]bool
	// chainKnown and inCycle remember what was found out of refines chains.
	chainKnown, inCycle map[*Func]bool
	// failed counts errors, those included that are not shown again.
	failed int

	// State of the function being checked.
	fn    *Func
	scope scope
	// unknown holds undefined names that were reported, or will not be.
	unknown map[string]bool
	// wanted maps a name that the function returns to the signature's type.
	wanted map[string]*Type
	// ended maps buffers to where they were freed or claimed.
	ended ended
	// blocks counts enclosing blocks, rankIf rank-dependent ifs, loops loops,
	// lateIf the conditions and loops that Bind cannot decide, and unsure the
	// blocks that may never run.
	blocks, rankIf, loops, lateIf, unsure int
	// carrying is the body of the innermost loop if that carries values, carriedTo their types.
	carrying  *Block
	carriedTo []*Type
	syms      int
	inGroup   bool
	returned  bool
}

// errorf reports an error; callers set Help or Notes on the result.
func (c *checker) errorf(kind string, pos Pos, format string, args ...any) *Diagnostic {
	c.failed++
	if c.full() {
		return &Diagnostic{}
	}
	d := c.p.Diag(kind, pos, format, args...)
	c.ds = append(c.ds, d)
	return d
}

// full reports that no more errors are wanted.
func (c *checker) full() bool { return len(c.ds) >= maxDiagnostics }

// checkDecls checks dims and meshes and collects function names.
func (c *checker) checkDecls() {
	for _, d := range c.p.Dims {
		if old := c.in.Dims[d.Name]; old != nil {
			c.errorf("scope", d.Pos, "dim %s is declared twice", d.Name).at(old.Pos, "first here").help("leave one out")
			continue
		}
		if d.HasValue && d.Default < 0 {
			c.errorf("type", d.Pos, "dim %s is %d; an extent cannot be negative", d.Name, d.Default).help("0 is allowed")
		}
		c.in.Dims[d.Name] = d
	}
	for _, f := range c.list {
		if old := c.funcs[f.Name]; old != nil {
			c.errorf("scope", f.Pos, "function %s is declared twice", f.Name).at(old.Pos, "first here").help("choose another name")
			continue
		}
		c.funcs[f.Name] = f
		c.declareByUse(f)
	}
	var main *Mesh
	for _, m := range c.p.Meshes {
		if !m.HasDevices {
			if main != nil {
				c.errorf("structure", m.Pos, "there are two main meshes").at(main.Pos, "the first").
					help("write all axes in one mesh (mesh dp[2] tp[4]), or list the ranks of a sub-mesh: mesh d[2] = {0 2}")
			} else {
				main = m
			}
		}
		for _, ax := range m.Axes {
			c.checkAxis(m, ax)
		}
	}
	c.setSizes()
	if len(c.p.Funcs) == 0 && !c.lost.funcs {
		c.errorf("structure", Pos{}, "the program has no function").help("func f(%x: f32[4]) -> f32[4] { return %x }")
	}
}

func (c *checker) checkAxis(m *Mesh, ax MeshAxis) {
	if ax.Name == WorldAxis {
		c.errorf("scope", ax.Pos, "the mesh axis %s is built in: all ranks", WorldAxis).help("choose another name")
		return
	}
	if old := c.axes[ax.Name]; old != nil {
		for _, here := range m.Axes {
			if here.Name == ax.Name && here.Pos != ax.Pos {
				old = m
			}
		}
		c.errorf("scope", ax.Pos, "mesh axis %s is declared twice", ax.Name).at(old.Pos, "first here").help("choose another name")
		return
	}
	c.axes[ax.Name] = m
	before := c.failed
	ax.Size.Walk(func(e *Expr) {
		switch e.Kind {
		case ExprRank, ExprSize, ExprExtent, ExprVar:
			c.errorf("structure", e.Pos, "a mesh's size may use dims and numbers only").help("mesh " + ax.Name + "[4], or a dim: dim P = 4")
		}
	})
	if c.failed != before || !c.checkExpr(ax.Size) {
		c.badSize[ax.Name] = true
	} else if v, ok := c.norm.norm(ax.Size).constValue(); ok && (v < 1 || v > MaxRanks) {
		c.errorf("type", ax.Pos, "mesh axis %s has size %d; a mesh has between 1 and %d ranks", ax.Name, v, MaxRanks).help("mesh " + ax.Name + "[4]")
		c.badSize[ax.Name] = true
	}
}

// declareByUse declares the dims that stand bare as a parameter's extent (S8).
func (c *checker) declareByUse(f *Func) {
	for _, p := range f.Params {
		for _, d := range p.Type.Dims {
			if e := d.Extent; e.Kind == ExprName && c.in.Dims[e.Name] == nil {
				c.in.Dims[e.Name] = &Dim{Pos: e.Pos, Name: e.Name}
			}
		}
	}
}

func (c *checker) checkFunc(f *Func) {
	c.fn, c.scope = f, scope{names: map[string]*Sym{}}
	c.wanted, c.ended = map[string]*Type{}, ended{}
	c.blocks, c.rankIf, c.loops, c.lateIf, c.unsure, c.inGroup, c.returned = 0, 0, 0, 0, 0, false, false
	c.carrying, c.carriedTo = nil, nil
	c.forgive(f)
	before := c.failed
	for _, p := range f.Params {
		c.in.Params[f] = append(c.in.Params[f], c.defineParam(p))
	}
	for _, t := range f.Results {
		c.checkSignatureType(t)
	}
	c.findWanted(f)
	c.checkRefines(f)
	c.checkBlock(f.Body)
	if !c.returned && len(f.Results) > 0 && c.failed == before && len(c.lost.lines[f]) == 0 {
		c.errorf("structure", f.Body.End, "%s ends without return", f.Name).
			at(f.Pos, "it has %s", plural(len(f.Results), "result")).help("end it with return %y")
	}
}

func (c *checker) defineParam(p *Param) *Sym {
	s := &Sym{Name: p.Name, Pos: p.Pos, Param: p, Kind: SymValue, Type: p.Type}
	if !c.checkSignatureType(p.Type) {
		s.Type = nil
	} else if p.Inout {
		s.Kind, s.Signature, s.Type = SymBuffer, p.Type, p.Type.LocalType()
	}
	c.define(s)
	return s
}

// checkSignatureType checks a parameter's or result's type.
func (c *checker) checkSignatureType(t *Type) bool {
	if !c.globalExtents(t) || !c.checkType(t) || !c.divides(t) {
		return false
	}
	if len(t.Partial) > 0 {
		c.errorf("layout", t.Pos, "a parameter or result cannot be partial").
			help("name the layout it has after the reduction (S10)")
		return false
	}
	return true
}

// divides refuses dimensions that no binding makes divide over their axes; what
// dims decide is left to Bind.
func (c *checker) divides(t *Type) bool {
	before := c.failed
	for _, d := range t.Dims {
		n := sizeOf(d.Axes)
		if len(d.Axes) == 0 || c.norm.multiple(d.Extent, n) != no {
			continue
		}
		message := "a dimension does not divide over " + sizeWords(d.Axes)
		extent, known := c.norm.norm(d.Extent).constValue()
		if parts, ok := c.norm.norm(n).constValue(); ok && known {
			message = indivisible(d, extent, parts)
		}
		c.errorf("type", t.Pos, "%s", message).help(shardHelp)
	}
	return c.failed == before
}

// globalExtents demands extents that are the same on all ranks and known
// outside the function.
func (c *checker) globalExtents(t *Type) bool {
	before := c.failed
	for _, d := range t.Dims {
		d.Extent.Walk(func(e *Expr) {
			if e.Kind == ExprRank || e.Kind == ExprVar || e.Kind == ExprExtent {
				c.errorf("type", e.Pos, "the extents of parameters and results may use dims, sizes and numbers only").help("declare a dim: dim T = 64")
			}
		})
	}
	return c.failed == before
}

// findWanted notes which layout the signature asks of each returned name, so
// that an op can aim at it (S20: annotations and signature first).
func (c *checker) findWanted(f *Func) {
	n := len(f.Body.Stmts)
	if n == 0 || f.Body.Stmts[n-1].Op != OpReturn {
		return
	}
	for i, a := range f.Body.Stmts[n-1].Args {
		if i < len(f.Results) && a.Index == nil {
			c.wanted[a.Name] = f.Results[i]
		}
	}
}

// checkType checks axes, mesh and extents of a type as written.
func (c *checker) checkType(t *Type) bool {
	before := c.failed
	mesh, ok := c.typeMesh(t)
	if !ok {
		return false
	}
	var seen []string
	use := func(axis string) {
		m, known := c.axes[axis]
		switch {
		case axis == WorldAxis:
			c.errorf("layout", t.Pos, "%s is no axis to split a value over", WorldAxis).help("name the mesh's axes, major first: /(dp, tp)")
		case !known:
			c.errorf("layout", t.Pos, "there is no mesh axis %s", axis).help(c.axisHelp(axis))
		case slices.Contains(seen, axis):
			c.errorf("layout", t.Pos, "mesh axis %s occurs twice in one type", axis).help("an axis can split one dimension, once (S1)")
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
			c.errorf("type", t.Pos, "numbers of %s are not added up: the ranks' contributions need a wider type", t.DType).
				help("bf16, f16 or f32")
		}
		if p.Red == NoRed {
			c.errorf("layout", t.Pos, "partial needs a reduction").help("sum, max, min or avg")
		}
	}
	return c.failed == before
}

// typeMesh returns the mesh a type is placed on; nil where all ranks are. A
// mesh is named one way only, so that layouts compare as they are written.
func (c *checker) typeMesh(t *Type) (*Mesh, bool) {
	if t.Mesh == "" {
		return c.p.mainMesh(), true
	}
	m := c.axes[t.Mesh]
	switch {
	case m == nil:
		c.errorf("layout", t.Pos, "there is no mesh axis %s", t.Mesh).help(c.axisHelp(t.Mesh))
	case !m.HasDevices:
		c.errorf("layout", t.Pos, "@%s names the main mesh, where every value is by itself", t.Mesh).help("leave @" + t.Mesh + " out")
	case m.Axes[0].Name != t.Mesh:
		c.errorf("layout", t.Pos, "@%s: a mesh is named by its first axis", t.Mesh).help("write @" + m.Axes[0].Name)
	default:
		return m, true
	}
	return nil, false
}

func placeHelp(m *Mesh) string {
	if m.HasDevices {
		return "name its sub-mesh behind the type: @" + m.Axes[0].Name
	}
	return "a value on a sub-mesh is split over that mesh's axes only"
}
