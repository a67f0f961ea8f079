package nvfuser

import (
	"slices"

	"hocket.example/hocket/ir"
)

// communication is a Communication statement of the dump, together with the bindings of its input and output
// tensor.
type communication struct {
	*comms
	s       *stmt
	in, out *binding
	team    *team
}

// comms translates collectives and transfers of the dump, and the Wait statements that wait for them.
type comms struct {
	memories
	around []*stmt               // the loops around the current statement
	posted map[string]*posted    // maps the printed number of a communication to the communication
	copies map[string][]*ir.Stmt // maps the number of a communication to its copies, if they are CUDA transfers
	idle   []*stmt               // Waits that have no effect
}

// communicate translates a Communication to a collective on the stream of its communicator.
func (t *comms) communicate(s *stmt) {
	c := &communication{comms: t, s: s, team: t.teamOf(s.team)}
	if c.in = t.reading(s.in[0].t); c.in != nil {
		c.out = t.writing(s.out)
	}
	if c.out == nil {
		return
	}
	t.post(s, t.commStream(s.team, s.backend, s.pos), s.team.ranks(), c.translate)
}

func (c *communication) translate() {
	t, s := c.comms, c.s
	switch s.op {
	case "Allgather":
		c.gather(ir.OpAllGather)
	case "Allreduce":
		c.plain(ir.OpAllReduce, c.red())
	case "ReduceScatter":
		c.scatter(ir.OpReduceScatter, c.red())
	case "AllToAll":
		c.allToAll()
	case "Broadcast", "Reduce", "Gather", "Scatter":
		c.rooted()
	case "SendRecv":
		c.sendRecv()
	case "CollectivePermute":
		c.permute()
	default:
		t.errorf(s.pos, "communications of type %s are not supported", brief(s.op)).Help =
			"use Allgather, Allreduce, ReduceScatter, AllToAll, Broadcast, Reduce, Gather, Scatter or SendRecv"
	}
}

func (c *communication) red() ir.Attr { return ir.WordAttr("op", c.s.red.String()) }

// collective emits the operation for the ranks of the communication's team.
func (c *communication) collective(op ir.Op, in, out *binding, attrs ...ir.Attr) {
	attrs = append([]ir.Attr{ir.Over(c.team.axis)}, attrs...)
	for i := range attrs {
		attrs[i].Pos = c.s.pos
	}
	c.emit(&ir.Stmt{Op: op, Pos: c.s.pos, Args: []ir.Place{in.at(c.s.in[0].t.pos)}, Into: ptr(out.at(c.s.out.pos)),
		Attrs: attrs}, c.s.team.ranks())
}

// plain emits a collective whose operand and result have the same shape.
func (c *communication) plain(op ir.Op, attrs ...ir.Attr) {
	if len(c.in.shape) != len(c.out.shape) {
		c.contradiction()
		return
	}
	c.collective(op, c.in, c.out, attrs...)
}

func (c *communication) contradiction() {
	c.errorf(c.s.pos, "the axes of %s and %s do not fit a communication of type %s", c.s.in[0].t.id, c.s.out.id,
		c.s.op).Help = "the dump contradicts itself"
}

// before returns the number of axes of x that precede its device axis and that each rank holds. It returns false if
// x has no device axis.
func before(x *tensor, sharded bool) (int, bool) {
	n := 0
	for _, a := range x.axes {
		switch {
		case a.reduced() || sharded && a.stream():
		case a.device():
			return n, true
		default:
			n++
		}
	}
	return 0, false
}

// spreadHelp is the help text for a communication on a tensor without a device axis. The printed extents of such a
// tensor are those on each device, so the dump does not say how devices share the tensor.
const spreadHelp = "no axis of the tensor is printed as ideviceIdx.x, so the dump does not say which part each " +
	"device holds: " +
	"print the dump with that axis parallelized"

// gather emits an all_gather or gather. The device axis of the operand becomes a separate axis of the result, or
// multiplies the extent of the axis that follows it.
func (c *communication) gather(op ir.Op, attrs ...ir.Attr) {
	at, ok := before(c.s.in[0].t, c.sharded(c.in))
	in := c.in
	switch {
	case !ok:
		c.errorf(c.s.pos, "%s is not split over devices, so there is nothing to gather",
			c.s.in[0].t.id).Help = spreadHelp
		return
	case len(c.out.shape) == len(in.shape)+1 && at <= len(in.shape):
		in = c.withUnit(in, at)
	case len(c.out.shape) != len(in.shape) || at >= len(in.shape):
		c.contradiction()
		return
	}
	c.collective(op, in, c.out, append(attrs, ir.ExprAttr("axis", num(c.s.pos, int64(at))))...)
}

