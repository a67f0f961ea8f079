package planner

import (
	"fmt"
	"strings"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// communication emits the commands of collectives and of transfers between ranks.
type communication struct {
	*emitter
	group *openGroup
}

// team is an ordered list of ranks that execute collectives together. It also lists the collectives that each of them
// has issued.
type team struct {
	ranks  []int
	issued [][]issue // for each member, the collectives that it issues, in order
}

// issue is the part of one member in a collective, before the parts of all members are matched.
type issue struct {
	cmd  int32 // index in the rank's commands
	coll plan.Coll
	part plan.CollPart
}

// lane holds the sends and recvs that move data from one rank to another along an axis.
type lane struct {
	key          laneKey
	sends, recvs []endpoint
}

type laneKey struct {
	axis     string
	src, dst int32
}

// endpoint is one send or recv. It is entry i of the group command with index cmd.
type endpoint struct {
	rank, cmd int32
	entry     int32
	site      int32
	ref       plan.Ref
}

// seatKey identifies a seat by a rank and the axes of a collective.
type seatKey struct {
	axes string
	rank int
}

// seat says in which team a rank is, for a set of axes, and at which index. The zero value means that the rank is
// in no team over these axes.
type seat struct {
	team   *team
	member int
}

// team returns the team over the axes of s in which this rank is, and the index of the rank in it. The first call
// for a team creates the seats of all its members. If each member built the team again, the time would be quadratic
// in the number of ranks.
func (u *communication) team(s *ir.Stmt) (t *team, member int, ok bool) {
	axes := s.Over()
	key := seatKey{strings.Join(axes, "\x00"), u.rank}
	at, known := u.w.seats[key]
	if !known {
		u.w.seat(axes, key)
		at = u.w.seats[key]
	}
	return at.team, at.member, at.team != nil
}

// seat creates the seats for all members of a rank's team.
func (w *world) seat(axes []string, key seatKey) {
	ranks := w.b.Team(axes, key.rank)
	if ranks == nil {
		w.seats[key] = seat{}
		return
	}
	name := fmt.Sprint(ranks)
	id, known := w.teamIDs[name]
	if !known {
		id = int32(len(w.teams))
		w.teamIDs[name] = id
		w.teams = append(w.teams, &team{ranks: ranks, issued: make([][]issue, len(ranks))})
	}
	for i, r := range ranks {
		w.seats[seatKey{key.axes, r}] = seat{w.teams[id], i}
	}
}

// barrier issues a barrier, which is a collective without tensors. Ranks outside the barrier's mesh do not take part.
func (u *communication) barrier(s *ir.Stmt) error {
	t, member, ok := u.team(s)
	if !ok {
		return nil
	}
	part := plan.CollPart{In: plan.Absent(), Out: plan.Absent(), To: -1, From: -1}
	return u.join(s, t, member, plan.Coll{Op: s.Op}, part)
}

// join issues this rank's part of a collective to the team t.
func (u *communication) join(s *ir.Stmt, t *team, member int, coll plan.Coll, part plan.CollPart) error {
	cmd := int32(len(u.w.cmds[u.rank]))
	if err := u.emit(s, plan.Cmd{Kind: plan.Collective, Part: int32(member)}); err != nil {
		return err
	}
	t.issued[member] = append(t.issued[member], issue{cmd, coll, part})
	return nil
}

// collective issues the part of this rank in a collective. The part contains the operand only if the op reads it on
// this rank, and the result only if the op writes it on this rank.
func (u *communication) collective(s *ir.Stmt, ins []plan.Ref) error {
	in := ins[0]
	t, member, ok := u.team(s)
	if !ok {
		return u.errf("bind", s.Pos, "put the op into an if that selects the ranks of the mesh",
			"this rank executes %s, but is not in its mesh", s.Op)
	}
	coll, part, err := u.collAttrs(s, in, len(t.ranks), member)
	if err != nil {
		return err
	}
	if s.Op.Uneven() {
		if err := u.counts(s, ins, &part); err != nil {
			return err
		}
	}
	out, err := u.result(s)
	if err != nil {
		return err
	}
	if in, err = u.denseOperand(s, in); err != nil {
		return err
	}
	if s.Into != nil {
		if err := u.wantDense(s, s.Into, out); err != nil {
			return err
		}
	}
	part.In, part.Out = in, out
	root := int32(member) == coll.Root
	switch s.Op {
	case ir.OpBroadcast, ir.OpScatter: // only the root reads
		if !root {
			part.In = plan.Absent()
		}
	case ir.OpReduce, ir.OpGather: // only the root writes
		if !root {
			part.Out = plan.Absent()
		}
	case ir.OpPermute:
		if part.To < 0 {
			part.In = plan.Absent()
		}
		if part.From < 0 {
			part.Out = plan.Absent()
		}
	}
	return u.join(s, t, member, coll, part)
}

// collAttrs evaluates the attributes of a collective.
func (u *communication) collAttrs(s *ir.Stmt, in plan.Ref, size, member int) (coll plan.Coll, part plan.CollPart,
	err error) {
	coll = plan.Coll{Op: s.Op, AnyOrd: s.Word("order", "rank") == "any", Algo: s.Word("algorithm", "")}
	coll.Red, _ = ir.ParseRed(s.Word("op", "none"))
	part.To, part.From = -1, -1
	info := s.Op.Info()
	for _, at := range []struct {
		name string
		to   *int32
	}{{"axis", &coll.Axis}, {"concat", &coll.Axis}, {"split", &coll.Split}} {
		if info.AttrSpec(at.name) == nil {
			continue
		}
		var v int
		if v, err = u.axis(s, at.name, in); err != nil {
			return
		}
		*at.to = int32(v)
	}
	for _, at := range []struct {
		name string
		to   *int32
		low  int64
	}{{"root", &coll.Root, 0}, {"to", &part.To, -1}, {"from", &part.From, -1}} {
		a := s.Attr(at.name)
		if a == nil {
			continue
		}
		var v int64
		if v, err = u.eval(s, a.Exprs[0]); err != nil {
			return
		}
		if v < at.low || v >= int64(size) {
			err = u.errf("bind", a.Pos, "", "%s=%d is not an index of a team of %d ranks", at.name, v, size)
			return
		}
		*at.to = int32(v)
	}
	if a := s.Attr("ctas"); a != nil {
		coll.CTAs, err = u.someOf(s, a, "thread blocks")
	}
	return
}

// someOf evaluates an attribute that limits how many multiprocessors or thread blocks of a GPU an operation may use.
func (u *emitter) someOf(s *ir.Stmt, a *ir.Attr, things string) (int32, error) {
	v, err := u.eval(s, a.Exprs[0])
	if err == nil && (v < 1 || v > mostOfGPU) {
		err = u.errf("bind", a.Pos, "", "%s=%d is not a valid number of %s: use 1 to %d", a.Name, v, things, mostOfGPU)
	}
	return int32(v), err
}

// mostOfGPU is the maximum value of such an attribute. No GPU has that many multiprocessors or runs that many thread
// blocks at the same time.
const mostOfGPU = 1 << 16

// denseOperand returns the operand of a collective as a tensor without gaps. If the operand is a value with gaps, it is
// copied, because the planner chooses the memory layout of values. If the operand is a buffer with gaps, that is an
// error, because the program chooses the memory layout of buffers (S16).
func (u *emitter) denseOperand(s *ir.Stmt, in plan.Ref) (plan.Ref, error) {
	if in.Dense() || s.Into != nil || u.w.b.Info.Results[s][0].Kind != ir.SymValue {
		return in, u.wantDense(s, &s.Args[0], in)
	}
	dense, err := u.newBuffer(s, 0, s.Args[0].Name, plan.RoleValue, in.DType, in.Shape)
	if err != nil {
		return in, err
	}
	return dense, u.emitCopy(s, in, dense, -1)
}

func (u *emitter) wantDense(s *ir.Stmt, p *ir.Place, r plan.Ref) error {
	if r.Dense() {
		return nil
	}
	return u.errf("alias", p.Pos, "copy the view to dense memory first: %c = copy "+p.String(),
		"%s needs dense tensors, but %s is a view with gaps", s.Op, p)
}

// transfer emits a put or get. A send or recv becomes a part of the enclosing group, or a group with one transfer.
func (u *communication) transfer(s *ir.Stmt) error {
	if d := u.w.b.CheckStmt(s, u.env); d != nil {
		d.Message += u.where()
		return d
	}
	x, err := u.present(&s.Args[0])
	if err != nil {
		return err
	}
	if err := u.wantDense(s, &s.Args[0], x); err != nil {
		return err
	}
	peer, err := u.peer(s)
	if err != nil {
		return err
	}
	if s.Op == ir.OpSend || s.Op == ir.OpRecv {
		return u.sendRecv(s, x, peer)
	}
	return u.putGet(s, x, peer)
}

func (u *communication) putGet(s *ir.Stmt, x plan.Ref, peer int32) error {
	y, err := u.present(s.Into)
	if err != nil {
		return err
	}
	if err := u.wantDense(s, s.Into, y); err != nil {
		return err
	}
	remote := &y
	if s.Op == ir.OpGet {
		remote = &x
	}
	if !u.w.p.Buffers[remote.Buf].Symmetric {
		return u.errf("type", s.Pos, "add the word symmetric after the type in its alloc statement",
			"%s accesses the peer's copy of a buffer, so the buffer must be symmetric", s.Op)
	}
	remote.Rank = peer
	return u.emitCopy(s, x, y, peer)
}

// openGroup collects the sends and recvs of one group statement. They become one command.
type openGroup struct {
	entries []plan.P2P
	ends    []pendingEnd
}

type pendingEnd struct {
	lane *lane
	end  endpoint
}

// groupStmt executes a group: the sends and recvs in its block become one command.
func (u *unroller) groupStmt(s *ir.Stmt) error {
	outer := u.group
	u.group = &openGroup{}
	err := u.block(s.Body)
	g := u.group
	u.group = outer
	if err != nil {
		return err
	}
	return u.closeGroup(s, g)
}

func (u *communication) sendRecv(s *ir.Stmt, x plan.Ref, peer int32) error {
	k := laneKey{s.Peer.Axis, int32(u.rank), peer}
	if s.Op == ir.OpRecv {
		k.src, k.dst = peer, int32(u.rank)
	}
	id, ok := u.w.laneIDs[k]
	if !ok {
		id = int32(len(u.w.lanes))
		u.w.laneIDs[k] = id
		u.w.lanes = append(u.w.lanes, &lane{key: k})
	}
	g := u.group
	if g == nil {
		g = &openGroup{}
	}
	g.ends = append(g.ends, pendingEnd{u.w.lanes[id],
		endpoint{rank: int32(u.rank), entry: int32(len(g.entries)), site: u.w.site(s), ref: x}})
	g.entries = append(g.entries, plan.P2P{Send: s.Op == ir.OpSend})
	if u.group != nil {
		return nil
	}
	return u.closeGroup(s, g)
}

// closeGroup emits the command of a group and adds its sends and recvs to their lanes.
func (u *communication) closeGroup(s *ir.Stmt, g *openGroup) error {
	if len(g.entries) == 0 {
		return nil
	}
	cmd := int32(len(u.w.cmds[u.rank]))
	if err := u.emit(s, plan.Cmd{Kind: plan.Group, Group: g.entries}); err != nil {
		return err
	}
	for i, e := range g.ends {
		e.end.cmd = cmd
		if g.entries[i].Send {
			e.lane.sends = append(e.lane.sends, e.end)
		} else {
			e.lane.recvs = append(e.lane.recvs, e.end)
		}
	}
	return nil
}
