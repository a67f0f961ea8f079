package grad

import (
	"slices"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// Parts holds the gradient of a function as two programs. The first computes the results; the second computes the
// gradients once the gradients of the results are known.
type Parts struct {
	// Forward is the program with the function's parameters and results. The further results of Forward are parameters
	// of Backward.
	Forward string
	// Backward is the program that returns %dx for each differentiated parameter %x, in the order of the parameters.
	Backward string
	// Takes describes the parameters of Backward, in order.
	Takes []Take
}

// Take describes one parameter of Parts.Backward. The parameter is a parameter of the function, a result of
// Parts.Forward, or the gradient of a result; an index selects which one.
type Take struct {
	Of    Source
	Index int
}

// Source is the kind of object from which a parameter of Parts.Backward is taken.
type Source string

// The sources of parameters.
const (
	OfInput    Source = "input"
	OfOutput   Source = "output"
	OfGradient Source = "gradient"
)

// Split returns the function's gradient as two programs. In contrast to Of, results that are scalars also have a
// gradient that is a parameter of Backward. Split returns the same errors as Of.
func Split(in *ir.Info, opts Options) (*Parts, error) {
	opts.split = true
	g, err := made(in, opts)
	if err != nil {
		return nil, err
	}
	info, ds := checker.Read(in.Prog.File, g.prog.String())
	if ds.HasErrors() {
		return nil, ds
	}
	sp := &splitter{g: g, info: info, fn: info.Prog.Funcs[0]}
	parts := sp.parts()
	if opts.Budget > 0 {
		if err := sp.within(in, opts); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// within returns a BudgetError if the values that the forward program passes to the backward program exceed the budget.
func (sp *splitter) within(in *ir.Info, opts Options) error {
	b, ds := ir.Bind(in, ir.Binding{Func: opts.Func, Dims: opts.Dims})
	if ds.HasErrors() {
		return ds
	}
	sum := int64(0)
	for _, t := range sp.extra {
		n, err := localBytes(b, t)
		if err != nil {
			return err
		}
		sum += n
	}
	if sum > opts.Budget {
		return &BudgetError{opts.Budget, sum}
	}
	return nil
}

// splitter splits the function that a gradder rewrote into two programs.
type splitter struct {
	g    *gradder
	info *ir.Info
	fn   *ir.Func

	forward, backward []*ir.Stmt
	ret               *ir.Stmt
	defs              map[string]definition
	params            map[string]int
	seeds             map[string]int
	// again holds the statements of the forward pass that the backward program repeats.
	again map[*ir.Stmt]bool
	// takes lists the names of the backward program's parameters, in order.
	takes []string
	// extra lists the types of the further results of the forward program, which are parameters of the backward program.
	extra []*ir.Type
	// all reports that the backward program repeats all statements of the forward pass.
	all bool
}

// definition identifies a statement of the forward pass and one of its results.
type definition struct {
	s   *ir.Stmt
	sym *ir.Sym
}

func (sp *splitter) parts() *Parts {
	fn := sp.fn
	body := fn.Body.Stmts
	sp.forward, sp.backward = body[:sp.g.cut], body[sp.g.cut:len(body)-1]
	sp.ret = body[len(body)-1]
	sp.defs, sp.params, sp.seeds = map[string]definition{}, map[string]int{}, map[string]int{}
	sp.again = map[*ir.Stmt]bool{}
	for i, p := range fn.Params {
		if i < sp.g.given {
			sp.params[p.Name] = i
		}
	}
	for i, result := range sp.g.of {
		sp.seeds[fn.Params[sp.g.given+i].Name] = result
	}
	for _, s := range sp.forward {
		for _, sym := range sp.info.Results[s] {
			if sym != nil {
				sp.defs[sym.Name] = definition{s, sym}
			}
		}
	}
	for _, s := range sp.backward {
		mentioned(s, sp.need)
	}
	if sp.all {
		sp.takes = nil
		for _, s := range slices.Concat(sp.forward, sp.backward) {
			mentioned(s, sp.need)
		}
	}
	return sp.programs()
}

// need makes a value of the forward pass available in the backward program. The value becomes a parameter. If computing
// the value again costs nothing, or if it cannot be a parameter, its statement is repeated instead.
func (sp *splitter) need(name string) {
	if slices.Contains(sp.takes, name) {
		return
	}
	_, param := sp.params[name]
	_, seed := sp.seeds[name]
	def, made := sp.defs[name]
	switch {
	case param || seed:
		sp.takes = append(sp.takes, name)
	case !made || sp.all:
	case def.sym.Kind != ir.SymValue:
		sp.all = true // the contents of a buffer depend on further statements
	case len(def.sym.Type.Partial) > 0, free(def.s.Op) && def.s.Op != ir.OpClaim && alone(def.s):
		if !sp.again[def.s] {
			sp.again[def.s] = true
			mentioned(def.s, sp.need)
		}
	default:
		sp.takes = append(sp.takes, name)
	}
}

// programs returns the texts of the two programs.
func (sp *splitter) programs() *Parts {
	g, fn := sp.g, sp.fn
	parts := &Parts{}
	forward := &ir.Func{Name: fn.Name[:len(fn.Name)-len("_grad")], Pos: fn.Pos, Params: fn.Params[:g.given],
		Results: slices.Clone(fn.Results[:g.results])}
	ret := sp.ret.Clone()
	ret.Args = ret.Args[:g.results]
	backward := &ir.Func{Name: fn.Name, Pos: fn.Pos, Results: fn.Results[g.results:]}
	end := sp.ret.Clone()
	end.Args, end.Comments = end.Args[g.results:], ir.Comments{}
	var after []*ir.Stmt
	for _, name := range sp.takes {
		p := &ir.Param{Name: name}
		var t Take
		if i, ok := sp.params[name]; ok {
			t, p.Type = Take{OfInput, i}, fn.Params[i].Type
		} else if i, ok := sp.seeds[name]; ok {
			t, p.Type = Take{OfGradient, i}, reduced(fn.Results[i])
		} else {
			p.Type = sp.defs[name].sym.Type.Clone()
			i := slices.IndexFunc(ret.Args, func(a ir.Place) bool { return a.Name == name })
			if i >= 0 && (!ir.SameLayout(p.Type, forward.Results[i]) || returned(ret, name) > 1) {
				as := g.fresh(name + ".k")
				after = append(after, stmt(fn.Pos, ir.OpReshard, as, p.Type.Clone(), nil, name))
				ret.Args = append(ret.Args, ir.Place{Name: as})
				i = -1
			} else if i < 0 {
				ret.Args = append(ret.Args, ir.Place{Name: name})
			}
			if i < 0 {
				forward.Results = append(forward.Results, p.Type.Clone())
				i = len(forward.Results) - 1
			}
			t = Take{OfOutput, i}
		}
		backward.Params = append(backward.Params, p)
		parts.Takes = append(parts.Takes, t)
	}
	sp.extra = forward.Results[g.results:]
	forward.Body = &ir.Block{Stmts: slices.Concat(sp.forward, after, []*ir.Stmt{ret})}
	var again []*ir.Stmt
	for _, s := range sp.forward {
		if sp.all || sp.again[s] {
			again = append(again, s)
		}
	}
	backward.Body = &ir.Block{Stmts: slices.Concat(again, sp.backward, []*ir.Stmt{end})}
	parts.Forward, parts.Backward = sp.text(forward), sp.text(backward)
	return parts
}

// returned returns the number of times that a return statement returns the value called name.
func returned(ret *ir.Stmt, name string) (n int) {
	for _, a := range ret.Args {
		if a.Name == name {
			n++
		}
	}
	return n
}

// text returns the text of the program in which fn replaces the function.
func (sp *splitter) text(fn *ir.Func) string {
	p := sp.info.Prog.Clone()
	p.Funcs, p.Order = []*ir.Func{fn}, nil
	for _, d := range p.Dims {
		p.Order = append(p.Order, d)
	}
	for _, m := range p.Meshes {
		p.Order = append(p.Order, m)
	}
	p.Order = append(p.Order, fn)
	return p.String()
}

// mentioned is an iterator: it calls see for the name of each tensor that occurs in a statement or in its blocks.
func mentioned(s *ir.Stmt, see func(string)) {
	expr := func(e *ir.Expr) {
		if e == nil {
			return
		}
		e.Walk(func(e *ir.Expr) {
			if e.Kind == ir.ExprExtent {
				see(e.Name)
			}
		})
	}
	place := func(p *ir.Place) {
		if p != nil && p.Name != "" {
			see(p.Name)
		}
		if p != nil {
			expr(p.Index)
		}
	}
	for i := range s.Args {
		place(&s.Args[i])
	}
	place(s.Into)
	for _, e := range s.Exprs {
		expr(e)
	}
	expr(s.Count)
	if s.Peer != nil {
		expr(s.Peer.Index)
	}
	for _, a := range s.Attrs {
		for _, e := range a.Exprs {
			expr(e)
		}
	}
	if s.Type != nil {
		for _, d := range s.Type.Dims {
			expr(d.Extent)
		}
	}
	for _, b := range []*ir.Block{s.Body, s.Else} {
		if b == nil {
			continue
		}
		for _, inner := range b.Stmts {
			mentioned(inner, see)
		}
	}
}
