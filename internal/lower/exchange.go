package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file contains the common part of the strategy exchange for gathers and reductions. Each rank puts blocks
// directly into its peers' buffers and signals the peers. Each rank visits the peers in an order that starts after
// itself, so that no two ranks send to the same peer at the same time.
//
// A put must be ordered after the peer's last use of the written bytes, including its use in the previous run (S13).
// Each pair has separate buffers. A rank may therefore put as soon as it has received a signal that the peer sent after
// its last use. Every exchange waits for signals from all ranks. Therefore one exchange can order the puts of another;
// we say that it serves the other. Two exchanges of a function serve each other: the first serves the second in the
// same run, and the second serves the first in the next run. Two exchanges do not serve each other if one begins before
// the other ends (see ahead.go). Likewise, the second round of an all-reduce serves the first round, and one iteration
// of a loop serves the next. If blocks are put into the result itself, the last use of the result may be anywhere
// later, even in the caller, so only an earlier exchange of the same run serves it. An exchange that no other exchange
// serves uses credits: when the main stream of a rank reaches the exchange, the rank signals its peers that they may
// write.

// exchanged is a pair that was lowered with the strategy exchange.
type exchanged struct {
	axes []string
	// rounds is the number of times that each rank waits for a signal from every other rank in one run of the pair.
	rounds int
	when   when
	keeps  bool // blocks are put into the result itself
	// credits holds the statements that send and await credits. The credits are removed if another exchange serves this
	// one.
	credits []*ir.Stmt
	// first and last are the first and the last statement of the exchange.
	first, last *ir.Stmt
	departs     *departure // nil if the exchange does not send whole blocks at its start
	ahead       bool       // the strategy asks to send the blocks ahead
	behind      *exchanged // the exchange after whose blocks this one's blocks are sent ahead; nil if they are not sent ahead
	// choice and entry are the indices of the exchange's decision in the list of choices and in the log.
	choice, entry int
}

// served reports whether other exchanges order the puts of x after the peers' last use, independently of how often each
// runs. An exchange that begins after x ends, or ends before x begins, orders them. An exchange that overlaps x does
// not order them, but its credits do if x's blocks are sent after its blocks. The map at holds the position of each
// statement.
func (x *exchanged) served(all []*exchanged, at map[*ir.Stmt]int) bool {
	if y := x.behind; y != nil && !y.served(all, at) {
		return true
	}
	return !x.keeps && (x.rounds > 1 || x.when.times > 1) || slices.ContainsFunc(all, func(y *exchanged) bool {
		return y != x && y.when.times > 0 && (!x.keeps && at[y.first] > at[x.last] || at[y.last] < at[x.first]) &&
			!slices.ContainsFunc(x.axes, func(a string) bool { return !slices.Contains(y.axes, a) })
	})
}

// takeCredits removes unneeded credits, the signals by which peers are permitted to write, from b and its nested
// blocks.
func takeCredits(b *ir.Block, all []*exchanged) {
	at := map[*ir.Stmt]int{}
	b.Walk(func(s *ir.Stmt) { at[s] = len(at) })
	gone := map[*ir.Stmt]bool{}
	for _, x := range all {
		if x.served(all, at) {
			for _, s := range x.credits {
				gone[s] = true
			}
		}
	}
	if len(gone) > 0 {
		takeOutDeep(b, gone)
	}
}

func takeOutDeep(b *ir.Block, gone map[*ir.Stmt]bool) {
	if b == nil {
		return
	}
	b.Stmts = slices.DeleteFunc(b.Stmts, func(s *ir.Stmt) bool { return gone[s] })
	for _, s := range b.Stmts {
		takeOutDeep(s.Body, gone)
		takeOutDeep(s.Else, gone)
	}
}

// enter emits the credits of the pair and adds the pair to the function's exchanges. The puts run on %stream.
func (e *emitter) enter(stream string, rounds int) {
	x := &exchanged{axes: e.Axes, rounds: rounds, when: e.finder.when}
	e.exchanges = append(e.exchanges, x)
	free, f := e.named("free"), e.named("f")
	x.credits = []*ir.Stmt{
		declare(e.Pos, ir.OpCounter, free, e.ranks()),
		loop(e.Pos, f, ir.Int(0), e.ranks(), e.unlessMe(ir.Var(f), signal(e.Pos, free, e.me(), e.peer(ir.Var(f))))),
		on(e.Pos, stream, e.awaitPeersBy(e.named("f"), free, ir.Int(1))),
	}
	e.add(x.credits...)
	e.entered = x
}

// The ranks that execute a collective together form a team. Each member has the number of the block that it holds. The
// first axis is major in this number.

