// Package comm runs collectives and paired sends and receives as schedules
// over device streams: copies, reduce launches, signals and counter waits.
//
// A Channel is the sequence of collectives that one team issues on one stream
// of each member. An Algorithm turns each of them into a list of steps per
// member; everything is resolved when the channel is opened, so that issuing
// is a walk over a slice. Nothing is decided at issue but how far the counters
// have come, which follows from the number of the run.
package comm

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Instance is one collective: what all members of a team do together. Members
// are named by their index in the team.
type Instance struct {
	Op    ir.Op  // a collective, or ir.OpBarrier
	Red   ir.Red // all_reduce, reduce_scatter, reduce
	Root  int    // broadcast, reduce, gather, scatter
	Axis  int    // dimension joined or cut; all_to_all: joined
	Split int    // all_to_all: dimension cut
	Algo  string // pins an algorithm by name; empty lets the dispatch choose
	Parts []Part // one for each member
}

// Part is what one member brings to an Instance. In and Out may be the same
// memory or overlap in any way.
type Part struct {
	In, Out       device.View
	Reads, Writes bool // In, Out is there
	To, From      int  // permute: the members that get In and give Out; -1 for none
}

// Member is one place of a team: a rank and the stream its share runs on.
type Member struct {
	Rank   int
	Stream device.Stream
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
