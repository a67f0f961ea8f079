package lower

import "hocket.example/hocket/ir"

// useIndex maps each value to the statements of one block that use it, either directly or in nested blocks.
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

// mentions is an iterator: it calls see for every name that s, or a statement in the blocks of s, uses.
func mentions(s *ir.Stmt, see func(string)) {
	for i := range s.Args {
		if p := &s.Args[i]; !p.Main {
			see(p.Name)
		}
	}
	if s.Into != nil {
		see(s.Into.Name)
	}
	exprsOf(s, func(e *ir.Expr) {
		if e.Kind == ir.ExprExtent || e.Kind == ir.ExprVar {
			see(e.Name)
		}
	})
	for _, b := range []*ir.Block{s.Body, s.Else} {
		if b != nil {
			for _, inner := range b.Stmts {
				mentions(inner, see)
			}
		}
	}
}

// exprsOf is an iterator: it calls see for every expression and subexpression of s, except those in the blocks of s.
func exprsOf(s *ir.Stmt, see func(*ir.Expr)) {
	s.EachExpr(func(e **ir.Expr) { (*e).Walk(see) })
}
