package trips

import (
	"slices"
	"strconv"

	"hocket.example/hocket/ir"
)

// This file walks the text of a function and determines in which ways the long loops use their variables.

// viewOf records the position of a view within a buffer.
type viewOf struct {
	root   string
	chain  map[int64]string // for each axis: text of the views that have divided the axis so far
	cut    bool             // set if the variable of a loop that is too long to unroll selects the part; further views lie within this part
	gone   []int64          // axes of the root that statements select removed, in increasing order
	opaque bool             // set if the dimensions no longer correspond to those of the root
}

// axis returns the axis of the root buffer that corresponds to axis d of the view.
func (v *viewOf) axis(d int64) int64 {
	for _, g := range v.gone {
		if g <= d {
			d++
		}
	}
	return d
}

// partOf is the map key of a way to divide a buffer: along an axis or, if the field along is "[]", into the elements of
// an array.
type partOf struct{ root, along string }

// part is one use of a divided buffer: block f of count blocks.
type part struct {
	count string
	f     form
}

func (a *trips) block(b *ir.Block) {
	if b == nil {
		return
	}
	for _, s := range b.Stmts {
		if a.reason != "" {
			return
		}
		a.stmt(s)
	}
}

func (a *trips) stmt(s *ir.Stmt) {
	for _, sym := range a.bound.Info.Results[s] {
		if sym != nil && sym.Type != nil {
			a.shapes[sym.Name] = sym.Type
		}
	}
	switch s.Op {
	case ir.OpFor:
		a.loop(s)
		return
	case ir.OpIf:
		a.branch(s)
	case ir.OpLet:
		a.names[s.Results[0].Text] = a.formOf(s.Exprs[0])
		return
	case ir.OpCall:
		a.fail("line %d: the proof of long loops does not support calls", s.Pos.Line)
	case ir.OpStream, ir.OpEvent, ir.OpCounter, ir.OpAlloc:
		a.declare(s)
	case ir.OpChunk, ir.OpSelect, ir.OpSlice, ir.OpTranspose, ir.OpReshape, ir.OpLocal, ir.OpClaim:
		a.view(s)
	case ir.OpWait:
		for _, e := range s.Exprs {
			if f := a.formOf(e); f.bad != "" || len(f.knobs) > 0 || f.loopCoef() < 0 {
				a.fail("line %d: the value of the wait is not an affine function of the loop's variable", s.Pos.Line)
			}
		}
	}
	a.places(s)
	a.attrs(s)
	a.block(s.Body)
	a.block(s.Else)
}

// fixed checks that an expression is independent of the variables of long loops, or repeats with the iterations.
func (a *trips) fixed(s *ir.Stmt, e *ir.Expr, what string) {
	if e == nil {
		return
	}
	if f := a.formOf(e); !f.plain() {
		a.fail("line %d: %s %s does not repeat after a fixed number of iterations", s.Pos.Line, what, e)
	}
}

func (a *trips) loop(s *ir.Stmt) {
	lo, hi := a.formOf(s.Exprs[0]), a.formOf(s.Exprs[1])
	if k := a.literals[s]; k != nil {
		hi = form{knobs: map[string]int64{k.name(): 1}}
	}
	name := s.Results[0].Text
	switch {
	case !lo.plain() || hi.bad != "" || len(hi.loops) > 0:
		a.fail("line %d: the loop's bounds depend on the variable of an enclosing long loop", s.Pos.Line)
	case len(hi.knobs) == 0:
		a.names[name] = form{small: true}
	case !hi.knobOnly() || hi.knobCoef() != 1 || lo.small:
		a.fail("line %d: the trip count is not a dim plus a constant", s.Pos.Line)
	case len(s.Carry) > 0:
		a.fail("line %d: the proof of long loops does not support carried values", s.Pos.Line)
	default:
		a.near(hi.k)
		a.near(lo.k)
		a.names[name] = form{loops: map[*ir.Stmt]int64{s: 1}}
		a.long[s.Pos] = true
	}
	if s.Streams > 0 && len(hi.knobs) > 0 {
		a.period(s.Streams)
	}
	a.block(s.Body)
}

