// Package comm runs collectives and paired sends and receives on device streams. It runs them either as schedules of
// copies, reduction launches, signals and counter waits, or as the machine's own launches for whole collectives.
//
// A Channel is the sequence of collectives that one team issues on one stream of each member. A Dispatch chooses the
// algorithm of each collective. All steps are prepared when the channel is opened, so issuing a collective only
// iterates over them. Only the values of counters differ from run to run; they are computed from the number of the
// run.
package comm

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Part holds the operands of one member of an Instance.
type Part = device.Part

// Member is one member of a team: a rank, and the stream on which the rank runs its part.
type Member = device.Member

// Instance is one collective of a channel.
type Instance struct {
	device.Collective
	// Pin names the algorithm to use and holds its launch parameters. If Pin names no algorithm, the dispatch chooses
	// one.
	Pin device.Tuning
	// CTAs is the largest number of blocks that the machine's own launches may use on each device; 0 means no bound.
	CTAs int
	// Shared reports whether peers can read and write all operands in place.
	Shared bool
	// Norm describes this all_reduce together with the add and the rms_norm that directly follow it on every member's
	// stream. It is nil unless only these operations read the sum. The launches may then also do the add and the norm;
	// Channel.Normed reports whether they do.
	Norm *device.Norm
	// apart reports whether some members lack peer access to each other (World.Apart). Design sets it.
	apart bool
	// nodes holds the members' nodes if they are on several nodes, where members reach each other only through the world's
	// transport; otherwise it is nil. Design sets it.
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

// Message returns the message size of the collective, which is the size of the largest operand of any member: the
// gathered tensor for an all_gather, the tensor to scatter for a reduce_scatter.
func (in *Instance) Message() int64 {
	most := in.Bytes()
	for i := range in.Parts {
		if p := &in.Parts[i]; p.Writes {
			most = max(most, viewBytes(p.Out))
		}
	}
	return most
}

// source reports whether member reader receives data from member from, or, in a barrier, a signal. It defines the data
// flow of each collective.
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

// gives reports whether any member receives data from member from.
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

// least returns the number of bytes that member m has to receive from its peers, whatever the algorithm.
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
