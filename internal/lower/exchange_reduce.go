package lower

import "hocket.example/hocket/ir"

// exchangeReduce emits the exchange for a reduction. Each rank computes the peers' blocks first and puts each block
// into its owner's buffer while the next block is computed. A rank computes its own block last. The owner of a block
// sums the blocks that arrived, in the order of ranks, and computes the operations that follow the reduction. For an
// all-reduce, the owner then puts the result into the buffers of all ranks.
//
// If blocks are cut into parts, one part is summed and put while the next part is computed. If only the rank's own
// block is cut, fewer GEMMs are small, and only the sum and put of the last part do not overlap with a GEMM.
func (e *emitter) exchangeReduce(st Strategy) {
	parts := max(st.Chunks, st.Own)
	last := e.final()
	r := &reduceRound{emitter: e, stream: e.named("s"), here: e.named("here"),
		buf: e.names.fresh(last.Results[0].Text, "b"), ragged: st.Ragged}
	e.add(declare(e.Pos, ir.OpStream, r.stream, nil))
	if parts > 1 {
		r.sums = e.named("r")
		e.add(declare(e.Pos, ir.OpStream, r.sums, nil))
	}
	e.add(declare(e.Pos, ir.OpCounter, r.here, e.ranks()))
	buf, rounds := alloc(e.Pos, r.buf, plain(e.finder.typeOf(last))), 1
	if e.Comm == ir.OpAllReduce {
		r.done = e.named("done")
		e.add(declare(e.Pos, ir.OpCounter, r.done, e.ranks()))
		buf.Flags, rounds = ir.Symmetric, 2
	}
	e.add(buf)
	e.open(e.same)
	e.enter(r.stream, rounds)
	if st.Own > 1 {
		e.add(r.ownInParts(ir.Int(st.Own))...)
	} else {
		e.byParts(parts, r.round)
	}
	if r.done != "" {
		e.add(e.awaitPeers(r.done, ir.Int(max(parts, 1))))
	}
	if r.sums != "" {
		e.add(waitStream(e.Pos, r.sums))
	}
	e.add(waitStream(e.Pos, r.stream), e.claim(last, r.buf))
}

// reduceRound builds the statements of the rounds of one reduction. The field stream names the stream on which blocks
// are put into the peers' buffers. The field sums names the stream on which sums are computed; it is empty if they are
// computed on main. The field here names the counter of the blocks that have arrived, and the field done names the
// counter of the results of an all-reduce that have arrived. The field share names this rank's block of the
// all-reduce's result.
type reduceRound struct {
	*emitter
	stream, sums, here, done, buf, share string
	ragged                               bool
	stmts                                []*ir.Stmt
}

func (r *reduceRound) put(stmts ...*ir.Stmt) { r.stmts = append(r.stmts, stmts...) }

func (r *reduceRound) round(s *sub) []*ir.Stmt {
	if r.ragged {
		slots := r.named("slots")
		r.put(symmetric(r.Pos, slots, r.slots(withRows(r.To, r.Rows, s.most(r.mostRows())))))
		r.peers(s, slots)
		return append(r.stmts, r.forBlock(r.me(), func(me *ir.Expr) {
			target, block := r.target(me, s)
			r.own(me, s, r.trimmed(slots, r.Rows+1, target), target, block, s.raised())
		})...)
	}
	target, block := r.target(r.me(), s)
	slots := r.named("slots")
	r.put(symmetric(r.Pos, slots, r.slots(block)))
	r.peers(s, slots)
	r.own(r.me(), s, slots, target, block, s.raised())
	return r.stmts
}

// ownInParts returns one round that computes the peers' whole blocks, and a loop that computes this rank's block in
// count parts.
func (r *reduceRound) ownInParts(count *ir.Expr) []*ir.Stmt {
	slots := r.named("slots")
	r.put(symmetric(r.Pos, slots, r.slots(r.block())))
	r.peers(nil, slots)
	s := &sub{ir.Var(r.named("q")), count}
	return append(r.stmts, r.forBlock(r.me(), func(me *ir.Expr) {
		parts := r.named("slots")
		target, block := r.target(me, s)
		whole := slots
		if r.ragged {
			whole = r.trimmed(slots, r.Rows+1, r.share)
		}
		r.put(chunk(r.Pos, parts, whole, r.Rows+1, s.index, s.count))
		r.own(me, s, parts, target, block, ir.Int(1))
		r.stmts = []*ir.Stmt{loop(r.Pos, s.index.Name, ir.Int(0), count, r.stmts...)}
	})...)
}

// forBlock returns the statements that the function write emits for the block of the rank with number n. If blocks are
// ragged, the statements are in a loop over all numbers with a condition that executes them for n only. The loop is
// needed because an extent may depend on a loop variable but not on the rank.
func (r *reduceRound) forBlock(n *ir.Expr, write func(n *ir.Expr)) []*ir.Stmt {
	before := r.stmts
	defer func() { r.stmts = before }()
	r.stmts = nil
	if !r.ragged {
		write(n)
		return r.stmts
	}
	e := r.named("e")
	write(ir.Var(e))
	return []*ir.Stmt{loop(r.Pos, e, ir.Int(0), r.ranks(), where(r.Pos, ir.Var(e), n, r.stmts...))}
}