func (e *emitter) ranks() *ir.Expr { return sizeOfAxes(e.Axes) }

// me returns this rank's number in the team. If the number is not simply a coordinate, a let statement gives it a name.
func (e *emitter) me() *ir.Expr {
	n := number(e.Axes, e.Axes, ir.Rank)
	if len(e.Axes) == 1 {
		return n
	}
	if e.myNumber == "" {
		e.myNumber = e.named("me")
		e.add(let(e.Pos, e.myNumber, n))
	}
	return ir.Var(e.myNumber)
}

// peer returns the address of the rank with number index in the team: a coordinate along the axis if the team has one
// axis, or a rank of the world if it has several.
func (e *emitter) peer(index *ir.Expr) *ir.Peer {
	if len(e.Axes) == 1 {
		return &ir.Peer{Pos: e.Pos, Axis: e.Axes[0], Index: index}
	}
	coords := map[string]*ir.Expr{}
	spread(index, e.Axes, e.Axes, coords)
	world := index
	if !slices.Equal(e.mesh, e.Axes) {
		world = number(e.mesh, e.mesh, func(a string) *ir.Expr {
			if c := coords[a]; c != nil {
				return c
			}
			return ir.Rank(a)
		})
	}
	return &ir.Peer{Pos: e.Pos, Axis: ir.WorldAxis, Index: world}
}

// after returns the number of the rank that is i places after this rank in the team, modulo the size of the team.
func (e *emitter) after(i *ir.Expr) *ir.Expr { return ir.Mod(ir.Add(e.me(), i), e.ranks()) }
func (e *emitter) before(i *ir.Expr) *ir.Expr {
	return ir.Mod(ir.Sub(ir.Add(e.me(), e.ranks()), i), e.ranks())
}

// unlessMe returns "if index != my number { stmts }".
func (e *emitter) unlessMe(index *ir.Expr, stmts ...*ir.Stmt) *ir.Stmt {
	return unless(e.Pos, index, e.me(), stmts...)
}

// slots returns the type of a buffer that has one slot of type t for each rank of the team.
func (e *emitter) slots(t *ir.Type) *ir.Type {
	u := plain(t)
	u.Dims = append([]ir.Dimension{{Extent: e.ranks()}}, u.Dims...)
	return u
}

// sending is one put: the name of the block, and the name of the buffer on the peer.
type sending struct{ block, to string }

// push returns a loop that puts blocks into the buffers of every peer and then signals %here on the peer. The loop
// begins with the rank before this one, because that rank needs the blocks next.
func (e *emitter) push(here string, list ...sending) *ir.Stmt {
	i, d := e.named("i"), e.named("d")
	stmts := []*ir.Stmt{let(e.Pos, d, e.before(ir.Var(i)))}
	for _, s := range list {
		stmts = append(stmts, put(e.Pos, s.block, s.to, e.peer(ir.Var(d))))
	}
	return loop(e.Pos, i, ir.Int(1), e.ranks(), append(stmts, signal(e.Pos, here, e.me(), e.peer(ir.Var(d))))...)
}

// awaitPeers returns a loop that waits until every peer has raised its element of %counter to count.
func (e *emitter) awaitPeers(counter string, count *ir.Expr) *ir.Stmt {
	return e.awaitPeersBy(e.named("k"), counter, count)
}

// awaitPeersBy is the same as awaitPeers, with %k as the name of the loop variable.
func (e *emitter) awaitPeersBy(k, counter string, count *ir.Expr) *ir.Stmt {
	return loop(e.Pos, k, ir.Int(0), e.ranks(), e.unlessMe(ir.Var(k), waitFor(e.Pos, counter, ir.Var(k), count)))
}

// byParts emits the rounds of an exchange. If parts is 1, there is one round with whole blocks. Otherwise each block is
// cut into parts, and a loop executes one round for each part. The counts that a round waits for include the signals of
// all earlier rounds.
func (e *emitter) byParts(parts int64, round func(sub *sub) []*ir.Stmt) {
	if parts <= 1 {
		e.add(round(nil)...)
		return
	}
	p := e.named("p")
	e.add(loop(e.Pos, p, ir.Int(0), ir.Int(parts), round(&sub{ir.Var(p), ir.Int(parts)})...))
}

// raised returns the value, in this round, of a counter that a peer raises once in each round.
func (s *sub) raised() *ir.Expr {
	if s == nil {
		return ir.Int(1)
	}
	return ir.Add(s.index, ir.Int(1))
}

// most returns the number of rows in the largest part of a block that has the given number of rows.
func (s *sub) most(rows *ir.Expr) *ir.Expr {
	if s == nil {
		return rows
	}
	return ir.Bin(ir.ExprCeilDiv, rows, s.count)
}
