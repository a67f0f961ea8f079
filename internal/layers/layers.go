// Package layers cuts a function into layers that can be run and evaluated one by one. A layer is one iteration of a
// loop that carries values, or a sequence of statements between such loops. Each layer is a separate program. The
// program's parameters are the function's parameters and the values of earlier layers that the layer uses. The results
// of a layer's program are the values that later layers use.
//
// Small parts keep error bounds small. A layer that is given exact inputs is compared within the rounding of its own
// operations, while the bounds of a whole model soon exceed its values.
package layers

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// Layer is a part of a function.
type Layer struct {
	// Name identifies the part: "%hidden, %l=3".
	Name string
	// Pos is where the layer begins in the source.
	Pos ir.Pos
	// Program is the layer's program; its last function computes the layer. Iterations that differ
	// only in the rows of stacked parameters share one Program.
	Program *ir.Program
	// In are the arguments of that function, in the order of its parameters.
	In []Input
	// Out names, for each result of the layer in order, the value of the original function that the result is. The
	// names of inout parameters follow, as in ir.OutputNames; these parameters are also in In.
	Out []string
}

// Input is the argument for a parameter of a layer.
type Input struct {
	// Value is the name of a parameter or value of the cut function.
	Value string
	// Row selects a row of Value along dimension 0; the row keeps that dimension, with extent 1. Row is -1 if the
	// argument is all of Value.
	Row   int64
	Inout bool
}

// Most is the largest number of statements in a layer that is not a loop. Most is the limit that callers pass to Split
// first.
const Most = 16

// mostIterations bounds how many iterations of a loop become separate layers.
const mostIterations = 10_000

// Split cuts b's function into layers. Each has up to most statements, or is an iteration of a
// loop. Split returns nil if the function cannot be cut.
func Split(b *ir.Bound, most int) []Layer {
	c := &cutter{b: b, most: most, stmts: b.Func.Body.Stmts, defined: map[string]*ir.Sym{}, at: map[string]int{}}
	c.find()
	var from int
	for i, s := range c.stmts {
		lo, hi, ok := c.iterates(i)
		if !ok {
			continue
		}
		c.run(from, i)
		for k := lo; k < hi; k++ {
			c.iteration(s, k)
		}
		from = i + 1
	}
	if c.run(from, len(c.stmts)); len(c.layers) < 2 {
		return nil
	}
	return c.layers
}

// cutter cuts one function at the top level of its body.
type cutter struct {
	b      *ir.Bound
	most   int
	stmts  []*ir.Stmt
	layers []Layer

	defined map[string]*ir.Sym // symbols by name, at the top level
	at      map[string]int     // index of the statement that defines each value
	last    map[string]int     // index of the last statement that uses it
	names   []string           // names of all values, in order
	shared  map[*ir.Stmt]*ir.Program
}

// find records where each value is defined and last used.
func (c *cutter) find() {
	c.last, c.shared = map[string]int{}, map[*ir.Stmt]*ir.Program{}
	for i, s := range c.stmts {
		used(s, func(name string) { c.last[name] = i })
		for _, sym := range c.b.Info.Results[s] {
			if s.Op == ir.OpFor && sym.Kind == ir.SymIndex {
				continue // a variable that the loop itself defines
			}
			c.defined[sym.Name], c.at[sym.Name] = sym, i
			c.names = append(c.names, sym.Name)
		}
	}
}

// live lists the values that are defined before statement i and used by it or a later one.
func (c *cutter) live(i int) []string {
	var list []string
	for _, name := range c.names {
		if c.at[name] < i && c.last[name] >= i {
			list = append(list, name)
		}
	}
	return list
}

// cuts is a predicate: it reports whether the function can be cut before statement i.
func (c *cutter) cuts(i int) bool {
	if i > 0 && c.stmts[i-1].Nested {
		return false
	}
	return !slices.ContainsFunc(c.live(i), func(name string) bool { return !passes(c.defined[name]) })
}

// passes is a predicate: it reports whether s can be a result of one program and a parameter of another.
func passes(s *ir.Sym) bool { return s != nil && s.Kind == ir.SymValue && concrete(s.Type) }

// concrete reports whether the extents of t depend only on dims, and t is not a partial sum.
func concrete(t *ir.Type) bool {
	ok := t != nil && len(t.Partial) == 0
	if !ok {
		return false
	}
	for _, d := range t.Dims {
		d.Extent.Walk(func(e *ir.Expr) {
			ok = ok && e.Kind != ir.ExprVar && e.Kind != ir.ExprExtent && e.Kind != ir.ExprRank
		})
	}
	return ok
}

