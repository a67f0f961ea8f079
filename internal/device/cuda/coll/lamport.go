package coll

import (
	"fmt"
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// spares returns nil for element types that have a bit pattern that is no valid data, and an error for the others. The
// lamport algorithms need such a bit pattern, to fill memory in which no data has arrived.
func spares(dt ir.DType) error {
	if !kernels.Spares(dt) {
		return fmt.Errorf("%w: in %s any bits may be data, so none can mark memory without data", device.ErrUnsupported, dt)
	}
	return nil
}

// planLamport plans an all_reduce in which arrived data is recognized because it differs from the initial contents of
// the memory. Each thread of a warp handles r.Unroll lines.
func (a ReduceAlgorithm) planLamport(p *Plan, t Team, tune device.Tuning, r *kernels.AllReduce) {
	bytes := r.Count * r.DType.Size()
	rows := ceil(ceil(bytes, 16), kernels.RowsPacks(r.Unroll))
	var times int64
	r.Share, times = a.shared(rows, int64(t.Members()), 1)
	r.Blocks = grid(t, tune, r.Threads, r.Share)
	if is[kernels.AllReduceLamportx2](a) {
		r.By = kernels.AllReduceLamportx2{Throttled: bytes >= throttleFrom && bytes < throttleTo}
	}
	p.rest(r, times*r.Share*kernels.RowsPacks(r.Unroll)*16)
}

// rest requests r's memory for received data. The memory has two halves, which initially contain a bit pattern that is
// never sent.
func (p *Plan) rest(r *kernels.AllReduce, half int64) {
	p.resting(half, func(a Area) { r.Data, r.Half = a.At, a.half() })
}

// For operands from throttleFrom to throttleTo bytes, one thread of a warp polls for all of its threads at first. At 4
// MiB on four H200 this is faster; 8 MiB were not measured.
const throttleFrom, throttleTo = 7 << 19, 6 << 20

// lamportByHost returns the part of the data that the lamport algorithms transfer through host memory. Measured were
// parts of the operands on two H200, and parts of the results on four; these values were the fastest. A part that is
// larger than the bus can transfer in the same time is much slower.
func lamportByHost(bytes int64, members int) HostPart {
	switch small := bytes < 24<<20; {
	case members == 2 && small:
		return HostPart{60, 12, 16}
	case members == 2:
		return HostPart{80, 8, 16}
	case small:
		return HostPart{120, 12, 24}
	}
	return HostPart{170, 8, 16}
}

// lamportHostable returns nil if a part of an all_reduce by a lamport algorithm can be transferred through host memory,
// and otherwise an error with the reason why not.
func lamportHostable(t Team, r *kernels.AllReduce, c *Collective) error {
	if t.Members() == 2 {
		return hostable(t, r, c)
	}
	if lamportResults(t, r) == 0 {
		return fmt.Errorf("%w: %d bytes are too few to divide", device.ErrUnsupported, r.Count*r.DType.Size())
	}
	return nil
}

// lamportResults is called for more than two members. It sets the number of rows that each member reduces, and returns
// the number of chunks of results that are transferred through host memory. A chunk contains the rows that one thread
// block handles together.
func lamportResults(t Team, r *kernels.AllReduce) int64 {
	bytes, members := r.Count*r.DType.Size(), int64(len(r.In))
	r.Share = ceil(ceil(ceil(bytes, 16), kernels.RowsPacks(r.Unroll)), members)
	return r.Share * t.HostParts().Lamport(bytes, len(r.In)).Permille / 1000 / int64(r.Threads/32)
}

// planLamportHost is planLamport with a part of the data transferred through host memory. With two members the kernel
// exchanges whole operands, and a part of the operands goes through host memory. With more members the kernel reduces
// and then distributes shares, and a part of the results goes through host memory.
func (a ReduceAlgorithm) planLamportHost(p *Plan, t Team, tune device.Tuning, r *kernels.AllReduce) {
	bytes, rows, members := r.Count*r.DType.Size(), kernels.RowsPacks(r.Unroll), int64(t.Members())
	part := t.HostParts().Lamport(bytes, t.Members())
	aside := part.Writers + part.Readers
	if int64(grid(t, tune, r.Threads, math.MaxInt64)) < 3*aside { // too few blocks would remain for transfers over the link
		if a.kind, a.shots = (kernels.AllReduceLamport{}), 1; members > 2 {
			a.kind, a.shots = kernels.AllReduceLamportx2{}, 2
		}
		r.By = a.kind
		a.planLamport(p, t, tune, r)
		return
	}
	host := kernels.ByHost{Writers: part.Writers, Readers: part.Readers}
	var told int64 // number of flags for transfers through host memory
	if members == 2 {
		r.Share = ceil(bytes, 16) * (1000 - part.Permille) / 1000 / rows
		host.Split = r.Share * rows
		aboard := ceil(bytes, 16) - host.Split
		told = kernels.HostChunks(aboard, r.Threads)
		p.pinned("halves of host memory", 2*aboard*16, func(a Area) {
			host.Host = a.At
			r.By = kernels.AllReduceLamportHost{ByHost: host, Half: a.half()}
		})
	} else {
		host.Split = lamportResults(t, r)
		told = host.Split
		p.hostMemory(host.Split*int64(r.Threads/32)*rows*16, func(a Area) {
			host.Host = a.At
			r.By = kernels.AllReduceLamportResults{ByHost: host}
		})
	}
	r.Blocks = grid(t, tune, r.Threads, r.Share+aside)
	flagged(p, t, r, told+kernels.BlocksMost)
	p.rest(r, members*r.Share*rows*16)
}
