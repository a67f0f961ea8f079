package tape

import (
	"errors"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// transportName is the name of the transport algorithm of a tape with several nodes.
const transportName = "transport"

// Node implements device.World.
func (t *Tape) Node(rank int) int {
	if t.Nodes == nil {
		return 0
	}
	return t.Nodes[rank]
}

// Transport implements device.Teams.
func (t *Tape) Transport() string {
	for _, n := range t.Nodes {
		if n != t.Nodes[0] {
			return transportName
		}
	}
	return ""
}

// TeamAlgorithms implements device.Teams.
func (t *Tape) TeamAlgorithms() []device.Algorithm {
	if t.Transport() == "" {
		return nil
	}
	return []device.Algorithm{{Name: transportName, Ops: append(slices.Clone(device.Moves), ir.OpBarrier)}}
}

// OpenTeam implements device.Teams.
func (t *Tape) OpenTeam(members []device.Member) (device.Team, error) {
	if t.Transport() == "" {
		return t.DefaultWorld.OpenTeam(members)
	}
	var ch plan.Channel
	for _, m := range members {
		ch.Team, ch.Streams = append(ch.Team, int32(m.Rank)), append(ch.Streams, m.Stream.(*tapeStream).index)
	}
	t.teams, t.calls = append(t.teams, ch), append(t.calls, nil)
	return &tapeTeam{t: t, index: int32(len(t.teams) - 1)}, nil
}

type tapeTeam struct {
	device.DefaultTeam
	t     *Tape
	index int32
}

func (*tapeTeam) Bytes() int64 { return 0 }
func (*tapeTeam) Close() error { return nil }

// Supports returns nil for collectives that only move data.
func (*tapeTeam) Supports(_ device.Tuning, c *device.Collective) error {
	return nil
}

func (m *tapeTeam) Prepare(_ device.Tuning, c *device.Collective) ([]device.Launch, error) {
	coll := plan.Coll{Op: c.Op, Channel: m.index, Root: int32(c.Root), Axis: int32(c.Axis), Split: int32(c.Split)}
	for i := range c.Parts {
		p := plan.CollPart{In: plan.Absent(), Out: plan.Absent(), To: int32(c.Parts[i].To), From: int32(c.Parts[i].From)}
		if c.Parts[i].Reads {
			p.In = refTo(c.Parts[i].In)
		}
		if c.Parts[i].Writes {
			p.Out = refTo(c.Parts[i].Out)
		}
		coll.Parts = append(coll.Parts, p)
	}
	var launches []device.Launch
	for i := range c.Parts {
		launches = append(launches, &tapeCall{m: m, coll: coll, member: i})
	}
	return launches, nil
}

// tapeCall is a member's part of a collective of a team.
type tapeCall struct {
	m      *tapeTeam
	coll   plan.Coll
	member int
}

func (*tapeCall) Release() {}

// issue adds the member's next command for its team. The n-th commands of all members form one collective.
func (c *tapeCall) issue(s *tapeStream) error {
	t, ch := c.m.t, c.m.index
	if t.teams[ch].Streams[c.member] != s.index {
		return errors.New("a launch on the stream of another member")
	}
	n := 0
	for i := range t.Cmds {
		if x := &t.Cmds[i]; x.Kind == plan.Collective && x.Stream == s.index && t.colls[x.Coll].Channel == ch {
			n++
		}
	}
	if n == len(t.calls[ch]) {
		coll := c.coll
		coll.Seq = int32(n)
		t.calls[ch] = append(t.calls[ch], int32(len(t.colls)))
		t.colls = append(t.colls, coll)
	}
	s.add(plan.Cmd{Kind: plan.Collective, Coll: t.calls[ch][n], Part: int32(c.member)})
	return nil
}
