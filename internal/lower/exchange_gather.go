package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// exchangeGather emits puts of this rank's shard into the buffers of all peers, the computation with this shard, and
// then the computations with the peers' shards in the order in which they arrive. If each shard is cut into several
// parts, all parts are sent at the beginning, and the program computes first with the first part of every shard, then
// with the second, and so on.
//
// If the whole gathered tensor is also used outside the region, whole blocks are put into it directly. If blocks may be
// sent ahead, or are sent in parts, they are copied to it instead.
func (e *emitter) exchangeGather(st Strategy) {
	parts := st.Chunks
	g := &gatherRound{emitter: e}
	for _, comm := range append([]*ir.Stmt{e.comm}, e.with...) {
		from, to := e.info.Operands[comm][0].Type, e.finder.typeOf(comm)
		g.list = append(g.list, &gathered{comm: comm, from: from, to: to, shard: e.local(comm.Args[0].Name)})
	}
	g.stream, g.here = e.named("s"), e.named("here")
	e.add(declare(e.Pos, ir.OpStream, g.stream, nil), declare(e.Pos, ir.OpCounter, g.here, e.ranks()))
	e.enter(g.stream, 1)
	if parts > 1 {
		e.open(e.same)
		e.add(on(e.Pos, g.stream, waitMain(e.Pos)))
		e.byParts(parts, func(s *sub) []*ir.Stmt { return append(g.send(s), g.compute(s)...) })
	} else {
		e.add(g.send(nil)...)
		d := &departure{leaves: slices.Clip(e.out), puts: e.out[len(e.out)-1]}
		if e.keepsBlocks(st) {
			e.add(g.keep(g.list[0])...)
		}
		e.open(e.same)
		d.compute = g.compute(nil)
		e.add(d.compute...)
		if e.Rows == 0 { // for an inner dimension, consecutive blocks do not form the whole tensor
			d.whole = g.whole
		}
		e.entered.departs = d
	}
	e.add(waitStream(e.Pos, g.stream))
	e.add(e.claims...)
}

// keepsBlocks reports whether an exchange by the strategy st puts blocks into the gathered tensor itself.
func (e *emitter) keepsBlocks(st Strategy) bool {
	return e.Kept && e.Rows == 0 && st.Chunks <= 1 && !st.Ahead
}

// keep returns the statements that make the buffer of x's blocks the gathered tensor: a view in its shape, and the copy
// of this rank's block.
func (g *gatherRound) keep(x *gathered) []*ir.Stmt {
	own := g.fresh(x, "own")
	g.buffer, g.entered.keeps = g.fresh(x, "w"), true
	return []*ir.Stmt{reshape(g.Pos, g.buffer, x.all, extentsOf(x.to.LocalType())), selectFirst(g.Pos, own, x.all, g.me()),
		into(g.Pos, ir.OpCopy, x.shard, own)}
}

// gatherRound builds the statements of the rounds of one gather.
type gatherRound struct {
	*emitter
	stream, here string
	list         []*gathered // the gather of the region is first; gathers of scales follow
}

// gathered describes one gather of a round: the local tensor of its operand (shard), the buffer for all blocks (all),
// and the shard, or the part of it, that this rank sends (mine).
type gathered struct {
	comm             *ir.Stmt
	from, to         *ir.Type
	shard, all, mine string
}

func (g *gatherRound) fresh(x *gathered, suffix string) string {
	return g.names.fresh(x.comm.Results[0].Text, suffix)
}

// send returns the statements that put this rank's shards, or the part s of each shard, into the peers' buffers.
func (g *gatherRound) send(s *sub) []*ir.Stmt {
	var stmts, first []*ir.Stmt // the statements that must be first on the stream
	if s == nil {
		first = append(first, waitMain(g.Pos))
	}
	var list []sending
	for _, x := range g.list {
		to := ""
		x.all, to = g.fresh(x, "all"), g.fresh(x, "to")
		x.mine = x.shard
		block := plain(x.from)
		if s != nil {
			x.mine = g.names.fresh(x.comm.Args[0].Name, "i")
			stmts = append(stmts, chunk(g.Pos, x.mine, x.shard, g.Rows, s.index, s.count))
			block = withRows(x.from, g.Rows, ir.Extent(x.mine, int64(g.Rows)))
		}
		sent := x.mine
		if s != nil && g.Rows > 0 { // a slice of an inner dimension has gaps in memory
			sent = g.names.fresh(x.comm.Args[0].Name, "d")
			first = append(first, result(g.Pos, sent, ir.OpCopy, nil, x.mine))
		}
		first = append(first, selectFirst(g.Pos, to, x.all, g.me()))
		stmts = append(stmts, symmetric(g.Pos, x.all, g.slots(block)))
		list = append(list, sending{sent, to})
	}
	return append(stmts, on(g.Pos, g.stream, append(first, g.push(g.here, list...))...))
}

// compute returns the statements that compute with this rank's block and then with the other blocks.
func (g *gatherRound) compute(s *sub) []*ir.Stmt {
	own := g.part(g.Rows, g.me(), g.ranks(), s)
	for _, x := range g.list {
		own.at[x.comm.Results[0].Text] = x.mine
	}
	own.keepGathered()
	own.body("")

	i, j := g.named("i"), g.named("j")
	p := g.part(g.Rows, ir.Var(j), g.ranks(), s)
	p.put(let(g.Pos, j, g.after(ir.Var(i))))
	for _, x := range g.list {
		theirs := g.fresh(x, "c")
		p.put(selectFirst(g.Pos, theirs, x.all, ir.Var(j)))
		p.at[x.comm.Results[0].Text] = theirs
	}
	p.put(waitFor(g.Pos, g.here, ir.Var(j), s.raised()))
	p.keepGathered()
	p.body("")
	return append(own.stmts, loop(g.Pos, i, ir.Int(1), g.ranks(), p.stmts...))
}

// whole returns the statements of one computation with all blocks. These statements replace the statements that compute
// returns. The statements in side copy this rank's block, on a separate stream and concurrently with the puts, into the
// buffer that receives the other blocks. The separate stream also waits for the other blocks, so main waits only once.
func (g *gatherRound) whole() (side, stmts []*ir.Stmt) {
	stream := g.named("o")
	joins := []*ir.Stmt{waitMain(g.Pos)}
	p := g.part(g.Rows, nil, nil, nil)
	p.put(waitStream(g.Pos, stream))
	for _, x := range g.list {
		mine, all := g.fresh(x, "own"), g.fresh(x, "w")
		joins = append(joins, selectFirst(g.Pos, mine, x.all, g.me()), into(g.Pos, ir.OpCopy, x.shard, mine))
		p.put(reshape(g.Pos, all, x.all, extentsOf(x.to.LocalType())))
		p.at[x.comm.Results[0].Text] = all
	}
	side = []*ir.Stmt{
		declare(g.Pos, ir.OpStream, stream, nil),
		on(g.Pos, stream, append(joins, g.awaitPeers(g.here, ir.Int(1)))...),
	}
	g.told = false
	p.keepGathered()
	p.body("")
	return side, p.stmts
}