// scatter emits a reduce_scatter or scatter. The device axis of the result is an axis of the operand, or a factor of
// one.
func (c *communication) scatter(op ir.Op, attrs ...ir.Attr) {
	at, ok := before(c.s.out, c.sharded(c.out))
	out := c.out
	switch {
	case !ok:
		c.errorf(c.s.pos, "%s is not split over devices, so there is nothing to scatter", c.s.out.id).Help = spreadHelp
		return
	case len(c.in.shape) == len(out.shape)+1 && at <= len(out.shape):
		out = c.withUnit(out, at)
	case len(c.in.shape) != len(out.shape) || at >= len(out.shape):
		c.contradiction()
		return
	}
	c.collective(op, c.in, out, append(attrs, ir.ExprAttr("axis", num(c.s.pos, int64(at))))...)
}

// sharded reports whether b holds only the part of its tensor for one stream.
func (c *communication) sharded(b *binding) bool {
	return !slices.ContainsFunc(b.axes, func(a axis) bool { return a.stream() })
}

// withUnit defines a view of b with an additional axis of extent 1 at dimension i.
func (c *communication) withUnit(b *binding, i int) *binding {
	v := *b
	v.shape = slices.Insert(slices.Clone(b.shape), i, num(c.s.pos, 1))
	v.name = c.fresh(b.name + "_u")
	c.define(c.blk, &ir.Stmt{Op: ir.OpReshape, Pos: c.s.pos, Results: []ir.Name{{Pos: c.s.pos, Text: v.name}},
		Args:  []ir.Place{b.at(c.s.pos)},
		Attrs: []ir.Attr{ir.ExprsAttr("shape", v.shape...)}})
	return &v
}

// allToAll emits an all_to_all, which changes the sharded axis of a tensor.
func (c *communication) allToAll() {
	from, ok1 := before(c.s.in[0].t, c.sharded(c.in))
	to, ok2 := before(c.s.out, c.sharded(c.out))
	if !ok1 || !ok2 || len(c.in.shape) != len(c.out.shape) || from > len(c.in.shape) || to > len(c.out.shape) ||
		from == to {
		c.contradiction()
		return
	}
	in, out := c.withUnit(c.in, from), c.withUnit(c.out, to)
	// An all_to_all takes and returns tensors that have all axes except their device axis. It cuts the operand
	// along the axis that is the result's device axis, and concatenates the received parts along the axis that is
	// the operand's device axis.
	c.collective(ir.OpAllToAll, in, out,
		ir.ExprAttr("split", num(c.s.pos, int64(to))), ir.ExprAttr("concat", num(c.s.pos, int64(from))))
}

// rooted emits a collective with a root: broadcast, reduce, gather or scatter.
func (c *communication) rooted() {
	if c.s.index == nil {
		c.errorf(c.s.pos, "this %s has no root", c.s.op)
		return
	}
	c.in = c.everywhere(c.in)
	if c.rootApart() {
		c.byTransfers()
		return
	}
	root, ok := c.rootIndex()
	if !ok {
		return
	}
	attr := ir.ExprAttr("root", root)
	switch c.s.op {
	case "Broadcast":
		c.plain(ir.OpBroadcast, attr)
	case "Reduce":
		c.plain(ir.OpReduce, attr, c.red())
	case "Gather":
		c.gather(ir.OpGather, attr)
	default:
		c.scatter(ir.OpScatter, attr)
	}
}

// rootIndex returns the position of the root in the communication's team. The dump prints the root as a device
// number.
func (c *communication) rootIndex() (*ir.Expr, bool) {
	if c.s.index.isInt() {
		i := slices.Index(c.s.team.devices, c.s.index.val)
		if i < 0 {
			c.errorf(c.s.index.pos, "the root %d is not a device of the team (%s)", c.s.index.val,
				joinInts(c.s.team.devices))
		}
		return num(c.s.index.pos, int64(i)), i >= 0
	}
	for i, d := range c.s.team.devices {
		if d != int64(i) {
			c.errorf(c.s.index.pos, "the root is an expression, which is supported only if the team is the "+
				"devices 0, 1, 2, …")
			return nil, false
		}
	}
	return c.expr(c.s.index), true
}

// rootApart reports whether the root of a gather contributes no shard, or the root of a scatter receives no shard.
// In these cases the root is not one of the ranks that hold the shards of the tensor.
func (c *communication) rootApart() bool {
	shards := c.s.in[0].t.mesh
	if c.s.op == "Scatter" {
		shards = c.s.out.mesh
	}
	return (c.s.op == "Gather" || c.s.op == "Scatter") && c.s.index.isInt() && shards != nil &&
		!slices.Contains(shards.devices, c.s.index.val)
}