// iterates reports whether each iteration of statement i can be a layer. If so, the iterations are
// lo to hi-1.
func (c *cutter) iterates(i int) (lo, hi int64, ok bool) {
	s := c.stmts[i]
	if s.Op != ir.OpFor || s.Streams > 0 || len(s.Carry) == 0 || !c.cuts(i) || !c.cuts(i+1) {
		return 0, 0, false
	}
	for k, name := range s.Carry {
		if s.Args[k].Index != nil || name.Text == "" || !passes(c.b.Info.Results[s][1+k]) {
			return 0, 0, false
		}
	}
	env := c.b.Env(0, nil)
	lo, lerr := s.Exprs[0].Eval(env)
	hi, herr := s.Exprs[1].Eval(env)
	return lo, hi, lerr == nil && herr == nil && lo < hi && hi-lo <= mostIterations
}

// run makes layers of statements [from, to). If there are more statements than a layer may have, run cuts them where
// the fewest values are live.
func (c *cutter) run(from, to int) {
	if from == to {
		return
	}
	if at := c.narrowest(from, to); at > 0 {
		c.run(from, at)
		c.run(at, to)
		return
	}
	part := c.stmts[from:to]
	if len(part) == 1 && part[0].Op == ir.OpReturn && c.b.Info.Needs[part[0]] == nil {
		return // the statements compute no value
	}
	l := Layer{Pos: part[0].Pos, Name: c.spelled(part)}
	body := &ir.Block{Stmts: cloned(part), End: c.b.Func.Body.End}
	var results []*ir.Type
	if part[len(part)-1].Op == ir.OpReturn {
		for _, a := range part[len(part)-1].Args {
			l.Out = append(l.Out, a.Name)
		}
		results = c.b.Func.Results
	} else {
		ret := &ir.Stmt{Op: ir.OpReturn, Pos: part[len(part)-1].Pos}
		for _, name := range c.live(to) {
			if c.at[name] < from {
				continue
			}
			l.Out = append(l.Out, name)
			ret.Args = append(ret.Args, ir.Place{Name: name})
			results = append(results, c.defined[name].Type)
		}
		body.Stmts = append(body.Stmts, ret)
	}
	taken := map[string]bool{}
	for _, s := range part {
		used(s, func(name string) { taken[name] = true })
	}
	var params []*ir.Param
	for _, p := range c.b.Func.Params {
		if taken[p.Name] {
			params = append(params, p)
			l.In = append(l.In, Input{Value: p.Name, Row: -1, Inout: p.Inout})
		}
	}
	for _, name := range c.live(from) {
		if taken[name] {
			params = append(params, &ir.Param{Name: name, Type: c.defined[name].Type})
			l.In = append(l.In, Input{Value: name, Row: -1})
		}
	}
	l.Program = c.program(params, results, body)
	c.layers = append(c.layers, l)
}

// narrowest returns the index at which statements [from, to) are cut: the one with the fewest live values. It returns 0
// if they cannot be cut.
func (c *cutter) narrowest(from, to int) int {
	count := 0
	for _, s := range c.stmts[from:to] {
		if !s.Nested && s.Op != ir.OpReturn {
			count++
		}
	}
	if count <= c.most {
		return 0
	}
	best, least := 0, 0
	quarter, middle := (to-from)/4, (from+to)/2
	for i := from + max(quarter, 1); i <= to-max(quarter, 2); i++ {
		if !c.cuts(i) {
			continue
		}
		n := len(c.live(i))
		if best == 0 || n < least || n == least && distance(i, middle) < distance(best, middle) {
			best, least = i, n
		}
	}
	return best
}

func distance(a, b int) int { return max(a-b, b-a) }

// spelled returns a name for statements: the first and the last value that they define.
func (c *cutter) spelled(part []*ir.Stmt) string {
	var names []string
	for _, s := range part {
		if len(s.Results) > 0 && !s.Nested {
			names = append(names, "%"+s.Results[len(s.Results)-1].Text)
		}
	}
	switch len(names) {
	case 0:
		return part[0].Op.String()
	case 1:
		return names[0]
	}
	return names[0] + " to " + names[len(names)-1]
}

