// Package comm runs collectives and paired sends and receives over device streams: as schedules of copies, reduce
// launches, signals and counter waits, or by a machine's own launches for whole collectives.
//
// A Channel is the sequence of collectives that one team issues on one stream of each member. A Dispatch chooses the
// algorithm of each. Everything is resolved when the channel is opened, so issuing goes through a slice and decides
// nothing. Only the values of counters change, and they follow from the number of the run.
package comm

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Part is what one member brings to an Instance.
type Part = device.Part

// Member is one place of a team: a rank and the stream its share runs on.
type Member = device.Member

// Instance is one collective of a channel.
type Instance struct {
	device.Collective
	// Pin is the algorithm to use, by name, and how it is launched; without a
	// name the dispatch chooses.
	Pin device.Tuning
	// CTAs bounds the blocks that launches of the machine's own take; 0 for no
	// bound.
	CTAs int
	// Shared says that peers can copy to and from all operands where they lie.
	Shared bool
	// Norm is this all_reduce with the add and the rms_norm that follow it next to it
	// on every member's stream, where nobody else needs the sum: its launches may do
	// those too, which Channel.Normed tells. Nil where there is no such thing.
	Norm *device.Norm
	// apart says that some members lack peer access to each other (World.Apart). Design sets it.
	apart bool
	// nodes are the members', where these are on several: then they reach each other by the world's transport
	// alone. Design finds out.
	nodes []int
}

// dtype returns the element type of the operands; InvalidDType for a barrier.
func (in *Instance) dtype() ir.DType {
	for i := range in.Parts {
		switch p := &in.Parts[i]; {
		case p.Reads:
			return p.In.DType
		case p.Writes:
			return p.Out.DType
		}
	}
	return ir.InvalidDType
}

// Bytes returns the size of the largest operand that a member reads.
func (in *Instance) Bytes() int64 {
	var most int64
	for i := range in.Parts {
		if p := &in.Parts[i]; p.Reads {
			most = max(most, viewBytes(p.In))
		}
	}
	return most
}

// Message returns the size by which collectives are known: that of the largest
// operand of any member. For an all_gather it is the gathered tensor, for a
// reduce_scatter the one scattered.
func (in *Instance) Message() int64 {
	most := in.Bytes()
	for i := range in.Parts {
		if p := &in.Parts[i]; p.Writes {
			most = max(most, viewBytes(p.Out))
		}
	}
	return most
}

// source reports whether member reader gets data (or, in a barrier, word) from
// member from: the data flow of each collective.
func (in *Instance) source(reader, from int) bool {
	switch in.Op {
	case ir.OpBroadcast, ir.OpScatter:
		return from == in.Root
	case ir.OpReduce, ir.OpGather:
		return reader == in.Root
	case ir.OpPermute:
		return in.Parts[reader].From == from
	}
	return true
}

// gives reports whether any member gets data from member from.
func (in *Instance) gives(from int) bool {
	if in.Op == ir.OpBarrier {
		return false
	}
	for r := range in.Parts {
		if in.source(r, from) {
			return true
		}
	}
	return false
}

// least returns the bytes that member m must get from its peers, whatever the
// algorithm.
func (in *Instance) least(m int) int64 {
	p, n := &in.Parts[m], int64(len(in.Parts))
	switch op := in.Op; {
	case op == ir.OpBarrier || n == 1:
		return 0
	case op == ir.OpAllReduce:
		return 2 * viewBytes(p.In) * (n - 1) / n
	case op == ir.OpReduceScatter:
		return viewBytes(p.Out) * (n - 1)
	case op == ir.OpAllGather, op == ir.OpAllToAll, op == ir.OpGather && m == in.Root:
		return viewBytes(p.Out) * (n - 1) / n
	case op == ir.OpReduce && m == in.Root, op == ir.OpPermute && p.From >= 0 && p.From != m:
		return viewBytes(p.Out)
	case (op == ir.OpBroadcast || op == ir.OpScatter) && m != in.Root:
		return viewBytes(p.Out)
	case op.Uneven():
		return in.leastRows(m)
	}
	return 0
}
