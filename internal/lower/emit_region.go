package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// emitter builds the statements that replace a region.
type emitter struct {
	*overlapper
	finder *pairFinder
	*region
	out []*ir.Stmt
	// whole maps values to the local tensors from which pieces are cut. The values are the operands that are needed
	// by rows and defined outside the region, and the results that are used outside it.
	whole map[string]string
	// claims holds the statements that bind the results' names to their buffers.
	claims []*ir.Stmt
	// rest has the same meaning as whole, for the operations that follow a reduction.
	rest map[string]string
	// myNumber is the name of this rank's number in the team; it is empty until the number is first needed.
	myNumber string
	// told reports that the comments of the operations have been emitted. They are emitted only once.
	told bool
	// buffer is the gathered tensor if blocks are put into it directly, and otherwise empty.
	buffer string
	// entered is the exchange that replaces the pair, or nil if the strategy is not exchange.
	entered *exchanged
}

func (e *emitter) add(stmts ...*ir.Stmt) { e.out = append(e.out, stmts...) }

// named returns a new name that is derived from the name of the collective's result.
func (e *emitter) named(suffix string) string { return e.names.fresh(e.Value, suffix) }

// local emits "%x.l = local %x" and returns the name of the result.
func (e *emitter) local(value string) string {
	name := e.names.fresh(value, "l")
	e.add(result(e.Pos, name, ir.OpLocal, nil, value))
	return name
}

// final returns the statement that defines the final result of a reduction's region: the last operation that follows
// the collective, or the collective if no operation follows it.
func (e *emitter) final() *ir.Stmt {
	if n := len(e.post); n > 0 {
		return e.post[n-1]
	}
	return e.comm
}

// claim returns the statement that binds the name of s's result to the buffer buf.
func (e *emitter) claim(s *ir.Stmt, buf string) *ir.Stmt {
	return value(s.Pos, s.Results[0].Text, e.finder.typeOf(s).Clone(), ir.OpClaim, nil, buf)
}

// results returns the statements of the region whose values are used outside it, in text order.
func (e *emitter) results() []*ir.Stmt {
	var out []*ir.Stmt
	for _, s := range append([]*ir.Stmt{e.comm}, e.body...) {
		if slices.ContainsFunc(e.finder.users[s.Results[0].Text], func(u *ir.Stmt) bool { return !e.in[u] }) {
			out = append(out, s)
		}
	}
	return out
}

// open emits the local tensors of the operands that are needed by rows and defined outside the region, and the buffers
// of a gather's results. It calls view for each tensor; view returns the name of the view from which pieces are cut.
func (e *emitter) open(view func(name string, t *ir.Type) string) {
	e.whole = e.operands(e.body, view)
	e.rest = e.operands(e.post, e.same)
	if !e.gathers() {
		return
	}
	for _, s := range e.results() {
		if s == e.comm && e.buffer != "" {
			e.claims = append(e.claims, e.claim(s, e.buffer))
			continue
		}
		t := e.finder.typeOf(s)
		buf := e.names.fresh(s.Results[0].Text, "b")
		e.add(alloc(e.Pos, buf, plain(t)))
		e.whole[s.Results[0].Text] = view(buf, t)
		e.claims = append(e.claims, e.claim(s, buf))
	}
}

// operands emits the local tensors of the operands of stmts that are needed by rows and defined outside the region. It
// returns a map from the names of the operands to the names of their views.
func (e *emitter) operands(stmts []*ir.Stmt, view func(name string, t *ir.Type) string) map[string]string {
	out := map[string]string{}
	for _, s := range stmts {
		byRow, _, _ := e.finder.operandsOf(s, e.Rows, e.across)
		for i := range s.Args {
			name := s.Args[i].Name
			if d := e.finder.def[name]; !slices.Contains(byRow, name) || out[name] != "" || d != nil && e.in[d] {
				continue
			}
			out[name] = view(e.local(name), e.info.Operands[s][i].Type)
		}
	}
	return out
}

func (e *emitter) same(name string, _ *ir.Type) string { return name }

// byBlocks returns a view of name, a local tensor of a value of type t. In the view, the dimension of the rows is split
// into two dimensions: the index of the block, and the row within the block.
func (e *emitter) byBlocks(name string, t *ir.Type) string {
	if !e.blocked {
		return name
	}
	view := e.names.fresh(name, "r")
	rows := t.LocalType().Dims[e.Rows].Extent
	e.add(reshape(e.Pos, view, name, e.blockShape(t, ir.FloorDiv(rows, sizeOfAxes(e.Axes)))))
	return view
}

// blockShape returns the local extents of t, with the dimension of the rows divided into blocks that have the given
// number of rows.
func (e *emitter) blockShape(t *ir.Type, rows *ir.Expr) []*ir.Expr {
	var out []*ir.Expr
	for i, d := range t.LocalType().Dims {
		if i == e.Rows {
			out = append(out, sizeOfAxes(e.Axes), rows)
		} else {
			out = append(out, d.Extent)
		}
	}
	return out
}

// part describes the piece of the region's operands and results that one iteration computes.
type part struct {
	*emitter
	// axis is the dimension of the whole tensors along which pieces are cut; index and count select the piece. If index
	// and count are nil, a piece is the whole tensor.
	axis         int
	index, count *ir.Expr
	// sub, if not nil, selects the part of a piece that is computed.
	sub   *sub
	at    map[string]string // maps a value to the name of its piece
	cut   map[cutting]string
	stmts []*ir.Stmt
}