// iteration makes a layer of one iteration of loop s, in which its variable is k. If the loop uses
// the variable only to select rows of stacked parameters, the layer's parameters are these rows,
// and its loop has the single iteration 0.
func (c *cutter) iteration(s *ir.Stmt, k int64) {
	variable := s.Results[0].Text
	l := Layer{Pos: s.Pos, Name: fmt.Sprintf("%%%s, %%%s=%d", s.Results[1].Text, variable, k)}
	stacks, all := c.stacks(s)
	taken := map[string]bool{}
	used(&ir.Stmt{Op: s.Op, Body: s.Body}, func(name string) { taken[name] = true })
	var params []*ir.Param
	for _, p := range c.b.Func.Params {
		if !taken[p.Name] {
			continue
		}
		in := Input{Value: p.Name, Row: -1, Inout: p.Inout}
		if all && stacks[p.Name] {
			row := *p
			row.Type = p.Type.Clone()
			row.Type.Dims[0].Extent = ir.Int(1)
			p, in.Row = &row, k
		}
		params = append(params, p)
		l.In = append(l.In, in)
	}
	for _, name := range c.names {
		if taken[name] && c.at[name] < c.at[s.Results[1].Text] {
			params = append(params, &ir.Param{Name: name, Type: c.defined[name].Type})
			l.In = append(l.In, Input{Value: name, Row: -1})
		}
	}
	loop := s.Clone()
	loop.Exprs = []*ir.Expr{ir.Int(k), ir.Int(k + 1)}
	if all {
		loop.Exprs = []*ir.Expr{ir.Int(0), ir.Int(1)}
	}
	ret := &ir.Stmt{Op: ir.OpReturn, Pos: s.Pos}
	var results []*ir.Type
	lo, _ := s.Exprs[0].Eval(c.b.Env(0, nil))
	for i, name := range s.Results[1:] {
		t := c.b.Info.Results[s][1+i].Type
		in := Input{Value: name.Text, Row: -1}
		if k == lo {
			in.Value = s.Args[i].Name
		}
		begin := name.Text + ".in"
		for taken[begin] {
			begin += ".in"
		}
		params = append(params, &ir.Param{Name: begin, Type: t})
		l.In = append(l.In, in)
		loop.Args[i] = ir.Place{Pos: s.Args[i].Pos, Name: begin}
		ret.Args = append(ret.Args, ir.Place{Name: name.Text})
		results = append(results, t)
		l.Out = append(l.Out, name.Text)
	}
	if all && c.shared[s] != nil {
		l.Program = c.shared[s]
	} else {
		l.Program = c.program(params, results, &ir.Block{Stmts: []*ir.Stmt{loop, ret}, End: c.b.Func.Body.End})
	}
	if all {
		c.shared[s] = l.Program
	}
	c.layers = append(c.layers, l)
}

// Unrolled returns the function of a layer in a form that can be cut further. If the layer is an iteration of a loop,
// the function contains the statements of the loop's body without the loop. The parameters have the same order as the
// layer's, but may have other names.
func Unrolled(b *ir.Bound) (*ir.Bound, error) {
	stmts := b.Func.Body.Stmts
	if len(stmts) != 2 || stmts[0].Op != ir.OpFor || len(stmts[0].Carry) == 0 || stmts[0].Exprs[0].Kind != ir.ExprInt {
		return b, nil
	}
	p := *b.Info.Prog
	p.Order = nil
	p.Funcs = slices.Clone(p.Funcs)
	at := slices.Index(p.Funcs, b.Func)
	f := b.Func.Clone()
	p.Funcs[at] = f
	loop := f.Body.Stmts[0]
	for i, name := range loop.Carry {
		k := slices.IndexFunc(f.Params, func(p *ir.Param) bool { return p.Name == loop.Args[i].Name })
		if k < 0 {
			return b, nil
		}
		f.Params[k].Name = name.Text
	}
	f.Body = loop.Body
	f.Body.Walk(func(s *ir.Stmt) {
		substitute(s, loop.Results[0].Text, loop.Exprs[0])
		if s.Op == ir.OpYield {
			s.Op = ir.OpReturn
		}
	})
	info, ds := checker.Check(&p)
	if ds.HasErrors() {
		return nil, ds
	}
	bound, ds := ir.Bind(info, ir.Binding{Func: f.Name, Ranks: b.Ranks})
	return bound, ds.Err()
}

// substitute replaces a variable in the expressions of s.
func substitute(s *ir.Stmt, variable string, by *ir.Expr) {
	var expr func(e *ir.Expr) *ir.Expr
	expr = func(e *ir.Expr) *ir.Expr {
		switch {
		case e == nil:
			return nil
		case e.Kind == ir.ExprVar && e.Name == variable:
			return by
		}
		c := *e
		c.Args = make([]*ir.Expr, len(e.Args))
		for i, a := range e.Args {
			c.Args[i] = expr(a)
		}
		return &c
	}
	s.EachExpr(func(e **ir.Expr) { *e = expr(*e) })
}

