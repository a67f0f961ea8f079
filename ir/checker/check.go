// Package checker checks programs. It resolves names, infers types and layouts, and decides the relations that must
// hold between extents. It stores the relations that it cannot decide, so that they are checked when dims are bound.
package checker

import "hocket.example/hocket/ir"

// Check resolves every name, infers every type and layout, and reports errors in the program's structure, types,
// layouts, scopes and aliases. The Info is complete only if no error is reported.
func Check(p *ir.Program) (*ir.Info, ir.Diagnostics) { return checkBeside(p, &ir.Lost{}) }

// checkBeside does the same as Check for a program with syntax errors. The argument lost describes the parts that the
// parser dropped.
func checkBeside(p *ir.Program, lost *ir.Lost) (*ir.Info, ir.Diagnostics) {
	decls := newHeads(&reporter{p: p}, lost)
	in := newInfo(p, decls.dims)
	if lost.All {
		return in, nil
	}
	if decls.checkHeads(); decls.failed == 0 {
		decls.checkDecls()
		calls := &callGraph{heads: decls, chainKnown: map[*ir.Func]bool{}, inCycle: map[*ir.Func]bool{}}
		for _, f := range decls.list {
			newChecker(f, decls, in).checkFunc(calls)
		}
		calls.checkCalls()
	}
	decls.ds.Sort()
	return in, decls.ds
}

// These types are the passes that check a program. Each uses the results of the types above it:
//
//	reporter    collects errors
//	heads       resolves what the program declares: dims, mesh axes, functions
//	callGraph   follows calls and refines clauses between functions
//	names       resolves the names that are visible in a function
//	relations   decides relations between extents, or keeps them as constraints
//	inference infers the type of the result of one tensor operation
//	checker     goes through the statements of a function

// checker checks the statements of one function.
type checker struct {
	*relations

	// wanted maps each name that the function returns to the type in the signature.
	wanted map[string]*ir.Type
	// blocks counts the enclosing blocks, and rankIf the enclosing ifs whose conditions depend on the rank.
	blocks, rankIf int
	// carrying is the body of the innermost loop if that loop carries values, and carriedTo holds their types.
	carrying  *ir.Block
	carriedTo []*ir.Type
	inGroup   bool
	returned  bool
}

func newChecker(f *ir.Func, decls *heads, in *ir.Info) *checker {
	visible := &names{heads: decls, fn: f, scope: scope{names: map[string]*ir.Sym{}}, facts: map[*ir.Sym]*facts{}}
	decls.norm.resolve = visible.meaning
	return &checker{relations: &relations{names: visible, in: in}, wanted: map[string]*ir.Type{}}
}

// reporter collects the errors of a program.
type reporter struct {
	p  *ir.Program
	ds ir.Diagnostics
	// failed counts all errors, including those that are not reported again.
	failed int
}

// errorf reports an error. Callers may add help and notes to the returned report.
func (c *reporter) errorf(kind string, pos ir.Pos, format string, args ...any) report {
	c.failed++
	if c.full() {
		return report{&ir.Diagnostic{}}
	}
	d := c.p.Diag(kind, pos, format, args...)
	c.ds = append(c.ds, d)
	return report{d}
}

// full reports whether the maximum number of errors has been reported.
func (c *reporter) full() bool { return len(c.ds) >= ir.MaxDiagnostics }

// checkFunc checks the signature and the body.
func (c *checker) checkFunc(calls *callGraph) {
	f := c.fn
	c.forgive(f)
	before := c.failed
	for _, p := range f.Params {
		c.in.Params[f] = append(c.in.Params[f], c.defineParam(p))
	}
	for _, t := range f.Results {
		c.checkSignatureType(t)
	}
	c.findWanted(f)
	calls.checkRefines(f)
	c.checkBlock(f.Body)
	if !c.returned && len(f.Results) > 0 && c.failed == before && len(c.lost.Lines[f]) == 0 {
		c.errorf("structure", f.Body.End, "%s does not end with return", f.Name).
			at(f.Pos, "it has %s", plural(len(f.Results), "result")).help("add a last statement such as return %y")
	}
}

func (c *checker) defineParam(p *ir.Param) *ir.Sym {
	s := &ir.Sym{Name: p.Name, Pos: p.Pos, Param: p, Kind: ir.SymValue, Type: p.Type}
	if !c.checkSignatureType(p.Type) {
		s.Type = nil
	} else if p.Inout {
		s.Kind, s.Signature, s.Type = ir.SymBuffer, p.Type, p.Type.LocalType()
	}
	c.define(s)
	return s
}

// checkSignatureType checks a parameter's or result's type.
func (c *checker) checkSignatureType(t *ir.Type) bool {
	if !c.globalExtents(t) || !c.checkType(t) || !c.divides(t) {
		return false
	}
	if len(t.Partial) > 0 {
		c.errorf("layout", t.Pos, "a parameter or result cannot be partial").
			help("declare the layout after the reduction, and reduce in the function (S10)")
		return false
	}
	return true
}

// divides reports an error for a dimension that no binding can make divisible by the sizes of its axes. If divisibility
// depends on dims, Bind checks it.
func (c *relations) divides(t *ir.Type) bool {
	before := c.failed
	for _, d := range t.Dims {
		n := ir.SizeOf(d.Axes)
		if len(d.Axes) == 0 || c.norm.multiple(d.Extent, n) != no {
			continue
		}
		message := "a dimension is not divisible by the size of " + ir.SizeWords(d.Axes)
		extent, known := c.norm.norm(d.Extent).constValue()
		if parts, ok := c.norm.norm(n).constValue(); ok && known {
			message = ir.Indivisible(d, extent, parts)
		}
		c.errorf("type", t.Pos, "%s", message).help(shardHelp)
	}
	return c.failed == before
}

// globalExtents checks that extents are equal on all ranks, and that they depend only on names that are known
// outside of the function.
func (c *checker) globalExtents(t *ir.Type) bool {
	before := c.failed
	for _, d := range t.Dims {
		d.Extent.Walk(func(e *ir.Expr) {
			if e.Kind == ir.ExprRank || e.Kind == ir.ExprVar || e.Kind == ir.ExprExtent {
				c.errorf("type", e.Pos, "extents of parameters and results may contain only dims, sizes and numbers").help("declare a dim, such as dim T = 64")
			}
		})
	}
	return c.failed == before
}

// findWanted records, for each returned name, the layout that the signature requires. The operation that defines
// the name then produces this layout directly (S20: annotations and signature first).
func (c *checker) findWanted(f *ir.Func) {
	n := len(f.Body.Stmts)
	if n == 0 || f.Body.Stmts[n-1].Op != ir.OpReturn {
		return
	}
	for i, a := range f.Body.Stmts[n-1].Args {
		if i < len(f.Results) && a.Index == nil {
			c.wanted[a.Name] = f.Results[i]
		}
	}
}

func newInfo(p *ir.Program, dims map[string]*ir.Dim) *ir.Info {
	return &ir.Info{
		Prog:           p,
		Dims:           dims,
		Params:         map[*ir.Func][]*ir.Sym{},
		Results:        map[*ir.Stmt][]*ir.Sym{},
		Operands:       map[*ir.Stmt][]*ir.Sym{},
		Into:           map[*ir.Stmt]*ir.Sym{},
		Needs:          map[*ir.Stmt][]*ir.Type{},
		Natural:        map[*ir.Stmt]*ir.Type{},
		Constraints:    map[*ir.Stmt][]ir.Constraint{},
		SigConstraints: map[*ir.Func][]ir.Constraint{},
	}
}