// branch checks the condition of an if. The condition must repeat with the iterations, or change its value only near
// the ends of a loop.
func (a *trips) branch(s *ir.Stmt) {
	f := a.formOf(s.Exprs[0]).plus(a.formOf(s.Exprs[1]), -1)
	if f.plain() {
		return
	}
	c, k := f.loopCoef(), f.knobCoef()
	ok := f.bad == "" && !f.small && len(f.loops) <= 1 && len(f.knobs) <= 1
	switch {
	case ok && len(f.knobs) == 0 && (c == 1 || c == -1), ok && len(f.loops) == 0 && (k == 1 || k == -1), ok && c*k == -1:
		a.near(f.k)
	default:
		a.fail("line %d: the condition neither repeats after a fixed number of iterations nor is limited to iterations near an end of the loop", s.Pos.Line)
	}
}

func (a *trips) declare(s *ir.Stmt) {
	name := s.Results[0].Text
	a.kinds[name] = s.Op
	if s.Op == ir.OpAlloc {
		a.types[name] = s.Type
	}
	if s.Count == nil {
		return
	}
	f := a.formOf(s.Count)
	if s.Op == ir.OpStream && !f.plain() {
		a.fail("line %d: the number of streams grows with the loop", s.Pos.Line)
	}
	if f.bad != "" || len(f.loops) > 0 || len(f.knobs) > 0 && !f.knobOnly() {
		a.fail("line %d: the number of elements is not a dim plus a constant", s.Pos.Line)
	}
}

// places checks the indices of operands and the peers of transfers.
func (a *trips) places(s *ir.Stmt) {
	look := func(p *ir.Place) {
		if p == nil || p.Index == nil {
			return
		}
		if a.kinds[p.Name] == ir.OpStream {
			a.fixed(s, p.Index, "the stream's index")
			return
		}
		a.use(s, partOf{p.Name, "[]"}, part{"[]", a.formOf(p.Index)})
	}
	for i := range s.Args {
		look(&s.Args[i])
	}
	look(s.Into)
	if s.Peer != nil {
		a.fixed(s, s.Peer.Index, "the peer")
	}
}

func (a *trips) attrs(s *ir.Stmt) {
	for i := range s.Attrs {
		at := &s.Attrs[i]
		switch at.Name {
		case "value", "by", "ctas", "sms", "index": // attributes whose values are not indices of blocks; the index of select is handled as a view
			continue
		}
		for _, e := range at.Exprs {
			if f := a.formOf(e); len(f.loops) > 0 {
				a.fail("line %d: %s= depends on the variable of a loop that is too long to unroll", s.Pos.Line, at.Name)
			}
		}
	}
}

// view records how a view divides its buffer.
func (a *trips) view(s *ir.Stmt) {
	base := a.viewOf(s.Args[0].Name)
	v := &viewOf{root: base.root, chain: map[int64]string{}, cut: base.cut, gone: base.gone, opaque: base.opaque}
	for k, c := range base.chain {
		v.chain[k] = c
	}
	if len(s.Results) > 0 {
		a.views[s.Results[0].Text] = v
	}
	switch s.Op {
	case ir.OpLocal, ir.OpClaim:
		return
	case ir.OpTranspose, ir.OpReshape:
		v.opaque = true
		if !base.cut {
			a.opaque[base.root] = true
		}
		return
	}
	axis := base.axis(a.axis(s))
	f, count := a.formOf(exprOf(s)), s.Op.String()
	switch s.Op {
	case ir.OpChunk:
		count = "chunk of " + s.Exprs[1].String()
		if c := a.formOf(s.Exprs[1]); c.bad != "" || len(c.loops) > 0 {
			a.fail("line %d: the number of blocks depends on the loop", s.Pos.Line)
		}
	case ir.OpSelect:
		v.gone = append(slices.Clone(base.gone), axis)
		slices.Sort(v.gone)
	case ir.OpSlice:
		if g := a.formOf(s.Exprs[1]); !f.plain() || !g.plain() {
			a.fail("line %d: the slice depends on the variable of a loop that is too long to unroll: write it as a chunk", s.Pos.Line)
		}
		f = form{small: true}
	}
	if base.cut {
		return // within one iteration's part
	}
	if base.opaque {
		a.opaque[base.root] = true
		if !f.plain() {
			a.fail("line %d: the block depends on the variable of a loop that is too long to unroll, and belongs to a view with other dimensions", s.Pos.Line)
		}
		return
	}
	whole := base.chain[axis] + "/" + count
	v.chain[axis] = whole + " " + exprOf(s).String()
	v.cut = len(f.loops) > 0
	a.use(s, partOf{base.root, strconv.FormatInt(axis, 10)}, part{whole, f})
	if v.cut {
		a.grow(base.root, axis)
	}
}

