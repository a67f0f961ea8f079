package grad

import (
	"fmt"
	"maps"

	"hocket.example/hocket/ir"
)

// flatten returns a program that contains only fn. Calls are replaced by the statements of the called functions, and
// all names are distinct. The names at the top level of fn are not changed, since the names of results depend on them.
func flatten(in *ir.Info, fn *ir.Func) *ir.Program {
	q := in.Prog.Clone()
	f := q.Func(fn.Name)
	q.Funcs = []*ir.Func{f}
	f.Refines = ir.Name{}
	q.Order = nil
	for _, d := range q.Dims {
		q.Order = append(q.Order, d)
	}
	for _, m := range q.Meshes {
		q.Order = append(q.Order, m)
	}
	q.Order = append(q.Order, f)
	q.End = nil
	fl := &flattener{info: in, used: map[string]bool{}, made: map[*ir.Stmt]*ir.Stmt{}}
	fl.remember(f.Body, fn.Body)
	for _, prm := range f.Params {
		fl.used[prm.Name] = true
	}
	for _, s := range f.Body.Stmts {
		for i, r := range s.Results {
			if s.Op != ir.OpFor || i > 0 {
				fl.used[r.Text] = true
			}
		}
	}
	f.Body.Stmts = fl.block(f.Body.Stmts, map[string]string{}, true)
	return q
}

type flattener struct {
	info *ir.Info
	used map[string]bool
	// made maps the statements of the copy to the original statements.
	made map[*ir.Stmt]*ir.Stmt
}

// remember records the original statements of the statements in a cloned block.
func (fl *flattener) remember(clone, of *ir.Block) {
	var list []*ir.Stmt
	of.Walk(func(s *ir.Stmt) { list = append(list, s) })
	i := 0
	clone.Walk(func(s *ir.Stmt) { fl.made[s] = list[i]; i++ })
}

// name returns a new name for a definition: base itself, if that is not in use.
func (fl *flattener) name(base string) string {
	name := base
	for i := 2; fl.used[name]; i++ {
		name = fmt.Sprintf("%s.%d", base, i)
	}
	fl.used[name] = true
	return name
}

// block renames the names in the statements of a block. The map names holds the new name of each visible name.
func (fl *flattener) block(list []*ir.Stmt, names map[string]string, top bool) []*ir.Stmt {
	inner := maps.Clone(names)
	var out []*ir.Stmt
	for _, s := range list {
		if s.Op == ir.OpCall {
			out = append(out, fl.call(s, inner, top)...)
			continue
		}
		fl.operands(s, inner)
		body := inner
		if s.Op == ir.OpFor {
			body = maps.Clone(inner)
			fl.define(&s.Results[0], body, false)
			for i := range s.Carry {
				fl.define(&s.Carry[i], body, false)
			}
		}
		if s.Body != nil {
			s.Body.Stmts = fl.block(s.Body.Stmts, body, false)
		}
		if s.Else != nil {
			s.Else.Stmts = fl.block(s.Else.Stmts, inner, false)
		}
		results := s.Results
		if s.Op == ir.OpFor {
			results = results[1:]
		}
		for i := range results {
			fl.define(&results[i], inner, top)
		}
		out = append(out, s)
	}
	return out
}

func (fl *flattener) define(n *ir.Name, names map[string]string, top bool) {
	name := n.Text
	if !top {
		name = fl.name(name)
	}
	names[n.Text] = name
	n.Text = name
}

// operands renames the names that s uses.
func (fl *flattener) operands(s *ir.Stmt, names map[string]string) {
	place := func(p *ir.Place) {
		if to, ok := names[p.Name]; ok {
			p.Name = to
		}
	}
	for i := range s.Args {
		place(&s.Args[i])
	}
	if s.Into != nil {
		place(s.Into)
	}
	s.EachExpr(func(e **ir.Expr) { *e = rename(*e, names) })
}

// rename returns a copy of e in which variables and tensors are renamed.
func rename(e *ir.Expr, names map[string]string) *ir.Expr {
	if e == nil {
		return nil
	}
	c := *e
	if e.Kind == ir.ExprVar || e.Kind == ir.ExprExtent {
		if to, ok := names[e.Name]; ok {
			c.Name = to
		}
	}
	if e.Args != nil {
		c.Args = make([]*ir.Expr, len(e.Args))
		for i, a := range e.Args {
			c.Args[i] = rename(a, names)
		}
	}
	return &c
}

// call returns the statements of the function that s calls.
func (fl *flattener) call(s *ir.Stmt, names map[string]string, top bool) []*ir.Stmt {
	of := fl.info.Prog.Func(s.Callee.Text)
	callee := of.Clone()
	fl.remember(callee.Body, of.Body)
	fl.operands(s, names)
	inner := map[string]string{}
	var out []*ir.Stmt
	for i, p := range callee.Params {
		arg, sym := s.Args[i], fl.info.Operands[fl.made[s]][i]
		if p.Inout || sym.Kind == ir.SymValue && ir.SameLayout(sym.Type, p.Type) {
			inner[p.Name] = arg.Name
			continue
		}
		inner[p.Name] = fl.name(p.Name)
		out = append(out, as(s.Pos, inner[p.Name], p.Type.Clone(), arg, sym))
	}
	body := fl.block(callee.Body.Stmts, inner, false)
	var ret *ir.Stmt
	if n := len(body); n > 0 && body[n-1].Op == ir.OpReturn {
		ret, body = body[n-1], body[:n-1]
	}
	out = append(out, body...)
	for i := range s.Results {
		t := callee.Results[i].Clone()
		if s.Type != nil {
			t = s.Type
		}
		fl.define(&s.Results[i], names, top)
		out = append(out, as(s.Pos, s.Results[i].Text, t, ret.Args[i], fl.info.Operands[fl.made[ret]][i]))
	}
	for _, st := range out {
		st.Comments = ir.Comments{}
	}
	if len(out) > 0 {
		out[0].Comments = s.Comments
	}
	return out
}

// as returns a statement that makes a value of type t from the tensor in place, whose symbol is sym.
func as(pos ir.Pos, name string, t *ir.Type, place ir.Place, sym *ir.Sym) *ir.Stmt {
	op := ir.OpReshard
	if sym.Kind == ir.SymBuffer {
		op = ir.OpClaim
	}
	s := stmt(pos, op, name, t, nil)
	s.Args = []ir.Place{place}
	return s
}
