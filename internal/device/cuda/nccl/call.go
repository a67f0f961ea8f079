package nccl

import (
	"hocket.example/hocket/internal/device/cuda/coll"
	"hocket.example/hocket/internal/device/cuda/relocate"
	"hocket.example/hocket/internal/nvlib"
)

// Call is a prepared call of NCCL.
type Call struct {
	Group  *Group
	Team   *Team
	Work   *coll.NCCLWork
	Shares []Share // by member
}

// Issue issues the shares of this process's members on their streams.
func (x *Call) Issue() error {
	return x.Group.Issue(x.Team, x.Work, func(i int) (coll.NCCLCall, bool) { return x.Shares[i].Call, x.Work.TakesPart(i) })
}

// IssueAt issues the share of one member on a stream of the caller. The argument operands holds the addresses of the
// operands that have a placeholder address; see relocate.At.
func (x *Call) IssueAt(member int, stream nvlib.Stream, operands []uintptr, tails []int64) error {
	at := &x.Team.Members[member].Stream
	defer func(own nvlib.Stream) { *at = own }(*at)
	*at = stream
	call := x.Shares[member].Call
	call.In, call.Out = relocate.At(call.In, operands, tails), relocate.At(call.Out, operands, tails)
	return x.Group.Issue(x.Team, x.Work, func(i int) (coll.NCCLCall, bool) { return call, i == member && x.Work.TakesPart(i) })
}