// exprOf returns the expression that selects a view's block.
func exprOf(s *ir.Stmt) *ir.Expr {
	if s.Op == ir.OpSelect {
		return s.Attr("index").Exprs[0]
	}
	return s.Exprs[0]
}

func (a *trips) axis(s *ir.Stmt) int64 {
	at := s.Attr("axis")
	if at == nil || len(at.Exprs) == 0 {
		return 0
	}
	f := a.formOf(at.Exprs[0])
	if !f.exact() {
		a.fail("line %d: the axis is not constant", s.Pos.Line)
	}
	return f.k
}

func (a *trips) viewOf(name string) *viewOf {
	if v := a.views[name]; v != nil {
		return v
	}
	return &viewOf{root: name}
}

// grow records the dims that determine the extent of a divided axis. These dims are enlarged with the trip counts, so
// that the axis has rows for every block.
func (a *trips) grow(root string, axis int64) {
	t := a.types[root]
	if t == nil || axis < 0 || int(axis) >= len(t.Dims) {
		return
	}
	var names []string
	t.Dims[axis].Extent.Walk(func(e *ir.Expr) {
		if e.Kind == ir.ExprName && !a.knobDims[e.Name] {
			names = append(names, e.Name)
		}
	})
	if len(names) > 0 && !slices.ContainsFunc(names, func(n string) bool { return a.scale[n] }) {
		a.scale[names[0]] = true
	}
}

// use records that a statement uses a part of a buffer or array.
func (a *trips) use(s *ir.Stmt, at partOf, p part) {
	switch {
	case p.f.bad != "":
		a.fail("line %d: %s", s.Pos.Line, p.f.bad)
	case len(p.f.loops) > 0 && (!p.f.oneLoop() || p.f.loopCoef() != 1 || len(p.f.knobs) > 0):
		a.fail("line %d: the index is not the loop's variable plus a constant", s.Pos.Line)
	case len(p.f.loops) == 0 && len(p.f.knobs) > 0 && (!p.f.knobOnly() || p.f.knobCoef() != 1):
		a.fail("line %d: the index is not the trip count plus a constant", s.Pos.Line)
	}
	a.parts[at] = append(a.parts[at], p)
}

// settle checks that a part whose index depends on a loop does not overlap with parts of a buffer that is also divided
// in another way.
func (a *trips) settle() {
	for at, ps := range a.parts {
		moves := false
		for _, p := range ps {
			moves = moves || len(p.f.loops) > 0
		}
		if !moves {
			for _, p := range ps {
				if len(p.f.knobs) > 0 {
					a.near(p.f.k)
				}
			}
			continue
		}
		if a.opaque[at.root] && at.along != "[]" {
			a.fail("%%%s is divided into blocks by a long loop, and also used with other dimensions", at.root)
		}
		for _, p := range ps {
			switch {
			case p.count != ps[0].count:
				a.fail("%%%s is divided into blocks in two different ways, and one of them depends on the variable of a loop that is too long to unroll", at.root)
			case p.f.small:
				a.fail("%%%s is divided into blocks both by a long loop and by an index that repeats", at.root)
			}
			a.near(p.f.k)
		}
	}
}
