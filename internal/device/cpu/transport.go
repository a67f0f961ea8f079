package cpu

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	procs "hocket.example/hocket/internal/world"
	"hocket.example/hocket/ir"
)

// Nodes share no memory, so collectives between nodes use messages. Each member sends every other member its data over
// connections (wires) between the processes. Members on one node, or in one process, also use messages, so that one
// implementation suffices. The transport only moves bytes. Members compute sums from the data that they have received.

// transportName is the name of the transport algorithm.
const transportName = "tcp"

// transport describes the algorithm.
var transport = device.Algorithm{Name: transportName, Ops: append(slices.Clone(device.Moves), ir.OpBarrier),
	Takes: "collectives that only move data; broadcast, gather, scatter and permute only if the members may wait for " +
		"each other",
	How: "each member sends the data for each other member as a message"}

// Node implements device.World.
func (w *world) Node(rank int) int { return w.peers.Node(rank) }

// Transport implements device.Teams.
func (w *world) Transport() string {
	if w.peers == nil || w.peers.Nodes() == 1 {
		return ""
	}
	return transportName
}

// TeamAlgorithms implements device.Teams.
func (w *world) TeamAlgorithms() []device.Algorithm {
	if w.Transport() == "" {
		return nil
	}
	return []device.Algorithm{transport}
}

// OpenTeam implements device.Teams.
func (w *world) OpenTeam(members []device.Member) (device.Team, error) {
	if w.Transport() == "" {
		return w.DefaultWorld.OpenTeam(members)
	}
	for i, m := range members {
		if m.Rank < 0 || m.Rank >= len(w.devices) {
			return nil, fmt.Errorf("member %d of a team is rank %d, but the world has %d ranks", i, m.Rank, len(w.devices))
		}
	}
	return &team{w: w, members: members, wires: w.peers.NewWires(len(members) * len(members))}, nil
}

// team is a set of members that send messages to each other.
type team struct {
	device.DefaultTeam
	w       *world
	members []device.Member
	wires   uint64 // number of the first wire of the team; there is one wire for each ordered pair of members
}

func (t *team) Bytes() int64 { return 0 }
func (t *team) Close() error { return nil }

// Supports implements device.Team.
func (t *team) Supports(_ device.Tuning, c *device.Collective) error {
	if err := transport.Check(c); err != nil {
		return err
	}
	return c.Meets() // members wait for each other, because a sender waits until its message is received
}

// parcel is the data that one member sends to another member, or receives from that member.
type parcel struct {
	peer int
	view device.View
}

// parcels returns the data that the member me sends and the data that it receives. Both include the data that the
// member sends to itself.
func parcels(c *device.Collective, me int) (sends, gets []parcel) {
	p, n := &c.Parts[me], len(c.Parts)
	for i := range n {
		switch c.Op {
		case ir.OpAllGather:
			sends, gets = append(sends, parcel{i, p.In}), append(gets, parcel{i, cut(p.Out, c.Axis, i, n)})
		case ir.OpAllToAll:
			sends = append(sends, parcel{i, cut(p.In, c.Split, i, n)})
			gets = append(gets, parcel{i, cut(p.Out, c.Axis, i, n)})
		case ir.OpBroadcast:
			if me == c.Root && c.Parts[i].Writes {
				sends = append(sends, parcel{i, p.In})
			}
			if i == c.Root && p.Writes {
				gets = append(gets, parcel{i, p.Out})
			}
		case ir.OpGather:
			if i == c.Root {
				sends = append(sends, parcel{i, p.In})
			}
			if me == c.Root {
				gets = append(gets, parcel{i, cut(p.Out, c.Axis, i, n)})
			}
		case ir.OpScatter:
			if me == c.Root {
				sends = append(sends, parcel{i, cut(p.In, c.Axis, i, n)})
			}
			if i == c.Root {
				gets = append(gets, parcel{i, p.Out})
			}
		case ir.OpPermute:
			if p.To == i {
				sends = append(sends, parcel{i, p.In})
			}
			if p.From == i {
				gets = append(gets, parcel{i, p.Out})
			}
		}
	}
	return sends, gets
}

