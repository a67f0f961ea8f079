package eval

import (
	"fmt"
	"slices"

	"hocket.example/hocket/ir"
)

// collKey identifies one collective. The collectives that a team issues on one stream of each member form a
// channel. The parts of the members are matched in the order in which they are issued to the channel (S6). The
// channels of a rank with one team are numbered in the order in which the rank first uses the streams.
type collKey struct {
	team    string
	channel int
	seq     int64
}

type channelKey struct {
	team    string
	channel int
}

// kindOf holds those properties of a collective that must be equal on all its members.
type kindOf struct {
	op                  ir.Op
	red                 ir.Red
	root                int64
	axis, split, concat int
	anyOrder            bool
}

// meeting is one collective of a team, to which its members arrive one after another.
type meeting struct {
	team    []int
	seq     int64
	members []member
	all     *array // result of the reduction of all members' tensors; nil until it is computed
}

// member is the part of one rank in a collective.
type member struct {
	stmt     *ir.Stmt
	kind     kindOf
	arrived  bool
	in       *array // nil if the rank contributes no tensor
	to, from int64
	counts   *array // counts of an uneven collective; nil until the member has arrived
	tally    func() (*array, error)
}

// collective issues the part of this rank in a collective on local memory or in a barrier.
func (r *rank) collective(s *ir.Stmt) error {
	kind, err := r.kindOf(s)
	if err != nil {
		return err
	}
	c, me, err := r.meet(s)
	if err != nil {
		return err
	}
	part := &c.members[me]
	part.stmt, part.kind = s, kind
	if s.Op == ir.OpPermute {
		if err := r.permutation(s, part, len(c.team)); err != nil {
			return err
		}
	}
	if s.Op == ir.OpBarrier {
		r.issue(s, func() error {
			part.arrived = true
			if err := c.agree(r.m, me); err != nil {
				return err
			}
			return c.waits(me)
		})
		return nil
	}
	in, err := r.tensor(&s.Args[0])
	if err != nil {
		return err
	}
	out, err := r.destination(s)
	if err != nil {
		return err
	}
	uses := []view{in, out}
	if s.Op.Uneven() {
		var counts []view
		if part.tally, counts, err = r.counts(s); err != nil {
			return err
		}
		uses = append(uses, counts...)
	}
	r.issue(s, func() error { return c.run(r.m, me, in, out) }, uses...)
	return nil
}

// meet returns the collective to which this rank's statement s belongs.
func (r *rank) meet(s *ir.Stmt) (*meeting, int, error) {
	team := r.m.b.Team(s.Over(), r.id)
	if team == nil {
		return nil, 0, &finding{kind: "match", message: fmt.Sprintf("rank %d executes the collective, but is not "+
			"in the mesh of over=%v", r.id, s.Over())}
	}
	name := fmt.Sprint(team)
	ch := slices.Index(r.channels[name], r.cur)
	if ch < 0 {
		ch = len(r.channels[name])
		r.channels[name] = append(r.channels[name], r.cur)
	}
	k := channelKey{name, ch}
	seq := r.issued[k]
	r.issued[k]++
	c := entry(&r.m.colls, collKey{name, ch, seq}, func() *meeting {
		return &meeting{team: team, seq: seq, members: make([]member, len(team))}
	})
	return c, slices.Index(team, r.id), nil
}

func (r *rank) kindOf(s *ir.Stmt) (kindOf, error) {
	k := kindOf{op: s.Op, root: -1, anyOrder: s.Word("order", "rank") == "any"}
	k.red, _ = ir.ParseRed(s.Word("op", "none"))
	var err error
	for _, a := range []struct {
		name string
		to   *int
	}{{"axis", &k.axis}, {"split", &k.split}, {"concat", &k.concat}} {
		if *a.to, err = r.axis(s, a.name, 0); err != nil {
			return k, err
		}
	}
	if s.Attr("root") == nil {
		return k, nil
	}
	if k.root, err = r.integer(s, "root", 0); err != nil {
		return k, err
	}
	if n := len(r.m.b.Team(s.Over(), r.id)); k.root < 0 || k.root >= int64(n) {
		err = r.outside(s, "root %d is outside the team of %d", k.root, n)
	}
	return k, err
}

// permutation evaluates the attributes to= and from= of a permute for this rank. -1 means no rank.
func (r *rank) permutation(s *ir.Stmt, p *member, n int) error {
	for _, a := range []struct {
		name string
		at   *int64
	}{{"to", &p.to}, {"from", &p.from}} {
		v, err := r.integer(s, a.name, -1)
		if err != nil {
			return err
		}
		if v < -1 || v >= int64(n) {
			return r.outside(s, "%s=%d is outside the team of %d", a.name, v, n)
		}
		*a.at = v
	}
	return nil
}