// byTransfers emits one send or receive for each shard. The transfer is from the shard's rank to the root, or from
// the root to the shard's rank. The root itself holds no shard.
func (c *communication) byTransfers() {
	whole, shard, shards := c.out, c.in, c.s.in[0].t
	sendOp, recvOp := ir.OpSend, ir.OpRecv
	if c.s.op == "Scatter" {
		whole, shard, shards = c.in, c.out, c.s.out
		sendOp, recvOp = ir.OpRecv, ir.OpSend
	}
	at, ok := before(shards, c.sharded(shard))
	if !ok || len(whole.shape) != len(shard.shape)+1 || at >= len(whole.shape) {
		c.contradiction()
		return
	}
	root := c.s.index.val
	group := &ir.Stmt{Op: ir.OpGroup, Pos: c.s.pos, Body: &ir.Block{}}
	for i, d := range shards.mesh.devices {
		slot := c.selected(whole, at, num(c.s.pos, int64(i)), c.fresh(whole.name+"_s"), c.s.pos)
		c.onRank(group, d, c.transfer(sendOp, shard, num(c.s.pos, root)))
		c.onRank(group, root, c.transfer(recvOp, slot, num(c.s.pos, d)))
	}
	c.emit(group, nil)
}

func (c *communication) transfer(op ir.Op, b *binding, peer *ir.Expr) *ir.Stmt {
	return &ir.Stmt{Op: op, Pos: c.s.pos, Args: []ir.Place{b.at(c.s.pos)},
		Peer: &ir.Peer{Pos: c.s.pos, Axis: ir.WorldAxis, Index: peer}}
}

// onRank adds a statement that one rank executes.
func (c *communication) onRank(to *ir.Stmt, rank int64, s *ir.Stmt) {
	guard := c.membership(rankSet{rank}, c.s.pos)
	guard.Body.Stmts = append(guard.Body.Stmts, s)
	to.Body.Stmts = append(to.Body.Stmts, guard)
}

// sendRecv emits the transfer of a tensor from the root to the other rank of a team of two.
func (c *communication) sendRecv() {
	if c.s.index == nil || !c.s.index.isInt() || len(c.s.team.devices) > 2 ||
		!slices.Contains(c.s.team.devices, c.s.index.val) {
		c.errorf(c.s.pos, "a SendRecv must have a root, which is the sender, and a team of one or two devices")
		return
	}
	from := c.s.index.val
	to := from
	for _, d := range c.s.team.devices {
		if d != from {
			to = d
		}
	}
	if from == to {
		c.emit(&ir.Stmt{Op: ir.OpCopy, Pos: c.s.pos, Args: []ir.Place{c.in.at(c.s.pos)}, Into: ptr(c.out.at(c.s.pos))},
			rankSet{from})
		return
	}
	c.emit(c.transfer(ir.OpSend, c.in, num(c.s.pos, to)), rankSet{from})
	c.emit(c.transfer(ir.OpRecv, c.out, num(c.s.pos, from)), rankSet{to})
}

// permute emits, on each rank, a send to one rank and a receive from another.
func (c *communication) permute() {
	if c.s.index == nil || c.s.hi == nil {
		c.errorf(c.s.pos, "this CollectivePermute has no send_peer or no recv_peer")
		return
	}
	group := &ir.Stmt{Op: ir.OpGroup, Pos: c.s.pos, Body: &ir.Block{}}
	group.Body.Stmts = []*ir.Stmt{c.transfer(ir.OpSend, c.in, c.expr(c.s.index)),
		c.transfer(ir.OpRecv, c.out, c.expr(c.s.hi))}
	c.emit(group, c.s.team.ranks())
}

// everywhere copies a parameter into a buffer that all ranks of the team have. The copy is needed for parameters that
// only some ranks of a team hold, because a collective needs an operand on every rank.
func (c *communication) everywhere(b *binding) *binding {
	have := c.s.in[0].t.mesh.ranks()
	if !b.value || have == nil || !slices.ContainsFunc(c.s.team.devices,
		func(d int64) bool { return !slices.Contains(have, d) }) {
		return b
	}
	v := *b
	v.name, v.value = c.fresh(b.t.id+"_b"), false
	c.define(c.blk, &ir.Stmt{Op: ir.OpAlloc, Pos: c.s.pos, Results: []ir.Name{{Pos: c.s.pos, Text: v.name}},
		Type: typeOf(b.t, b.shape)})
	c.emit(&ir.Stmt{Op: ir.OpCopy, Pos: c.s.pos, Args: []ir.Place{b.at(c.s.pos)}, Into: ptr(v.at(c.s.pos))}, have)
	return &v
}

