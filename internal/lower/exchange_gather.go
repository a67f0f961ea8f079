package lower

import "hocket.example/hocket/ir"

// exchangeGather pushes the own shard to every peer, computes with it, and then
// with the peers' in the order in which they come. With several parts it does
// so with a part of each shard at a time; all parts are on their way at once.
func (e *emitter) exchangeGather(parts int64) {
	shard := e.local(e.comm.Args[0].Name)
	g := &gatherRound{emitter: e, shard: shard, stream: e.named("s"), here: e.named("here")}
	e.add(declare(e.Pos, ir.OpStream, g.stream, nil), declare(e.Pos, ir.OpCounter, g.here, e.ranks()))
	e.open(e.same)
	e.enter(g.stream, 1)
	if parts > 1 {
		e.add(on(e.Pos, g.stream, waitMain(e.Pos)))
	}
	e.byParts(parts, g.round)
	e.add(waitStream(e.Pos, g.stream))
	e.add(e.claims...)
}

// gatherRound writes the rounds of one gather.
type gatherRound struct {
	*emitter
	shard, stream, here string
	stmts               []*ir.Stmt
}

func (g *gatherRound) put(stmts ...*ir.Stmt) { g.stmts = append(g.stmts, stmts...) }

func (g *gatherRound) round(s *sub) []*ir.Stmt {
	all, to := g.named("all"), g.named("to")
	mine, block := g.shard, plain(g.From)
	var first []*ir.Stmt // on the stream
	if s == nil {
		first = append(first, waitMain(g.Pos))
	} else {
		mine = g.names.fresh(g.comm.Args[0].Name, "i")
		g.put(chunk(g.Pos, mine, g.shard, g.Rows, s.index, s.count))
		block = withRows(g.From, g.Rows, ir.Extent(mine, int64(g.Rows)))
	}
	sent := mine
	if s != nil && g.Rows > 0 { // rows of an inner dimension are not dense
		sent = g.names.fresh(g.comm.Args[0].Name, "d")
		first = append(first, result(g.Pos, sent, ir.OpCopy, nil, mine))
	}
	g.put(symmetric(g.Pos, all, g.slots(block)),
		on(g.Pos, g.stream, append(first, selectFirst(g.Pos, to, all, g.me()), g.push(sent, to, g.here))...))

	own := g.part(g.Rows, g.me(), g.ranks(), s)
	own.at[g.Value] = mine
	own.keepGathered()
	own.body("")
	g.put(own.stmts...)

	i, j, theirs := g.named("i"), g.named("j"), g.named("c")
	p := g.part(g.Rows, ir.Var(j), g.ranks(), s)
	p.put(let(g.Pos, j, g.after(ir.Var(i))), selectFirst(g.Pos, theirs, all, ir.Var(j)), waitFor(g.Pos, g.here, ir.Var(j), s.raised()))
	p.at[g.Value] = theirs
	p.keepGathered()
	p.body("")
	g.put(loop(g.Pos, i, ir.Int(1), g.ranks(), p.stmts...))
	return g.stmts
}
