package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// clean removes each reshard to the layout that its operand already has; such a reshard would become a copy. Reshards
// whose results are not used remain, because some programs are written to measure the time of a reshard.
func clean(u *unit) error {
	for _, f := range u.prog.Funcs {
		c := &cleaner{unit: u, aside: map[string]bool{}, was: map[string]string{}, dense: map[string]bool{}}
		for _, p := range f.Params {
			c.dense[p.Name] = true
		}
		c.look(f.Body, true)
		c.block(f.Body)
	}
	return nil
}

// cleaner holds the state for one function.
type cleaner struct {
	*unit
	// aside holds the values that must not be replaced. aside contains the values that are defined or used on a stream
	// other than main, because the replacement would have to live longer, and the returned values, because their names
	// are visible to the caller.
	aside map[string]bool
	// dense holds the values that are certain to have no gaps in memory.
	dense map[string]bool
	// was is a map from the result of each removed reshard to the operand that replaces it.
	was map[string]string
}

// look adds values in b to aside. onMain says whether the current stream of b is main.
func (c *cleaner) look(b *ir.Block, onMain bool) {
	if b == nil {
		return
	}
	for _, s := range b.Stmts {
		if !onMain || s.Op == ir.OpReturn {
			alone := *s
			alone.Body, alone.Else = nil, nil
			mentions(&alone, func(name string) { c.aside[name] = true })
			for _, r := range s.Results {
				c.aside[r.Text] = true
			}
		}
		inside := onMain && s.Op != ir.OpOn && s.Streams == 0
		c.look(s.Body, inside)
		c.look(s.Else, inside)
	}
}

// block removes the needless reshards from b and makes the users of each result use the reshard's operand.
func (c *cleaner) block(b *ir.Block) {
	if b == nil {
		return
	}
	gone := map[*ir.Stmt]bool{}
	for _, s := range b.Stmts {
		c.redirect(s)
		c.block(s.Body)
		c.block(s.Else)
		if !pure(s) {
			continue
		}
		name := s.Results[0].Text
		if gone[s] = c.needless(s); gone[s] {
			c.was[name] = s.Args[0].Name
		} else {
			c.dense[name] = s.Op.Info().Class != ir.ClassView || s.Op == ir.OpReshape && c.dense[s.Args[0].Name]
		}
	}
	takeOut(b, gone)
}

// needless reports whether s is a reshard whose users can use its operand instead. A reshard that removes gaps, for
// example the gaps of a transposed value, is needed.
func (c *cleaner) needless(s *ir.Stmt) bool {
	return s.Op == ir.OpReshard && !c.aside[s.Results[0].Text] && c.dense[s.Args[0].Name] &&
		ir.SameLayout(c.info.Operands[s][0].Type, c.info.Results[s][0].Type)
}

// redirect replaces the operands of s that are results of removed reshards.
func (c *cleaner) redirect(s *ir.Stmt) {
	for i := range s.Args {
		if to, ok := c.was[s.Args[i].Name]; ok {
			s.Args[i].Name = to
		}
	}
	exprsOf(s, func(e *ir.Expr) {
		if to, ok := c.was[e.Name]; ok && e.Kind == ir.ExprExtent {
			e.Name = to
		}
	})
}

// takeOut removes the statements in the set gone from b. The comments above a removed statement move to the next
// statement.
func takeOut(b *ir.Block, gone map[*ir.Stmt]bool) {
	for i, s := range b.Stmts[:max(len(b.Stmts)-1, 0)] {
		if above, next := &s.Comments, &b.Stmts[i+1].Comments; gone[s] {
			next.Lead, next.Blank = append(above.Lead, next.Lead...), next.Blank || above.Blank
		}
	}
	b.Stmts = slices.DeleteFunc(b.Stmts, func(s *ir.Stmt) bool { return gone[s] })
}
