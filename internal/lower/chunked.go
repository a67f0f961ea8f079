package lower

import "hocket.example/hocket/ir"

// This file writes the strategy chunked. The computation stays on main, in order, so that chunks finish in order; the
// collectives run on a separate stream. The stream of a gather is forked once before the loop, and each round waits
// for what was gathered so far. The stream of a reduction is joined once after the loop.

// axisOfPieces is the dimension of the whole tensors that pieces are cut along.
func (e *emitter) axisOfPieces() int {
	if e.blocked {
		return e.Rows + 1
	}
	return e.Rows
}

// collective returns the region's collective from arg into dst.
func (e *emitter) collective(arg, dst string) *ir.Stmt {
	s := e.comm.Clone()
	s.Comments = ir.Comments{}
	s.Results, s.Type, s.Args[0].Name = nil, nil, arg
	s.Into = &ir.Place{Pos: s.Pos, Name: dst}
	return s
}

// chunkedGather gathers chunk by chunk and computes with each as it comes.
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

// gatherChunk gathers one chunk of the shard into a buffer of its own.
func (e *emitter) gatherChunk(p *part, shard, stream string) []*ir.Stmt {
	mine, all := e.names.fresh(e.comm.Args[0].Name, "i"), e.named("c")
	rows := ir.Extent(mine, int64(e.Rows))
	total := rows
	if e.blocked {
		total = ir.Mul(sizeOfAxes(e.Axes), rows)
	}
	var comm []*ir.Stmt
	from := mine
	if e.Rows > 0 { // rows of an inner dimension are not dense
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

// keepGathered copies this piece of what was gathered to its place in the
// whole, where that is wanted too.
func (p *part) keepGathered() {
	whole := p.whole[p.Value]
	if whole == "" {
		return
	}
	p.put(into(p.Pos, ir.OpCopy, p.at[p.Value], p.piece(p.Value, "w", whole, p.axis)))
}

// chunkedReduce computes chunk by chunk and reduces each as it is made. What is
// computed of the result follows on the stream of the collectives.
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

// inPlace reports whether partial results can be computed where the sum will be, so that they take no extra memory. It
// is false if the rows are of an inner dimension, which are not dense, or if operations follow the sum, whose result
// may have another type.
func (e *emitter) inPlace() bool { return e.Comm == ir.OpAllReduce && e.Rows == 0 && len(e.post) == 0 }

// product computes this piece of what is reduced, and returns its name.
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

// reduceInto reduces %product into %dst, or, where more is computed, leaves that
// there. The rows of an inner dimension are not dense, and reduced elsewhere.
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
