package lower

import "hocket.example/hocket/ir"

// This file writes the strategy exchange: each rank puts blocks straight into
// its peers' buffers and signals them. The peers are visited in an order that
// starts behind the own rank, so that no two ranks send to one at a time.
//
// A put must come after the peer's last use of those bytes, the run before
// included (S13). Every pair has buffers of its own, so it is enough that
// between the two the peer has sent a signal: to this rank, which has waited
// for it. Every exchange waits for signals from all ranks. So two pairs over an
// axis serve each other, the one before in the same run or the one behind in
// the run before; the second round of an all-reduce serves its first; and a
// pair that has nobody needs a barrier.

// exchanges are the exchanged pairs of a function over one axis.
type exchanges struct {
	// rounds is how often each rank waits for a signal from every other.
	rounds  int
	barrier *ir.Stmt
}

// enter counts the pair, with so many rounds of signals, and writes a barrier
// if it is the first; which is taken out again if it turns out to be needless.
func (e *emitter) enter(rounds int) {
	x := e.exchanges[e.axis()]
	if x == nil {
		x = &exchanges{barrier: barrier(e.Pos, e.axis())}
		e.exchanges[e.axis()] = x
		e.add(x.barrier)
	}
	x.rounds += rounds
}

// needless reports whether s is a barrier in front of exchanges that do without.
func (o *overlapper) needless(s *ir.Stmt) bool {
	for _, x := range o.exchanges {
		if x.barrier == s {
			return x.rounds > 1
		}
	}
	return false
}

func (e *emitter) axis() string                        { return e.Axes[0] }
func (e *emitter) me() *ir.Expr                        { return rankOf(e.axis()) }
func (e *emitter) ranks() *ir.Expr                     { return sizeOf(e.axis()) }
func (e *emitter) same(name string, _ *ir.Type) string { return name }

// after returns the rank i places after mine, before that i places before it.
func (e *emitter) after(i *ir.Expr) *ir.Expr { return ir.Mod(ir.Add(e.me(), i), e.ranks()) }
func (e *emitter) before(i *ir.Expr) *ir.Expr {
	return ir.Mod(ir.Sub(ir.Add(e.me(), e.ranks()), i), e.ranks())
}

// slots returns the type of one buffer for each rank's block t.
func (e *emitter) slots(t *ir.Type) *ir.Type {
	u := plain(t)
	u.Dims = append([]ir.Dimension{{Extent: e.ranks()}}, u.Dims...)
	return u
}

// exchangeGather pushes the own shard to every peer, computes with it, and then
// with the peers' in the order in which they come.
func (e *emitter) exchangeGather() {
	shard := e.local(e.comm.Args[0].Name)
	stream, here, all := e.named("s"), e.named("here"), e.named("all")
	e.add(declare(e.Pos, ir.OpStream, stream, nil), declare(e.Pos, ir.OpCounter, here, e.ranks()),
		symmetric(e.Pos, all, e.slots(e.From)))
	e.open(e.same)
	e.enter(1)
	to := e.named("to")
	e.add(on(e.Pos, stream, waitMain(e.Pos),
		selectFirst(e.Pos, to, all, e.me()),
		e.push(shard, to, here)))

	own := e.part(e.Rows, e.me(), e.ranks())
	own.at[e.Value] = shard
	own.keepGathered()
	own.body("")
	e.add(own.stmts...)

	i, j, block := e.named("i"), e.named("j"), e.named("c")
	p := e.part(e.Rows, ir.Var(j), e.ranks())
	p.put(let(e.Pos, j, e.after(ir.Var(i))), selectFirst(e.Pos, block, all, ir.Var(j)), waitOnce(e.Pos, here, ir.Var(j)))
	p.at[e.Value] = block
	p.keepGathered()
	p.body("")
	e.add(loop(e.Pos, i, ir.Int(1), e.ranks(), p.stmts...), waitStream(e.Pos, stream))
	e.add(e.claims...)
}

