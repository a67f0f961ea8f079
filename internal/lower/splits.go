package lower

import "hocket.example/hocket/ir"

// checkSplits refuses what no dims can make right: a number that does not
// divide over axes whose sizes are numbers too. A pass would only repeat the
// mistake in more places, where it would look like the pass' own.
func checkSplits(p *ir.Program) error {
	sizes := literalSizes(p)
	var ds ir.Diagnostics
	check := func(t *ir.Type) {
		if t != nil {
			ds = append(ds, sizes.undivided(p, t)...)
		}
	}
	for _, f := range p.Funcs {
		for _, q := range f.Params {
			check(q.Type)
		}
		for _, t := range f.Results {
			check(t)
		}
		f.Body.Walk(func(s *ir.Stmt) { check(s.Type) })
	}
	return ds.Err()
}

// literalSizes returns the mesh sizes that the text gives as numbers.
func literalSizes(p *ir.Program) literals {
	sizes := literals{}
	for _, m := range p.Meshes {
		for _, ax := range m.Axes {
			if n, err := ax.Size.Eval(sizes); err == nil {
				sizes[ax.Name] = n
			}
		}
	}
	return sizes
}

// literals is an ir.Env that knows only the mesh sizes the text gives as numbers.
type literals map[string]int64

func (l literals) undivided(p *ir.Program, t *ir.Type) ir.Diagnostics {
	var ds ir.Diagnostics
	for _, d := range t.Dims {
		parts := int64(1)
		for _, a := range d.Axes {
			parts *= l[a] // 0 where unknown
		}
		if parts < 2 {
			continue
		}
		if n, err := d.Extent.Eval(l); err == nil && n%parts != 0 {
			diag := p.Diag("layout", t.Pos, "%d does not divide into the %d blocks of %s", n, parts, t)
			ds = append(ds, diag)
		}
	}
	return ds
}

// Dim, Var, Rank and Extent are open; Size is known where the text has a number.
func (literals) Dim(string) (int64, bool)              { return 0, false }
func (literals) Var(string) (int64, bool)              { return 0, false }
func (literals) Rank(string) (int64, bool)             { return 0, false }
func (literals) Extent(string, int) (int64, bool)      { return 0, false }
func (l literals) Size(axis string) (n int64, ok bool) { n, ok = l[axis]; return n, ok }
