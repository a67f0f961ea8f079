package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// exchangeGather pushes the own shard to every peer, computes with it, and then
// with the peers' in the order in which they come. With several parts it does
// so with a part of each shard at a time; all parts are on their way at once.
func (e *emitter) exchangeGather(parts int64) {
	shard := e.local(e.comm.Args[0].Name)
	g := &gatherRound{emitter: e, shard: shard, stream: e.named("s"), here: e.named("here")}
	e.add(declare(e.Pos, ir.OpStream, g.stream, nil), declare(e.Pos, ir.OpCounter, g.here, e.ranks()))
	e.enter(g.stream, 1)
	if parts > 1 {
		e.open(e.same)
		e.add(on(e.Pos, g.stream, waitMain(e.Pos)))
		e.byParts(parts, func(s *sub) []*ir.Stmt { return append(g.send(s), g.compute(s)...) })
	} else {
		e.add(g.send(nil)...)
		d := &departure{leaves: slices.Clip(e.out), puts: e.out[len(e.out)-1]}
		e.open(e.same)
		d.compute = g.compute(nil)
		e.add(d.compute...)
		if e.Rows == 0 { // else consecutive blocks do not form the whole
			d.whole = g.whole
		}
		e.entered.departs = d
	}
	e.add(waitStream(e.Pos, g.stream))
	e.add(e.claims...)
}

// gatherRound writes the rounds of one gather.
type gatherRound struct {
	*emitter
	shard, stream, here string
	// all names the buffer of all blocks, mine what is computed with first.
	all, mine string
}

// send puts the own shard, or a part of it, into the peers' buffers.
func (g *gatherRound) send(s *sub) []*ir.Stmt {
	var stmts, first []*ir.Stmt // first on the stream
	to := ""
	g.all, to = g.named("all"), g.named("to")
	g.mine = g.shard
	block := plain(g.From)
	if s == nil {
		first = append(first, waitMain(g.Pos))
	} else {
		g.mine = g.names.fresh(g.comm.Args[0].Name, "i")
		stmts = append(stmts, chunk(g.Pos, g.mine, g.shard, g.Rows, s.index, s.count))
		block = withRows(g.From, g.Rows, ir.Extent(g.mine, int64(g.Rows)))
	}
	sent := g.mine
	if s != nil && g.Rows > 0 { // rows of an inner dimension are not dense
		sent = g.names.fresh(g.comm.Args[0].Name, "d")
		first = append(first, result(g.Pos, sent, ir.OpCopy, nil, g.mine))
	}
	first = append(first, selectFirst(g.Pos, to, g.all, g.me()), g.push(sent, to, g.here))
	return append(stmts, symmetric(g.Pos, g.all, g.slots(block)), on(g.Pos, g.stream, first...))
}

// compute writes the computation with the own block, and with the others.
func (g *gatherRound) compute(s *sub) []*ir.Stmt {
	own := g.part(g.Rows, g.me(), g.ranks(), s)
	own.at[g.Value] = g.mine
	own.keepGathered()
	own.body("")

	i, j, theirs := g.named("i"), g.named("j"), g.named("c")
	p := g.part(g.Rows, ir.Var(j), g.ranks(), s)
	p.put(let(g.Pos, j, g.after(ir.Var(i))), selectFirst(g.Pos, theirs, g.all, ir.Var(j)), waitFor(g.Pos, g.here, ir.Var(j), s.raised()))
	p.at[g.Value] = theirs
	p.keepGathered()
	p.body("")
	return append(own.stmts, loop(g.Pos, i, ir.Int(1), g.ranks(), p.stmts...))
}

// whole writes one computation with all blocks, instead of compute. The own block is copied to the others on a
// separate stream, concurrently with the puts. That stream also waits for the other blocks, so main waits only once.
func (g *gatherRound) whole() (side, stmts []*ir.Stmt) {
	stream, mine, all := g.named("o"), g.named("own"), g.named("w")
	side = []*ir.Stmt{
		declare(g.Pos, ir.OpStream, stream, nil),
		on(g.Pos, stream, waitMain(g.Pos), selectFirst(g.Pos, mine, g.all, g.me()),
			into(g.Pos, ir.OpCopy, g.shard, mine), g.awaitPeers(g.here, ir.Int(1))),
	}
	var extents []*ir.Expr
	for _, d := range g.To.LocalType().Dims {
		extents = append(extents, d.Extent)
	}
	g.told = false
	p := g.part(g.Rows, nil, nil, nil)
	p.put(waitStream(g.Pos, stream), reshape(g.Pos, all, g.all, extents))
	p.at[g.Value] = all
	p.keepGathered()
	p.body("")
	return side, p.stmts
}
