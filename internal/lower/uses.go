package lower

import "hocket.example/hocket/ir"

// useIndex says which statements of one block, with what is nested in them,
// name a value.
type useIndex map[string][]*ir.Stmt

func usesIn(b *ir.Block) useIndex {
	ix := useIndex{}
	for _, s := range b.Stmts {
		mentions(s, func(name string) {
			if us := ix[name]; len(us) == 0 || us[len(us)-1] != s {
				ix[name] = append(us, s)
			}
		})
	}
	return ix
}

// mentions calls see with every name that s, or a statement in its blocks, uses.
func mentions(s *ir.Stmt, see func(string)) {
	names := func(e *ir.Expr) {
		e.Walk(func(x *ir.Expr) {
			if x.Kind == ir.ExprExtent || x.Kind == ir.ExprVar {
				see(x.Name)
			}
		})
	}
	place := func(p *ir.Place) {
		if p != nil && !p.Main {
			see(p.Name)
			names(p.Index)
		}
	}
	for i := range s.Args {
		place(&s.Args[i])
	}
	place(s.Into)
	for _, e := range s.Exprs {
		names(e)
	}
	for _, a := range s.Attrs {
		for _, e := range a.Exprs {
			names(e)
		}
	}
	if s.Type != nil {
		for _, d := range s.Type.Dims {
			names(d.Extent)
		}
	}
	names(s.Count)
	if s.Peer != nil {
		names(s.Peer.Index)
	}
	for _, b := range []*ir.Block{s.Body, s.Else} {
		if b != nil {
			for _, inner := range b.Stmts {
				mentions(inner, see)
			}
		}
	}
}