// push puts %block into every peer's %to, the rank before this one first: it
// needs the block next. %here tells them.
func (e *emitter) push(block, to, here string) *ir.Stmt {
	i, d := e.named("i"), e.named("d")
	return loop(e.Pos, i, ir.Int(1), e.ranks(),
		let(e.Pos, d, e.before(ir.Var(i))),
		put(e.Pos, block, to, e.axis(), ir.Var(d)),
		signal(e.Pos, here, e.me(), e.axis(), ir.Var(d)))
}

// exchangeReduce computes the peers' blocks first and pushes each to its owner
// while the next is computed; the own block comes last. The owner sums what
// came, in the order of ranks. For an all-reduce it then pushes the sum to all.
func (e *emitter) exchangeReduce() {
	stream, here, slots, buf := e.named("s"), e.named("here"), e.named("slots"), e.named("b")
	e.add(declare(e.Pos, ir.OpStream, stream, nil), declare(e.Pos, ir.OpCounter, here, e.ranks()))
	block := e.To
	if e.Comm == ir.OpAllReduce {
		block = e.shareOf(e.To)
		e.add(symmetric(e.Pos, slots, e.slots(block)), symmetric(e.Pos, buf, plain(e.To)))
	} else {
		e.add(symmetric(e.Pos, slots, e.slots(block)), alloc(e.Pos, buf, plain(e.To)))
	}
	e.open(e.same)
	if e.Comm == ir.OpAllReduce {
		e.enter(2)
	} else {
		e.enter(1)
	}

	i, d, to := e.named("i"), e.named("d"), e.named("to")
	p := e.part(e.Rows, ir.Var(d), e.ranks())
	p.put(let(e.Pos, d, e.after(ir.Var(i))))
	p.body("")
	p.put(on(e.Pos, stream, waitMain(e.Pos), selectFirst(e.Pos, to, slots, e.me()),
		put(e.Pos, p.at[e.comm.Args[0].Name], to, e.axis(), ir.Var(d)),
		signal(e.Pos, here, e.me(), e.axis(), ir.Var(d))))
	e.add(loop(e.Pos, i, ir.Int(1), e.ranks(), p.stmts...))

	mine := e.named("own")
	own := e.part(e.Rows, e.me(), e.ranks())
	own.put(selectFirst(e.Pos, mine, slots, e.me()))
	own.body(mine)
	e.add(own.stmts...)
	e.add(e.awaitPeers(here))
	sum := []ir.Attr{{Name: "axis", Kind: ir.AttrExprs, Exprs: []*ir.Expr{ir.Int(0)}}}
	if e.Comm == ir.OpAllReduce {
		share := e.named("share")
		e.add(chunk(e.Pos, share, buf, e.Rows, e.me(), e.ranks()), into(e.Pos, ir.OpSum, slots, share, sum...))
		e.shareWithAll(share, stream)
	} else {
		e.add(into(e.Pos, ir.OpSum, slots, buf, sum...))
	}
	e.add(waitStream(e.Pos, stream), value(e.Pos, e.Value, e.To.Clone(), ir.OpClaim, nil, buf))
}

// shareWithAll pushes this rank's share of the sum to its place in all others'.
func (e *emitter) shareWithAll(share, stream string) {
	done := e.named("done")
	e.add(declare(e.Pos, ir.OpCounter, done, e.ranks()),
		on(e.Pos, stream, waitMain(e.Pos), e.push(share, share, done)),
		e.awaitPeers(done))
}

// awaitPeers waits until every peer has raised its element of %counter.
func (e *emitter) awaitPeers(counter string) *ir.Stmt {
	k := e.named("k")
	return loop(e.Pos, k, ir.Int(0), e.ranks(), unlessRank(e.Pos, ir.Var(k), e.axis(), waitOnce(e.Pos, counter, ir.Var(k))))
}

// shareOf returns the type of one rank's share of rows of an all-reduced value.
func (e *emitter) shareOf(t *ir.Type) *ir.Type {
	return withRows(t, e.Rows, ir.FloorDiv(t.LocalType().Dims[e.Rows].Extent, e.ranks()))
}
