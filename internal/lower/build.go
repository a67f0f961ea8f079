package lower

import "hocket.example/hocket/ir"

// This file builds statements. Each built statement has the source position of the statement that it implements. An
// error that is found in a later pass then still refers to the user's text.

// value returns the statement "%name: t = op %args attrs".
func value(pos ir.Pos, name string, t *ir.Type, op ir.Op, attrs []ir.Attr, args ...string) *ir.Stmt {
	s := result(pos, name, op, attrs, args...)
	s.Type = t
	return s
}

// result returns the statement "%name = op %args attrs".
func result(pos ir.Pos, name string, op ir.Op, attrs []ir.Attr, args ...string) *ir.Stmt {
	return &ir.Stmt{Op: op, Pos: pos, Results: []ir.Name{{Pos: pos, Text: name}}, Attrs: attrs, Args: places(pos, args)}
}

// into returns the statement "op %arg into %dst attrs".
func into(pos ir.Pos, op ir.Op, arg, dst string, attrs ...ir.Attr) *ir.Stmt {
	return &ir.Stmt{Op: op, Pos: pos, Args: places(pos, []string{arg}), Into: &ir.Place{Pos: pos, Name: dst}, Attrs: attrs}
}

// transferStmt returns "send %arg to world[peer]" or "recv %arg from world[peer]".
func transferStmt(pos ir.Pos, op ir.Op, arg string, peer int64) *ir.Stmt {
	return &ir.Stmt{Op: op, Pos: pos, Args: places(pos, []string{arg}),
		Peer: &ir.Peer{Pos: pos, Axis: ir.WorldAxis, Index: ir.Int(peer)}}
}

// chunk returns the statement "%name = chunk %arg, axis=axis, index of count".
func chunk(pos ir.Pos, name, arg string, axis int, index, count *ir.Expr) *ir.Stmt {
	s := result(pos, name, ir.OpChunk, []ir.Attr{ir.ExprAttr("axis", ir.Int(int64(axis)))}, arg)
	s.Exprs = []*ir.Expr{index, count}
	return s
}

// alloc returns the statement "%name = alloc t".
func alloc(pos ir.Pos, name string, t *ir.Type) *ir.Stmt {
	return value(pos, name, t, ir.OpAlloc, nil)
}

// onRank returns the statement "if rank(world) == r { stmts }".
func onRank(pos ir.Pos, r int64, stmts ...*ir.Stmt) *ir.Stmt {
	return &ir.Stmt{Op: ir.OpIf, Pos: pos, Cmp: ir.EQ,
		Exprs: []*ir.Expr{ir.Rank(ir.WorldAxis), ir.Int(r)},
		Body:  &ir.Block{Stmts: stmts, End: pos}}
}

// group returns the statement "group { stmts }", or the statement alone if stmts has only one.
func group(pos ir.Pos, stmts []*ir.Stmt) []*ir.Stmt {
	if len(stmts) <= 1 {
		return stmts
	}
	return []*ir.Stmt{{Op: ir.OpGroup, Pos: pos, Body: &ir.Block{Stmts: stmts, End: pos}}}
}

func places(pos ir.Pos, args []string) []ir.Place {
	out := make([]ir.Place, len(args))
	for i, a := range args {
		out[i] = ir.Place{Pos: pos, Name: a}
	}
	return out
}

// leadOf moves the comments above the statement s to the statement first. The statement first replaces s or is inserted
// before s.
func leadOf(s, first *ir.Stmt) {
	if s == first {
		return
	}
	c := &s.Comments
	first.Comments.Lead, first.Comments.Blank, first.Comments.Gap = c.Lead, c.Blank, c.Gap
	c.Lead, c.Blank, c.Gap = nil, false, false
}
