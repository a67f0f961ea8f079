package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// when says how surely a block runs when its function does.
type when uint8

const (
	always when = iota
	// sometimes: in a loop, which may be empty, or a branch that all ranks take
	// alike.
	sometimes
	// someRanks: in a branch that not all ranks take.
	someRanks
)

// differing returns the lets of f whose values may differ between ranks.
func differing(f *ir.Func) map[string]bool {
	out := map[string]bool{}
	f.Body.Walk(func(s *ir.Stmt) {
		if s.Op == ir.OpLet && s.Exprs[0].RankDependent(func(name string) bool { return out[name] }) {
			out[s.Results[0].Text] = true
		}
	})
	return out
}

// branches says when the blocks of a loop or branch run that itself runs at.
func (o *overlapper) branches(s *ir.Stmt, at when) when {
	if s.Op == ir.OpIf && slices.ContainsFunc(s.Exprs, func(e *ir.Expr) bool {
		return e.RankDependent(func(name string) bool { return o.differs[name] })
	}) {
		return someRanks
	}
	return max(at, sometimes)
}
