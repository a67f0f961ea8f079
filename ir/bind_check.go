package ir

import (
	"fmt"
	"strings"
)

// reached returns f and every function that f calls directly or indirectly, in the order of their first calls.
func (p *Program) reached(f *Func) []*Func {
	byName := make(map[string]*Func, len(p.Funcs))
	for _, g := range p.Funcs {
		byName[g.Name] = g
	}
	list := []*Func{f}
	seen := map[*Func]bool{f: true}
	for i := 0; i < len(list); i++ {
		list[i].Body.Walk(func(s *Stmt) {
			if g := byName[s.Callee.Text]; s.Op == OpCall && g != nil && !seen[g] {
				seen[g] = true
				list = append(list, g)
			}
		})
	}
	return list
}

// needDims reports all dims without a value that the meshes, the function, or the functions that it calls use.
func (b *Bound) needDims(Binding) *Diagnostic {
	p := b.Info.Prog
	var missing []*Expr
	seen := map[string]bool{}
	look := func(e *Expr) {
		if e.Kind != ExprName || seen[e.Name] {
			return
		}
		seen[e.Name] = true
		if _, has := b.Dims[e.Name]; !has && b.defines[e.Name] == nil {
			missing = append(missing, e)
		}
	}
	for _, m := range p.Meshes {
		for _, ax := range m.Axes {
			ax.Size.Walk(look)
		}
	}
	for _, f := range p.reached(b.Func) {
		f.walkExprs(func(e *Expr) { e.Walk(look) })
	}
	if len(missing) == 0 {
		return nil
	}
	names, flags := make([]string, len(missing)), make([]string, len(missing))
	for i, e := range missing {
		names[i], flags[i] = e.Name, "--dim "+e.Name+"=64"
	}
	return p.bindError(missing[0].Pos, "give "+strings.Join(flags, " ")+", or defaults: dim "+names[0]+" = 64",
		"no value is given for dim %s", strings.Join(names, ", "))
}

// walkExprs is an iterator: it calls see for every expression in the signature and body, including nil expressions.
func (f *Func) walkExprs(see func(*Expr)) {
	types := func(t *Type) {
		for _, d := range t.Dims {
			see(d.Extent)
		}
	}
	for _, p := range f.Params {
		types(p.Type)
	}
	for _, t := range f.Results {
		types(t)
	}
	f.Body.Walk(func(s *Stmt) {
		s.EachExpr(func(e **Expr) { see(*e) })
	})
}

// boundCheck checks the bound function and all functions that it calls. boundCheck checks their signatures, and those
// constraints in their bodies that are not Late and whose block may run.
type boundCheck struct {
	*Bound
	funcs map[string]*Func
	seen  map[*Func]bool
	ds    Diagnostics
}

func (b *Bound) checkFuncs() Diagnostics {
	c := &boundCheck{Bound: b, funcs: map[string]*Func{}, seen: map[*Func]bool{}}
	for _, f := range b.Info.Prog.Funcs {
		c.funcs[f.Name] = f
	}
	c.checkFunc(b.Func)
	c.ds.Sort()
	return c.ds
}

func (b *boundCheck) checkFunc(f *Func) {
	if f == nil || b.seen[f] {
		return
	}
	b.seen[f] = true
	b.ds = append(b.ds, b.checkSignature(f)...)
	b.checkBlock(f.Body)
}

func (b *boundCheck) checkBlock(blk *Block) {
	if blk == nil {
		return
	}
	for _, s := range blk.Stmts {
		for i := range b.Info.Constraints[s] {
			if c := &b.Info.Constraints[s][i]; !c.Late && len(b.ds) < MaxDiagnostics {
				b.ds = appendDiag(b.ds, b.check(c, b.Env(0, nil)))
			}
		}
		if s.Op == OpCall {
			b.checkFunc(b.funcs[s.Callee.Text])
		}
		then, other := b.runs(s)
		if then {
			b.checkBlock(s.Body)
		}
		if other {
			b.checkBlock(s.Else)
		}
	}
}

// runs reports for each block of s whether the block may run. It evaluates conditions and loop bounds that depend only
// on dims and mesh sizes. A block with any other condition or bounds is reported as one that may run.
func (b *Bound) runs(s *Stmt) (then, other bool) {
	if s.Op != OpIf && s.Op != OpFor || !Static(s.Exprs[0]) || !Static(s.Exprs[1]) {
		return true, true
	}
	x, err1 := s.Exprs[0].Eval(b.Env(0, nil))
	y, err2 := s.Exprs[1].Eval(b.Env(0, nil))
	switch {
	case err1 != nil || err2 != nil:
		return true, true
	case s.Op == OpFor:
		return x < y, false
	}
	holds := s.Cmp.Holds(x, y)
	return holds, !holds
}

func appendDiag(ds Diagnostics, d *Diagnostic) Diagnostics {
	if d != nil {
		return append(ds, d)
	}
	return ds
}

func (b *Bound) checkSignature(f *Func) Diagnostics {
	var ds Diagnostics
	said := map[string]*Diagnostic{} // one wrong dim can cause an error in many types; it is reported once
	check := func(t *Type) {
		_, err := b.LocalShape(t, b.Env(0, nil))
		if err == nil {
			return
		}
		if d := said[err.Error()]; d != nil {
			d.Notes = append(d.Notes, Note{t.Pos, "and here"})
			return
		}
		d := b.Info.Prog.bindError(t.Pos, "choose other values of dims, or another layout", "%v", err)
		ds, said[err.Error()] = append(ds, d), d
	}
	for _, p := range f.Params {
		check(p.Type)
	}
	for _, t := range f.Results {
		check(t)
	}
	for i := range b.Info.SigConstraints[f] {
		ds = appendDiag(ds, b.check(&b.Info.SigConstraints[f][i], b.Env(0, nil)))
	}
	return ds
}

// Static reports whether e contains no loop variable, let, rank or local extent.
func Static(e *Expr) bool {
	ok := true
	e.Walk(func(e *Expr) {
		switch e.Kind {
		case ExprVar, ExprRank, ExprExtent:
			ok = false
		}
	})
	return ok
}

// CheckStmt checks the Late constraints of s, which depend on loop variables or ranks, for one execution of s on one
// rank.
func (b *Bound) CheckStmt(s *Stmt, env Env) *Diagnostic {
	for i := range b.Info.Constraints[s] {
		c := &b.Info.Constraints[s][i]
		if !c.Late {
			continue
		}
		if d := b.check(c, env); d != nil {
			return d
		}
	}
	return nil
}

func (b *Bound) check(c *Constraint, env Env) *Diagnostic {
	p := b.Info.Prog
	x, err := c.A.Eval(env)
	if err != nil {
		return p.Diag("bind", c.Pos, "%s: %v", c.Message, err)
	}
	y, err := c.B.Eval(env)
	if err != nil {
		return p.Diag("bind", c.Pos, "%s: %v", c.Message, err)
	}
	ok := true
	switch c.Rel {
	case CheckEqual:
		ok = x == y
	case CheckMultiple:
		ok = y != 0 && x%y == 0
	case CheckAtMost:
		ok = x <= y
	case CheckLess:
		ok = x < y
	}
	if ok {
		return nil
	}
	return p.bindError(c.Pos, c.Help, "%s: %s", c.Message, c.Rel.Broken(c.A, c.B, valued(c.A, x), valued(c.B, y)))
}

// valued formats an expression together with its value, for example "T=64". For a constant, it returns only the number.
func valued(e *Expr, v int64) string {
	if e.Kind == ExprInt {
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%s=%d", Brief(e), v)
}