// trimmed returns the name of a view of %slots that has, in dimension axis, the same number of rows as %block.
func (r *reduceRound) trimmed(slots string, axis int, block string) string {
	name := r.names.fresh(slots, "r")
	r.put(firstRows(r.Pos, name, slots, axis, ir.Extent(block, int64(r.Rows))))
	return name
}

// peers emits the computation of the peers' blocks, or of the part s of each block, and puts each result into this
// rank's slot on the peer.
func (r *reduceRound) peers(s *sub, slots string) {
	i, d, to := r.named("i"), r.named("d"), r.named("to")
	block := r.forBlock(ir.Var(d), func(d *ir.Expr) {
		p := r.part(r.Rows, d, r.ranks(), s)
		product := r.product(p)
		outer := r.stmts
		r.stmts = []*ir.Stmt{waitMain(r.Pos), selectFirst(r.Pos, to, slots, r.me())}
		slot := to
		if r.ragged {
			slot = r.trimmed(to, r.Rows, product)
		}
		r.put(put(r.Pos, product, slot, r.peer(d)), signal(r.Pos, r.here, r.me(), r.peer(d)))
		r.stmts = append(outer, append(p.stmts, on(r.Pos, r.stream, r.stmts...))...)
	})
	r.put(loop(r.Pos, i, ir.Int(1), r.ranks(), append([]*ir.Stmt{let(r.Pos, d, r.after(ir.Var(i)))}, block...)...))
}

// own emits the computation of this rank's block, or of the part s of the block. The sum and the operations that follow
// it run after as many puts as the argument come says have arrived from each peer. The argument me is the number of
// this rank.
func (r *reduceRound) own(me *ir.Expr, s *sub, slots, target string, block *ir.Type, come *ir.Expr) {
	mine := r.named("own")
	own := r.part(r.Rows, me, r.ranks(), s)
	own.put(selectFirst(r.Pos, mine, slots, r.me()))
	own.body(mine)
	r.put(own.stmts...)
	r.finish(r.sum(me, s, slots, block, target, come), target)
}

// product emits the computation of a peer's block, or of a part of the block, and returns the name of the result. For
// an all-reduce, the result is computed in the memory into which the peer will put the sum. Writing there is safe
// because the peer puts the sum only after it has received this block.
func (r *reduceRound) product(p *part) string {
	if r.inPlace() {
		block := p.piece(r.Value, "p", r.buf, r.Rows)
		p.body(block)
		return block
	}
	p.body("")
	return p.at[r.comm.Args[0].Name]
}

// block returns the type of one rank's block.
func (r *reduceRound) block() *ir.Type {
	if r.Comm == ir.OpAllReduce {
		return withRows(r.To, r.Rows, r.mostRows())
	}
	return plain(r.To)
}

// mostRows returns the number of rows in the largest block of an all-reduce.
func (r *reduceRound) mostRows() *ir.Expr {
	rows := r.To.LocalType().Dims[r.Rows].Extent
	if r.ragged {
		return ir.Bin(ir.ExprCeilDiv, rows, r.ranks())
	}
	return ir.FloorDiv(rows, r.ranks())
}

// target returns the name of the buffer for the result of this rank's block, or of the part s of it, and the type of
// one slot. me is the rank's number.
func (r *reduceRound) target(me *ir.Expr, s *sub) (string, *ir.Type) {
	name, block := r.buf, r.block()
	if r.Comm == ir.OpAllReduce {
		name = r.named("share")
		r.share = name
		r.put(chunk(r.Pos, name, r.buf, r.Rows, me, r.ranks()))
	}
	if s != nil {
		whole := name
		name = r.names.fresh(r.buf, "i")
		r.put(chunk(r.Pos, name, whole, r.Rows, s.index, s.count))
	}
	if s != nil || r.ragged {
		block = withRows(r.To, r.Rows, ir.Extent(name, int64(r.Rows)))
	}
	return name, block
}

// sum returns the statements that wait until count puts have arrived from each peer, and then sum the slots into
// %target.
func (r *reduceRound) sum(me *ir.Expr, s *sub, slots string, block *ir.Type, target string, count *ir.Expr) []*ir.Stmt {
	come := r.awaitPeers(r.here, count)
	if len(r.post) == 0 {
		return []*ir.Stmt{come, sumSlots(r.Pos, slots, r.ranks(), target)}
	}
	p := r.part(r.Rows, nil, nil, s)
	if r.Comm == ir.OpAllReduce {
		p.index, p.count = me, r.ranks()
	}
	sum := r.named("sum")
	p.put(come, alloc(r.Pos, sum, block), sumSlots(r.Pos, slots, r.ranks(), sum))
	p.follow(sum, target)
	return p.stmts
}

// finish emits the statements in sum. If the region has a separate stream for sums, the statements are emitted on that
// stream. For an all-reduce, finish also emits the puts of the result into the peers' buffers.
func (r *reduceRound) finish(sum []*ir.Stmt, target string) {
	var push []*ir.Stmt
	if r.done != "" {
		push = append(push, r.push(r.done, sending{target, target}))
	}
	switch {
	case r.sums != "":
		r.put(on(r.Pos, r.sums, append(append([]*ir.Stmt{waitMain(r.Pos)}, sum...), push...)...))
	case push != nil:
		r.put(append(sum, on(r.Pos, r.stream, append([]*ir.Stmt{waitMain(r.Pos)}, push...)...))...)
	default:
		r.put(sum...)
	}
}
