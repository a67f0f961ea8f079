package ir

// parts says what a statement of one operation has; -1: any number.
type parts struct {
	results, exprs  int
	body, typ, peer bool
}

var partsOf = map[Op]parts{
	OpChunk: {results: -1, exprs: 2}, OpSlice: {results: -1, exprs: 2}, OpReduceSlots: {exprs: 2},
	OpAlloc: {results: 1, typ: true}, OpStream: {results: 1}, OpEvent: {results: 1}, OpCounter: {results: 1},
	OpLet: {results: 1, exprs: 1}, OpFree: {}, OpRecord: {}, OpWait: {exprs: -1}, OpBarrier: {},
	OpSignal: {peer: true}, OpPut: {peer: true}, OpGet: {peer: true}, OpSend: {peer: true}, OpRecv: {peer: true},
	OpOn: {body: true}, OpGroup: {body: true}, OpFor: {results: -1, exprs: 2, body: true}, OpYield: {}, OpIf: {exprs: 2, body: true},
	OpCall: {results: -1}, OpReturn: {}, OpLaunch: {exprs: -1},
}

// checkParts reports whether s has the parts of its operation.
func (c *checker) checkParts(s *Stmt) bool {
	want, listed := partsOf[s.Op]
	if !listed {
		want.results = -1
	}
	before := c.failed
	lacks := func(bad bool, what string) {
		if bad {
			c.errorf("structure", s.Pos, "this %s has the wrong %s", s.Op, what).help(s.Op.String() + ": " + s.Op.Info().Doc)
		}
	}
	lacks(want.results >= 0 && len(s.Results) != want.results || want.results < 0 && len(s.Results) > 1 && s.Op != OpCall && s.Op != OpFor, "number of results")
	lacks(s.Op == OpFor && (len(s.Results) != 1+len(s.Carry) || len(s.Args) != len(s.Carry)) || s.Op != OpFor && len(s.Carry) > 0, "number of results")
	lacks(want.exprs >= 0 && len(s.Exprs) != want.exprs || len(s.Exprs) > 2 && s.Op != OpLaunch, "number of expressions")
	lacks((s.Op == OpLaunch) != (s.Launch != nil) || s.Launch != nil && !wholeLaunch(s), "arguments")
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