// cutting is the map key of a piece: a value and the dimension along which it is cut.
type cutting struct {
	value string
	axis  int
}

func (e *emitter) part(axis int, index, count *ir.Expr, s *sub) *part {
	return &part{emitter: e, axis: axis, index: index, count: count, sub: s, at: map[string]string{},
		cut: map[cutting]string{}}
}

// sub selects the part with the given index of every piece, which is cut into count parts.
type sub struct{ index, count *ir.Expr }

func (p *part) put(stmts ...*ir.Stmt) { p.stmts = append(p.stmts, stmts...) }

// of returns the name of this piece of a value. If the piece was computed or gathered before, its name is returned.
// Otherwise the piece is cut along axis from the value's tensor in whole. If the value has no tensor in whole, the
// operation needs all of it, and of returns the name of the value.
func (p *part) of(value string, axis int, whole map[string]string) string {
	if name, ok := p.at[value]; ok {
		return name
	}
	tensor, ok := whole[value]
	if !ok {
		return value
	}
	key := cutting{value, axis}
	if p.cut[key] == "" {
		p.cut[key] = p.piece(value, "i", tensor, axis)
	}
	return p.cut[key]
}

// operand returns the name of this piece of the i-th operand of s.
func (p *part) operand(s *ir.Stmt, i int, whole map[string]string) string {
	axis, dims, resultDims := p.axis, len(p.info.Operands[s][i].Type.Dims), len(p.finder.typeOf(s).Dims)
	role := operandRole(s, i, p.Rows, dims, resultDims)
	if p.across {
		axis, role = acrossAxis(s, i, p.Rows, dims, resultDims)
	}
	if role == entire { // the whole operand is needed, even if another operation needs the same value by rows
		return s.Args[i].Name
	}
	return p.of(s.Args[i].Name, axis, whole)
}

// piece returns the name of this piece, cut along axis, of the local tensor called whole. The name is derived from
// value.
func (p *part) piece(value, suffix, whole string, axis int) string {
	cut := func(index, count *ir.Expr) {
		name := p.names.fresh(value, suffix)
		p.put(chunk(p.Pos, name, whole, axis, index, count))
		whole = name
	}
	if p.index != nil {
		cut(p.index, p.count)
	}
	if p.sub != nil {
		cut(p.sub.index, p.sub.count)
	}
	return whole
}

// body emits the region's operations on this piece. If last is not empty, the result of the last operation is written
// to the buffer last.
func (p *part) body(last string) {
	p.run(p.region.body, p.whole, last, p.told)
	p.told = true
}

// follow emits the operations that follow the reduction. The operations are applied to %sum, which is this piece of the
// reduction's result, and write their result to last.
func (p *part) follow(sum, last string) {
	p.at[p.Value] = sum
	p.run(p.post, p.rest, last, false)
}

// run emits operations on this piece. The argument told says that the comments of the operations have already been
// emitted.
func (p *part) run(stmts []*ir.Stmt, whole map[string]string, last string, told bool) {
	for i, s := range stmts {
		c := s.Clone()
		if told {
			c.Comments = ir.Comments{}
		}
		for k := range c.Args {
			c.Args[k].Name = p.operand(s, k, whole)
		}
		if i == len(stmts)-1 {
			p.target(c, s.Results[0].Text, whole, last)
		} else {
			p.target(c, s.Results[0].Text, whole, "")
		}
		p.put(c)
	}
}

// target selects the buffer to which c writes its result: the buffer last, a piece of a tensor in the map whole, or a
// new buffer.
func (p *part) target(c *ir.Stmt, value string, whole map[string]string, last string) {
	c.Type, c.Results = nil, nil
	switch {
	case last != "":
		c.Into = &ir.Place{Pos: c.Pos, Name: last}
	case whole[value] != "":
		c.Into = &ir.Place{Pos: c.Pos, Name: p.of(value, p.axis, whole)}
	default:
		name := p.names.fresh(value, "i")
		c.Results = []ir.Name{{Pos: c.Pos, Text: name}}
		switch dt := p.finder.typeOf(p.finder.def[value]).DType; { // the operands do not determine all types
		case c.Op == ir.OpCast, c.Op == ir.OpQuantize && dt != ir.F8E4M3:
			c.Type = p.typeLike(value, c.Args[0].Name)
		case scaled(c) && dt != ir.BF16:
			c.Type = p.typeLike(value, c.Args[0].Name)
			c.Type.Dims[len(c.Type.Dims)-1].Extent = ir.Extent(c.Args[1].Name, 0)
		}
		p.at[value] = name
	}
}

// typeLike returns a local type with the extents of this piece's %arg and the element type of %value.
func (p *part) typeLike(value, arg string) *ir.Type {
	t := p.finder.typeOf(p.finder.def[value])
	dims := len(t.Dims)
	if p.axis != p.Rows {
		dims++
	}
	out := &ir.Type{DType: t.DType}
	for i := range dims {
		out.Dims = append(out.Dims, ir.Dimension{Extent: ir.Extent(arg, int64(i))})
	}
	return out
}
