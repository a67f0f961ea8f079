package checker

import "hocket.example/hocket/ir"

// parts describes the numbers of syntactic parts that a statement of one operation must have; -1 permits any number.
type parts struct {
	results, exprs  int
	body, typ, peer bool
}

var partsOf = map[ir.Op]parts{
	ir.OpChunk: {results: -1, exprs: 2}, ir.OpSlice: {results: -1, exprs: 2}, ir.OpReduceSlots: {exprs: 2},
	ir.OpAlloc: {results: 1, typ: true}, ir.OpStream: {results: 1}, ir.OpEvent: {results: 1},
	ir.OpCounter: {results: 1},
	ir.OpLet:     {results: 1, exprs: 1}, ir.OpFree: {}, ir.OpRecord: {}, ir.OpWait: {exprs: -1}, ir.OpBarrier: {},
	ir.OpSignal: {peer: true}, ir.OpPut: {peer: true}, ir.OpGet: {peer: true}, ir.OpSend: {peer: true},
	ir.OpRecv: {peer: true},
	ir.OpOn:   {body: true}, ir.OpGroup: {body: true}, ir.OpFor: {results: -1, exprs: 2, body: true}, ir.OpYield: {},
	ir.OpIf:   {exprs: 2, body: true},
	ir.OpCall: {results: -1}, ir.OpReturn: {}, ir.OpLaunch: {exprs: -1},
}

// checkParts reports whether s has the parts that its operation requires.
func (c *checker) checkParts(s *ir.Stmt) bool {
	want, listed := partsOf[s.Op]
	if !listed {
		want.results = -1
	}
	before := c.failed
	lacks := func(bad bool, what string) {
		if bad {
			c.errorf("structure", s.Pos, "this %s statement has the wrong %s", s.Op,
				what).help(s.Op.String() + ": " + s.Op.Info().Doc)
		}
	}
	lacks(want.results >= 0 && len(s.Results) != want.results || want.results < 0 && len(s.Results) > 1 &&
		s.Op != ir.OpCall && s.Op != ir.OpFor, "number of results")
	lacks(s.Op == ir.OpFor && (len(s.Results) != 1+len(s.Carry) || len(s.Args) != len(s.Carry)) || s.Op != ir.OpFor &&
		len(s.Carry) > 0, "number of results")
	lacks(want.exprs >= 0 && len(s.Exprs) != want.exprs || len(s.Exprs) > 2 && s.Op != ir.OpLaunch,
		"number of expressions")
	lacks((s.Op == ir.OpLaunch) != (s.Launch != nil) || s.Launch != nil && !ir.WholeLaunch(s), "arguments")
	lacks(want.body && s.Body == nil, "body")
	lacks(want.typ && s.Type == nil, "type")
	lacks(want.peer != (s.Peer != nil), "peer")
	lacks(s.Streams < 0, "number of streams")
	if s.Type != nil {
		c.wholeType(s.Pos, s.Type)
	}
	for _, e := range s.Exprs {
		c.wholeExpr(s.Pos, e)
	}
	if s.Peer != nil {
		c.wholeExpr(s.Peer.Pos, s.Peer.Index)
	}
	return c.failed == before
}
