package coll

import (
	"fmt"
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// operandsByHost is the part of the operands that goes through host memory if there are two members. It was the fastest
// on two H200. The bus from an H200 to its host transfers 50 GB/s in one direction, or 39 GB/s in each of both
// directions.
var operandsByHost = HostPart{80, 8, 16}

// The number of packs that are sent over the link is a multiple of hostGrain.
const hostGrain = 16

// hostSplit returns the index of the first pack of 16 bytes that is transferred through host memory; 0 if the data is
// too small for that.
func hostSplit(t Team, bytes int64) int64 {
	packs := ceil(bytes, 16)
	split := packs * (1000 - t.HostParts().Operands.Permille) / 1000 / hostGrain * hostGrain
	if split == packs {
		return 0
	}
	return split
}

// resultsByHost returns the part of the results that goes through host memory if there are more than two members. The
// values were the fastest on four H200. Each member reads three times as much as it writes, and it can read only after
// the first results are computed. A small all_reduce therefore uses a smaller part.
func resultsByHost(bytes int64) HostPart {
	permille := max(60, 195-1500<<20/max(bytes, 1))
	if bytes < 24<<20 {
		return HostPart{permille, 12, 24}
	}
	return HostPart{permille, 8, 16}
}

// hostResults returns the number of packs of a share that are transferred through host memory, a multiple of a chunk.
func hostResults(t Team, r *kernels.AllReduce) int64 {
	ShareOut(r, int64(len(r.In)))
	chunk := int64(r.Threads * r.Unroll)
	return r.Share * t.HostParts().Results(r.Count*r.DType.Size()).Permille / 1000 / chunk * chunk
}

// hostable returns nil if a part of r can be transferred through host memory, and otherwise an error with the reason
// why not. With two members, the part is one of the operands. A result must then not overlap its own operand, because a
// thread block could overwrite data that another block has not yet sent. With more members, the part is one of the
// results.
func hostable(t Team, r *kernels.AllReduce, c *Collective) error {
	bytes := c.Operands[0].In.Bytes()
	if t.Members() > 2 && hostResults(t, r) == 0 || t.Members() == 2 && hostSplit(t, bytes) == 0 {
		return fmt.Errorf("%w: %d bytes are too few to divide", device.ErrUnsupported, bytes)
	}
	if t.Members() > 2 {
		return nil
	}
	for i := range c.Operands {
		if p := &c.Operands[i]; p.In.Addr == p.Out.Addr {
			return fmt.Errorf("%w: member %d: the result lies over the operand", device.ErrUnsupported, i)
		}
	}
	return nil
}

// planPushHost is like planPush, and in addition requests host memory and chooses the thread blocks that transfer
// through it.
func planPushHost(p *Plan, t Team, tune device.Tuning, r *kernels.AllReduce) {
	part := t.HostParts().Operands
	if t.Members() > 2 {
		part = t.HostParts().Results(r.Count * r.DType.Size())
	}
	aside := part.Writers + part.Readers
	if int64(grid(t, tune, r.Threads, math.MaxInt64)) < 3*aside { // too few blocks would remain for transfers over the link
		r.By = kernels.AllReducePush{}
		planPush(p, t, tune, r)
		return
	}
	host := kernels.ByHost{Writers: part.Writers, Readers: part.Readers}
	chunk, members := int64(r.Threads*r.Unroll), int64(t.Members())
	var aboard, told int64 // number of packs that are transferred through host memory, and number of flags for them
	if members == 2 {
		bytes := r.Count * r.DType.Size()
		host.Split = hostSplit(t, bytes)
		r.Share = ceil(ceil(host.Split, members), 8) * 8
		aboard = ceil(bytes, 16) - host.Split
		told = kernels.HostChunks(aboard, r.Threads)
	} else {
		host.Split = hostResults(t, r)
		aboard, told = host.Split, host.Split/chunk
	}
	chunks := ceil(r.Share, chunk)
	r.Blocks = grid(t, tune, r.Threads, chunks+aside)
	p.reserve("staging", members*r.Share*16, func(a Area) { r.Data = a.At })
	p.hostMemory(aboard*16, func(a Area) {
		if host.Host = a.At; members == 2 {
			r.By = kernels.AllReduceHost{ByHost: host}
		} else {
			r.By = kernels.AllReduceResults{ByHost: host}
		}
	})
	flagged(p, t, r, chunks+told+kernels.BlocksMost)
}