// stacks returns the parameters of which loop s uses only the rows selected by its variable. all
// reports that the variable has no other use.
func (c *cutter) stacks(s *ir.Stmt) (stacks map[string]bool, all bool) {
	variable := s.Results[0].Text
	stacks, others, all := map[string]bool{}, map[string]bool{}, true
	s.Body.Walk(func(inner *ir.Stmt) {
		if row(inner, variable) && c.param(inner.Args[0].Name) {
			stacks[inner.Args[0].Name] = true
			return
		}
		shallow := *inner
		shallow.Body, shallow.Else = nil, nil
		used(&shallow, func(name string) {
			others[name] = true
			all = all && name != variable
		})
	})
	for name := range others {
		all = all && !stacks[name]
	}
	return stacks, all
}

// row reports whether s selects a row of its operand, with the variable as the index of the row.
func row(s *ir.Stmt, variable string) bool {
	axis, index := s.Attr("axis"), s.Attr("index")
	return s.Op == ir.OpSelect && s.Into == nil && len(s.Args) == 1 && s.Args[0].Index == nil &&
		axis != nil && len(axis.Exprs) == 1 && axis.Exprs[0].IsInt(0) &&
		index != nil && len(index.Exprs) == 1 && index.Exprs[0].Kind == ir.ExprVar && index.Exprs[0].Name == variable
}

func (c *cutter) param(name string) bool {
	return slices.ContainsFunc(c.b.Func.Params, func(p *ir.Param) bool {
		return p.Name == name && len(p.Type.Dims) > 0 &&
			len(p.Type.Dims[0].Axes) == 0
	})
}

// program returns the program of a layer: its function and the functions that it calls. Dims have
// the values of the binding.
func (c *cutter) program(params []*ir.Param, results []*ir.Type, body *ir.Block) *ir.Program {
	from := c.b.Info.Prog
	p := &ir.Program{File: from.File, Source: from.Source, Files: from.Files, Meshes: from.Meshes}
	for _, d := range from.Dims {
		v, ok := c.b.Dims[d.Name]
		p.Dims = append(p.Dims, &ir.Dim{Pos: d.Pos, Name: d.Name, Default: v, HasValue: ok})
	}
	for name, d := range c.b.Info.Dims {
		if v, ok := c.b.Dims[name]; ok && !slices.Contains(from.Dims, d) {
			p.Dims = append(p.Dims, &ir.Dim{Pos: d.Pos, Name: name, Default: v, HasValue: true})
		}
	}
	slices.SortStableFunc(p.Dims[len(from.Dims):], func(a, b *ir.Dim) int {
		return slices.Compare([]byte(a.Name), []byte(b.Name))
	})
	called := map[string]bool{}
	var call func(b *ir.Block)
	call = func(b *ir.Block) {
		b.Walk(func(s *ir.Stmt) {
			if f := from.Func(s.Callee.Text); s.Op == ir.OpCall && f != nil && !called[f.Name] {
				called[f.Name] = true
				call(f.Body)
			}
		})
	}
	call(body)
	for _, f := range from.Funcs {
		if called[f.Name] {
			g := *f
			g.Refines = ir.Name{}
			p.Funcs = append(p.Funcs, &g)
		}
	}
	f := &ir.Func{Pos: c.b.Func.Pos, Name: c.b.Func.Name, Params: params, Results: results, Body: body}
	p.Funcs = append(p.Funcs, f)
	return p.Clone()
}

// used is an iterator: it calls visit for every name that s, or a block in s, uses.
func used(s *ir.Stmt, visit func(name string)) {
	place := func(p *ir.Place) {
		if !p.Main && p.Name != "" {
			visit(p.Name)
		}
	}
	one := func(s *ir.Stmt) {
		for i := range s.Args {
			place(&s.Args[i])
		}
		if s.Into != nil {
			place(s.Into)
		}
		s.EachExpr(func(e **ir.Expr) {
			(*e).Walk(func(e *ir.Expr) {
				if e.Kind == ir.ExprVar || e.Kind == ir.ExprExtent {
					visit(e.Name)
				}
			})
		})
	}
	one(s)
	s.Body.Walk(one)
	s.Else.Walk(one)
}

func cloned(stmts []*ir.Stmt) []*ir.Stmt {
	out := make([]*ir.Stmt, len(stmts))
	for i, s := range stmts {
		out[i] = s.Clone()
	}
	return out
}