// coalesced translates the statements from StartCoalescing, at index i, to EndCoalescing, and returns the index of
// EndCoalescing.
func (t *comms) coalesced(list []*stmt, i int) int {
	start := list[i]
	end := i + 1
	for end < len(list) && (list[end].kind == stP2P || list[end].kind == stShareHandles) {
		end++
	}
	if end == len(list) || list[end].kind != stEndGroup {
		pos := start.pos
		if end < len(list) {
			pos = list[end].pos
		}
		t.errorf(pos, "only P2PCommunications are supported between StartCoalescing and EndCoalescing").Help =
			"nvFuser completes the communications between the two statements together; move this statement out"
		return len(list)
	}
	t.post(list[end], t.commStream(t.everyDevice(), backendNCCL, start.pos), nil,
		func() { t.transfers(list[i+1 : end]) })
	for _, x := range list[i+1 : end] {
		if x.kind == stP2P {
			t.posted[x.id] = &posted{group: list[end].id}
		}
	}
	return end
}

// consecutive translates consecutive P2PCommunications.
//
// With the NCCL backend, each P2PCommunication is posted on the stream of its pair of ranks.
//
// With the CUDA backend, one of the two ranks copies on its current stream. The other rank only signals that its buffer
// is ready, and its Wait waits for the copy. The protocol determines which rank copies: with get, nvFuser's default, it
// is the receiver; with put, it is the sender. In both protocols, the last of the consecutive statements is one that
// copies.
func (t *comms) consecutive(list []*stmt, i int) int {
	end, copies := copier(list, i)
	for _, s := range list[i:end] {
		if s.kind != stP2P {
			continue
		}
		x := t.transfer(s)
		if x == nil {
			break
		}
		ranks := s.out.mesh.ranks()
		if s.backend == backendCUDA && s.op == copies {
			t.emit(x, ranks)
			t.posted[s.id] = &posted{inOrder: true}
			t.copies[s.id] = append(t.copies[s.id], x)
			continue
		}
		if s.backend == backendCUDA {
			t.hint("serial", x, ir.Note{Pos: s.pos, Message: "in nvFuser, this " + s.op +
				" only signals that its buffer is ready; here it waits for the copy (docs/nvfuser.md, Waits)"})
		}
		t.post(s, t.pairStream(s), ranks, func() { t.emit(x, ranks) })
	}
	return end - 1
}

// copier returns the index after the consecutive P2PCommunications that begin at i. It also returns which kind of
// statement, "send" or "recv", copies if the backend is CUDA.
func copier(list []*stmt, i int) (end int, copies string) {
	end, copies = i, "recv"
	first := ""
	for end < len(list) && (list[end].kind == stP2P || list[end].kind == stShareHandles) {
		if s := list[end]; s.kind == stP2P && first == "" {
			first = s.op
		} else if s.kind == stP2P && first == "recv" && s.op == "send" {
			copies = "send"
		}
		end++
	}
	return end, copies
}

// transfers emits sends and receives. Consecutive transfers that the same ranks execute become one group.
func (t *comms) transfers(list []*stmt) {
	var group []*ir.Stmt
	var ranks rankSet
	for _, s := range list {
		if s.kind != stP2P {
			continue
		}
		x := t.transfer(s)
		if x == nil {
			return
		}
		if own := s.out.mesh.ranks(); len(group) > 0 && own.String() != ranks.String() {
			t.emitGroup(group, ranks)
			group, ranks = nil, own
		} else {
			ranks = own
		}
		group = append(group, x)
	}
	t.emitGroup(group, ranks)
}

// transfer returns the statement for a send or receive.
func (t *comms) transfer(s *stmt) *ir.Stmt {
	op, b := ir.OpSend, (*binding)(nil)
	if s.op == "recv" {
		op, b = ir.OpRecv, t.writing(s.out)
	} else {
		b = t.reading(s.out)
	}
	if b == nil {
		return nil
	}
	x := &ir.Stmt{Op: op, Pos: s.pos, Args: []ir.Place{b.at(s.out.pos)},
		Peer: &ir.Peer{Pos: s.pos, Axis: ir.WorldAxis, Index: t.expr(s.index)}}
	comment(x)
	return x
}

func (t *comms) emitGroup(list []*ir.Stmt, ranks rankSet) {
	switch len(list) {
	case 0:
	case 1:
		t.emit(list[0], ranks)
	default:
		t.emit(&ir.Stmt{Op: ir.OpGroup, Pos: list[0].Pos, Body: &ir.Block{Stmts: list}}, ranks)
	}
}