// run posts the tensor of member me, waits for those tensors of other members that it needs, and writes the result.
func (c *meeting) run(m *machine, me int, in, out view) error {
	p := &c.members[me]
	if !p.arrived {
		if c.gives(me) {
			a, err := in.read()
			if err != nil {
				return err
			}
			p.in = a
		}
		if p.tally != nil {
			a, err := p.tally()
			if err != nil {
				return err
			}
			p.counts = a
		}
		p.arrived = true
	}
	if err := c.agree(m, me); err != nil {
		return err
	}
	if err := c.waits(me); err != nil {
		return err
	}
	if !c.takes(me) {
		return nil
	}
	if err := out.st.open(); err != nil { // make the destination before memory is reserved for the result
		return err
	}
	a, err := c.result(me, out.shape)
	if err != nil {
		return err
	}
	return out.write(a)
}

// gives reports whether the collective reads the tensor of the member me.
func (c *meeting) gives(me int) bool {
	switch p := c.members[me]; p.kind.op {
	case ir.OpBroadcast, ir.OpScatter:
		return int64(me) == p.kind.root
	}
	return true
}

// takes reports whether the collective writes the destination of the member me.
func (c *meeting) takes(me int) bool {
	switch p := c.members[me]; p.kind.op {
	case ir.OpReduce, ir.OpGather:
		return int64(me) == p.kind.root
	case ir.OpPermute:
		return p.from >= 0
	}
	return true
}

// agree checks that all members that have arrived have issued the same operation.
func (c *meeting) agree(m *machine, me int) error {
	mine := c.members[me]
	for i, p := range c.members {
		if !p.arrived || p.kind == mine.kind {
			continue
		}
		d := m.prog.Diag("match", mine.stmt.Pos, "rank %d issues %v as number %d of its team on this stream, and rank %d issues %v",
			c.team[me], mine.kind.op, c.seq, c.team[i], p.kind.op)
		d.Notes = append(d.Notes, ir.Note{Pos: p.stmt.Pos, Message: fmt.Sprintf("the collective of rank %d, which "+
			"differs in operation, reduction, root or axis", c.team[i])})
		return d
	}
	return nil
}

// waits returns *pending until all those members have arrived whose data or arrival member me needs. In a rooted
// collective, member me waits for the root or for all members; in a permutation, for the source; and in every other
// collective, for all members (S5).
func (c *meeting) waits(me int) error {
	p := c.members[me]
	for i, q := range c.members {
		if q.arrived {
			continue
		}
		needed := true
		switch p.kind.op {
		case ir.OpBroadcast, ir.OpScatter:
			needed = int64(i) == p.kind.root
		case ir.OpReduce, ir.OpGather:
			needed = int64(me) == p.kind.root
		case ir.OpPermute:
			needed = int64(i) == p.from
		}
		if needed {
			return &pending{fmt.Sprintf("rank %d to reach this %v, number %d of team %v on this stream", c.team[i], p.kind.op, c.seq, c.team)}
		}
	}
	return nil
}

// result returns the tensor that member me receives in a destination of the given shape.
func (c *meeting) result(me int, shape []int64) (*array, error) {
	k, n := c.members[me].kind, int64(len(c.team))
	switch k.op {
	case ir.OpAllReduce, ir.OpReduce:
		return c.reduction(k)
	case ir.OpReduceScatter:
		a, err := c.reduction(k)
		if err != nil {
			return nil, err
		}
		return block(a, k.axis, n, me)
	case ir.OpAllGather, ir.OpGather:
		return concat(c.tensors(), k.axis)
	case ir.OpBroadcast:
		return c.members[k.root].in, nil
	case ir.OpScatter:
		return block(c.members[k.root].in, k.axis, n, me)
	case ir.OpAllToAll:
		return c.exchange(k, me)
	case ir.OpPermute:
		return c.permuted(me)
	case ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV:
		return c.uneven(me, shape[k.axis])
	}
	return nil, fmt.Errorf("the evaluator has no rule for %v", k.op)
}

func (c *meeting) tensors() []*array {
	var all []*array
	for _, p := range c.members {
		all = append(all, p.in)
	}
	return all
}

func (c *meeting) reduction(k kindOf) (*array, error) {
	if c.all != nil {
		return c.all, nil
	}
	a, err := reduceArrays(k.red, c.tensors(), k.anyOrder)
	c.all = a
	return a, err
}

// block returns the i-th of n equal blocks of a along axis.
func block(a *array, axis int, n int64, i int) (*array, error) {
	blocks, err := a.split(axis, n)
	if err != nil {
		return nil, err
	}
	return blocks[i], nil
}

func (c *meeting) exchange(k kindOf, me int) (*array, error) {
	var parts []*array
	for _, p := range c.members {
		b, err := block(p.in, k.split, int64(len(c.team)), me)
		if err != nil {
			return nil, err
		}
		parts = append(parts, b)
	}
	return concat(parts, k.concat)
}

// permuted returns the tensor of the rank that the attribute from= of member me names. The attribute to= of that
// rank must name member me.
func (c *meeting) permuted(me int) (*array, error) {
	from := c.members[me].from
	if to := c.members[from].to; to != int64(me) {
		return nil, &finding{kind: "match", message: fmt.Sprintf("rank %d receives from team index %d, whose to= "+
			"names team index %d and not %d", c.team[me], from, to, me)}
	}
	return c.members[from].in, nil
}
