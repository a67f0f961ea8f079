package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// when describes how many times a block runs during one run of its function, and on which ranks.
type when struct {
	// times is the minimum number of times that the block runs: 0, 1, or 2 for two or more. times is 0 in a branch and
	// in a loop that may have no iterations.
	times int
	// someRanks reports that the block is in a branch that not all ranks take.
	someRanks bool
}

var always = when{times: 1}

// differing returns the names that let statements of f define and whose values may differ between ranks.
func differing(f *ir.Func) map[string]bool {
	out := map[string]bool{}
	f.Body.Walk(func(s *ir.Stmt) {
		if s.Op == ir.OpLet && s.Exprs[0].RankDependent(func(name string) bool { return out[name] }) {
			out[s.Results[0].Text] = true
		}
	})
	return out
}

// inside returns how often the blocks of s run, and on which ranks, if the loop or branch s itself runs as at
// describes.
func (o *overlapper) inside(s *ir.Stmt, at when) when {
	if s.Op == ir.OpFor {
		if lo, hi := s.Exprs[0], s.Exprs[1]; lo.Kind == ir.ExprInt && hi.Kind == ir.ExprInt {
			at.times *= int(min(max(hi.Val-lo.Val, 0), 2))
		} else {
			at.times = 0
		}
		return at
	}
	at.times = 0
	at.someRanks = at.someRanks || slices.ContainsFunc(s.Exprs, func(e *ir.Expr) bool {
		return e.RankDependent(func(name string) bool { return o.differs[name] })
	})
	return at
}
