package ir

// This file checks what the parser warrants and a program made from Go may
// lack, so that everything behind it may rely on a statement's parts.

// checkHeads checks the parts of declarations.
func (c *checker) checkHeads() {
	for _, m := range c.p.Meshes {
		if len(m.Axes) == 0 {
			c.errorf("structure", m.Pos, "a mesh has no axis").help("mesh tp[4]")
		}
		for _, ax := range m.Axes {
			c.wholeExpr(ax.Pos, ax.Size)
		}
	}
	for _, f := range c.list {
		if f.Body == nil {
			c.errorf("structure", f.Pos, "function %s has no body", f.Name)
		}
		for _, p := range f.Params {
			c.wholeType(p.Pos, p.Type)
		}
		for _, t := range f.Results {
			c.wholeType(f.Pos, t)
		}
	}
}

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

func (c *checker) wholeType(pos Pos, t *Type) {
	if t == nil {
		c.errorf("structure", pos, "a type is missing")
		return
	}
	if t.DType == InvalidDType || t.DType >= numDTypes {
		c.errorf("structure", t.Pos, "a type has no element type").help("f32, f16, bf16, f64, i32, i64, f8e4m3 or f8e5m2")
	}
	for _, d := range t.Dims {
		c.wholeExpr(t.Pos, d.Extent)
	}
}

// wholeExpr reports an expression with missing operands.
func (c *checker) wholeExpr(pos Pos, e *Expr) bool {
	if e == nil {
		c.errorf("structure", pos, "an expression is missing")
		return false
	}
	want := 0
	if e.Kind >= ExprAdd {
		want = 2
	}
	if len(e.Args) != want || e.Kind > ExprMax {
		c.errorf("structure", pos, "an expression has the wrong number of operands")
		return false
	}
	for _, a := range e.Args {
		if !c.wholeExpr(pos, a) {
			return false
		}
	}
	return true
}
