package lower

import "hocket.example/hocket/ir"

// This file overlaps GEMMs with an all_gather of their result. This form of overlap is used if no GEMM after the gather
// uses the gathered result by rows. A rank computes only its own block of the result, so there is no order of blocks to
// choose. The block is computed in parts, and each part is sent while the next part is computed.

// behindParts is the number of parts into which a block is cut if the strategy does not specify the number. With only
// one part, no communication would overlap with a GEMM.
const behindParts = DefaultChunks

// Parts returns the number of parts into which an exchange cuts the computation of a gather's operand.
func (s Strategy) Parts() int64 {
	if n := max(s.Chunks, s.Own); n > 1 {
		return n
	}
	return behindParts
}

// chunkedGatherBehind emits a loop that computes one chunk after the other and gathers each computed chunk on a
// separate stream.
func (e *emitter) chunkedGatherBehind(count *ir.Expr) {
	stream, buf := e.named("s"), e.names.fresh(e.Value, "b")
	e.add(declare(e.Pos, ir.OpStream, stream, nil), alloc(e.Pos, buf, plain(e.To)))
	whole := e.byBlocks(buf, e.To)
	e.open(e.same)

	index := e.named("i")
	p := e.part(e.Rows, ir.Var(index), count, nil)
	p.body("")
	mine := p.at[e.comm.Args[0].Name]
	comm := e.part(e.axisOfPieces(), p.index, p.count, nil)
	comm.put(waitMain(e.Pos))
	dst := e.names.fresh(buf, "i")
	place := chunk(e.Pos, dst, whole, e.axisOfPieces(), p.index, p.count)
	if !e.blocked && e.Rows == 0 {
		comm.put(place, e.collective(mine, dst))
	} else {
		rows := ir.Extent(mine, int64(e.Rows))
		total := rows
		if e.blocked {
			total = ir.Mul(e.ranks(), rows)
		}
		all := e.named("c")
		comm.put(alloc(e.Pos, all, withRows(e.To, e.Rows, total)), e.collective(mine, all), place)
		view := all
		if e.blocked {
			view = e.names.fresh(all, "r")
			comm.put(reshape(e.Pos, view, all, e.blockShape(e.To, rows)))
		}
		comm.put(into(e.Pos, ir.OpCopy, view, dst))
	}
	p.put(on(e.Pos, stream, comm.stmts...))
	e.add(loop(e.Pos, index, ir.Int(0), count, p.stmts...), waitStream(e.Pos, stream), e.claim(e.comm, buf))
}

// exchangeGatherBehind emits the computation of this rank's block in parts, and the put of each part to its position in
// the result of every peer.
func (e *emitter) exchangeGatherBehind(parts int64) {
	stream, here, buf := e.named("s"), e.named("here"), e.names.fresh(e.Value, "b")
	e.add(declare(e.Pos, ir.OpStream, stream, nil), declare(e.Pos, ir.OpCounter, here, e.ranks()), symmetric(e.Pos, buf, plain(e.To)))
	e.open(e.same)
	e.enter(stream, 1)
	e.entered.keeps = true
	own := e.named("own")
	e.add(chunk(e.Pos, own, buf, e.Rows, e.me(), e.ranks()))
	e.byParts(parts, func(s *sub) []*ir.Stmt {
		p := e.part(e.Rows, s.index, s.count, nil)
		mine := p.piece(e.Value, "i", own, e.Rows)
		p.body(mine)
		p.put(on(e.Pos, stream, waitMain(e.Pos), e.push(here, sending{mine, mine})))
		return p.stmts
	})
	e.add(e.awaitPeers(here, ir.Int(parts)), waitStream(e.Pos, stream), e.claim(e.comm, buf))
}
