package lower

import "hocket.example/hocket/ir"

// This file emits the statements of the strategy chunked. The chunks are computed one after the other on main, and the
// collectives run on a separate stream. For a gather, the separate stream waits for main once before the loop, and main
// waits in each iteration for the chunks that were gathered so far. For a reduction, main waits for the separate stream
// once after the loop.

// axisOfPieces returns the dimension of the whole tensors along which pieces are cut.
func (e *emitter) axisOfPieces() int {
	if e.blocked {
		return e.Rows + 1
	}
	return e.Rows
}

// collective returns the statement of the region's collective that reads arg and writes dst.
func (e *emitter) collective(arg, dst string) *ir.Stmt {
	s := e.comm.Clone()
	s.Comments = ir.Comments{}
	s.Results, s.Type, s.Args[0].Name = nil, nil, arg
	s.Into = &ir.Place{Pos: s.Pos, Name: dst}
	return s
}

// chunkedGather emits a loop that gathers one chunk after the other and computes with each chunk as soon as it is
// gathered.
func (e *emitter) chunkedGather(count *ir.Expr) {
	shard := e.local(e.comm.Args[0].Name)
	stream := e.named("s")
	e.add(declare(e.Pos, ir.OpStream, stream, nil))
	e.open(e.byBlocks)

	index := e.named("i")
	p := e.part(e.axisOfPieces(), ir.Var(index), count, nil)
	p.put(e.gatherChunk(p, shard, stream)...)
	p.put(waitStream(e.Pos, stream))
	p.keepGathered()
	p.body("")
	e.add(on(e.Pos, stream, waitMain(e.Pos)), loop(e.Pos, index, ir.Int(0), count, p.stmts...))
	e.add(e.claims...)
}

// gatherChunk returns the statements that gather one chunk of the shard into a separate buffer.
func (e *emitter) gatherChunk(p *part, shard, stream string) []*ir.Stmt {
	mine, all := e.names.fresh(e.comm.Args[0].Name, "i"), e.named("c")
	rows := ir.Extent(mine, int64(e.Rows))
	total := rows
	if e.blocked {
		total = ir.Mul(sizeOfAxes(e.Axes), rows)
	}
	var comm []*ir.Stmt
	from := mine
	if e.Rows > 0 { // a slice of an inner dimension has gaps in memory
		from = e.names.fresh(e.comm.Args[0].Name, "d")
		comm = append(comm, result(e.Pos, from, ir.OpCopy, nil, mine))
	}
	comm = append(comm, e.collective(from, all))
	out := []*ir.Stmt{
		chunk(e.Pos, mine, shard, e.Rows, p.index, p.count),
		alloc(e.Pos, all, withRows(e.To, e.Rows, total)),
		on(e.Pos, stream, comm...),
	}
	p.at[e.Value] = all
	if e.blocked {
		view := e.names.fresh(all, "r")
		out = append(out, reshape(e.Pos, view, all, e.blockShape(e.To, rows)))
		p.at[e.Value] = view
	}
	return out
}

// keepGathered emits a copy of this gathered piece to its position in the whole gathered tensor. The copy is emitted
// only if statements outside the region use the whole tensor.
func (p *part) keepGathered() {
	whole := p.whole[p.Value]
	if whole == "" {
		return
	}
	p.put(into(p.Pos, ir.OpCopy, p.at[p.Value], p.piece(p.Value, "w", whole, p.axis)))
}

// chunkedReduce emits a loop that computes one chunk after the other and reduces each chunk as soon as it is computed.
// The operations of the region that use the result of the reduction run on the stream of the collectives.
func (e *emitter) chunkedReduce(count *ir.Expr) {
	last := e.final()
	stream, buf := e.named("s"), e.names.fresh(last.Results[0].Text, "b")
	e.add(declare(e.Pos, ir.OpStream, stream, nil), alloc(e.Pos, buf, plain(e.finder.typeOf(last))))
	e.open(e.byBlocks)

	index := e.named("i")
	p := e.part(e.axisOfPieces(), ir.Var(index), count, nil)
	dst := e.names.fresh(buf, "i")
	p.put(chunk(e.Pos, dst, buf, e.Rows, p.index, p.count))
	product := e.product(p, dst)
	comm := e.part(e.Rows, p.index, p.count, nil)
	comm.put(waitMain(e.Pos))
	comm.reduceInto(product, dst)
	p.put(on(e.Pos, stream, comm.stmts...))
	e.add(loop(e.Pos, index, ir.Int(0), count, p.stmts...), waitStream(e.Pos, stream), e.claim(last, buf))
}

// inPlace reports whether a chunk's partial sum can be computed in the memory of the final result, so that it needs no
// extra buffer. inPlace returns false if the chunks are cut along an inner dimension, because they then have gaps.
// inPlace also returns false if operations follow the reduction, because the final result may then have another type.
func (e *emitter) inPlace() bool { return e.Comm == ir.OpAllReduce && e.Rows == 0 && len(e.post) == 0 }

// product emits the computation of this piece of the reduction's operand and returns the name of the piece.
func (e *emitter) product(p *part, dst string) string {
	if e.inPlace() && !e.blocked {
		p.body(dst)
		return dst
	}
	if !e.blocked {
		p.body("")
		return p.at[e.comm.Args[0].Name]
	}
	product := e.named("c")
	rows := ir.Extent(dst, int64(e.Rows))
	view := e.names.fresh(product, "r")
	p.put(alloc(e.Pos, product, withRows(e.From, e.Rows, ir.Mul(sizeOfAxes(e.Axes), rows))),
		reshape(e.Pos, view, product, e.blockShape(e.From, rows)))
	p.body(view)
	return product
}

// reduceInto emits the reduction of %product into %dst. If operations follow the reduction, their result is written to
// %dst instead. If the pieces are cut along an inner dimension, they have gaps, so they are first reduced in another
// buffer.
func (p *part) reduceInto(product, dst string) {
	if p.Rows == 0 && len(p.post) == 0 {
		p.put(p.collective(product, dst))
		return
	}
	dense := p.named("d")
	s := p.collective(product, "")
	s.Into, s.Results = nil, []ir.Name{{Pos: s.Pos, Text: dense}}
	p.put(s)
	if len(p.post) == 0 {
		p.put(into(p.Pos, ir.OpCopy, dense, dst))
		return
	}
	p.follow(dense, dst)
}