// cut returns the i-th of n equal blocks of v along axis.
func cut(v device.View, axis, i, n int) device.View {
	rows := v.Shape[axis] / int64(n)
	v.Shape = append([]int64(nil), v.Shape...)
	v.Shape[axis] = rows
	v.Off += int64(i) * rows * v.Strides[axis] * v.DType.Size()
	return v
}

// letter is a parcel together with separate memory, from which the parcel is sent or into which it is received.
type letter struct {
	peer int
	view ref
	// contents of the message: the elements of the view, dense, or one byte as a signal if there are no elements
	bytes []byte
}

// Prepare implements device.Team. Since letters have separate memory, operands may overlap arbitrarily.
func (t *team) Prepare(tuning device.Tuning, c *device.Collective) ([]device.Launch, error) {
	if err := t.Supports(tuning, c); err != nil {
		return nil, err
	}
	if len(c.Parts) != len(t.members) {
		return nil, fmt.Errorf("the collective has %d parts for a team of %d members", len(c.Parts), len(t.members))
	}
	launches := make([]device.Launch, len(t.members))
	for me, m := range t.members {
		if !t.w.Local(m.Rank) {
			launches[me] = device.ForeignLaunch{}
			continue
		}
		d := t.w.devices[m.Rank]
		l := &launch{dev: d, name: fmt.Sprintf("%s by %s", c.Op, transportName)}
		launches[me] = l
		post, err := t.pack(c, me)
		if err != nil {
			return nil, d.errorf("%s: %w", l.name, err)
		}
		l.run = post.deliver
	}
	return launches, nil
}

// post is the part of one member in a collective.
type post struct {
	t           *team
	me          int
	sends, gets []letter
	receipts    []*procs.Receipt
}

func (t *team) pack(c *device.Collective, me int) (*post, error) {
	p := &post{t: t, me: me}
	d := t.w.devices[t.members[me].Rank]
	write := func(list []parcel) (letters []letter, err error) {
		for _, x := range list {
			r, err := d.resolve(x.view, false)
			if err != nil {
				return nil, err
			}
			letters = append(letters, letter{x.peer, r, alignedBytes(max(r.n*r.dt.Size(), 1))})
		}
		return letters, nil
	}
	sends, gets := parcels(c, me)
	if c.Op == ir.OpBarrier {
		for i := range t.members {
			p.sends = append(p.sends, letter{peer: i, bytes: make([]byte, 1)})
			p.gets = append(p.gets, letter{peer: i, bytes: make([]byte, 1)})
		}
		return p, nil
	}
	var err error
	if p.sends, err = write(sends); err != nil {
		return nil, err
	}
	p.gets, err = write(gets)
	p.receipts = make([]*procs.Receipt, 0, len(p.gets))
	return p, err
}

// deliver starts to receive all letters before it sends the first one. Therefore two members never wait for each other
// to receive.
func (p *post) deliver() error {
	w, n := p.t.w.peers, len(p.t.members)
	owner := func(member int) int { return w.Owner(p.t.members[member].Rank) }
	wire := func(from, to int) uint64 { return p.t.wires + uint64(from*n+to) }
	p.receipts = p.receipts[:0]
	for i := range p.gets {
		r, err := w.Expect(owner(p.gets[i].peer), wire(p.gets[i].peer, p.me), p.gets[i].bytes)
		if err != nil {
			return err
		}
		p.receipts = append(p.receipts, r)
	}
	for i := range p.sends {
		if l := &p.sends[i]; l.view.n > 0 {
			gatherBytes(l.bytes, l.view, 0)
		}
	}
	for d := range n {
		to := (p.me + d) % n // each member sends first to a different receiver
		for i := range p.sends {
			if p.sends[i].peer != to {
				continue
			}
			if err := w.Send(w.Ctx, owner(to), wire(p.me, to), p.sends[i].bytes); err != nil {
				return err
			}
		}
	}
	for i, r := range p.receipts {
		if err := r.Wait(w.Ctx); err != nil {
			return err
		}
		if l := &p.gets[i]; l.view.n > 0 {
			scatterBytes(l.view, 0, l.bytes)
		}
	}
	return nil
}

var _ device.Team = (*team)(nil)
