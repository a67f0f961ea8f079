package cuda

import (
	"fmt"
	"math"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// spares refuses types of which any bits may be data: lines that are their own flags
// need a word that is none.
func spares(dt ir.DType) error {
	if !kernels.Spares(dt) {
		return fmt.Errorf("%w: lines of %s, of which any bits may be data, cannot be their own flags", device.ErrUnsupported, dt)
	}
	return nil
}

// inLines is for lines that are their own flags, as many for each thread of a warp as
// unroll says.
func (a reduceAlgorithm) inLines(t *team, tune device.Tuning, r *kernels.AllReduce) error {
	rows := ceil(ceil(r.Count*r.DType.Size(), 16), kernels.RowsPacks(r.Unroll))
	var times int64
	r.Share, times = a.shared(rows, int64(len(t.members)), 1)
	r.Blocks = t.grid(tune, r.Threads, r.Share)
	return t.resting(r, times*r.Share*kernels.RowsPacks(r.Unroll)*16)
}

// resting reserves two halves of at least so many bytes each that rest full of what is
// never sent. No epochs are in them, which kernels would have to clear where the numbers
// of launches wrap.
func (t *team) resting(r *kernels.AllReduce, half int64) error {
	area, err := t.reserveOf("lamport", 2*half, kernels.Unsent)
	if err != nil {
		return err
	}
	r.Data, r.Half = area.at, area.bytes/2
	return nil
}

// lamportByHost is hostPart of one shots of two H200. Nobody meets at the end, so it is
// worth it from less on than byHostMemory; a larger part than the bus carries in time
// costs much.
var lamportByHost = func(bytes int64) hostPart {
	if bytes < 24<<20 {
		return hostPart{40, 8, 16}
	}
	return hostPart{80, 8, 16}
}

// lamportHostable returns nil, or why no part of an all_reduce of lines that are their
// own flags can go by way of host memory.
func (t *team) lamportHostable(r *kernels.AllReduce, c *collective) error {
	if len(t.members) != 2 {
		return fmt.Errorf("%w: %d members; it is for two", device.ErrUnsupported, len(t.members))
	}
	return t.hostable(r, c)
}

// linesByHost is inLines of one shot for what does not go by way of host memory, of
// which, too, there are two halves.
func (a reduceAlgorithm) linesByHost(t *team, tune device.Tuning, r *kernels.AllReduce) error {
	bytes, rows := r.Count*r.DType.Size(), kernels.RowsPacks(r.Unroll)
	part := lamportByHost(bytes)
	aside := part.writers + part.readers
	if int64(t.grid(tune, r.Threads, math.MaxInt64)) < 3*aside { // too few would be left for the link
		r.Kind = kernels.AllReduceLamport
		return a.inLines(t, tune, r)
	}
	r.Writers, r.Readers = part.writers, part.readers
	r.Share = ceil(bytes, 16) * (1000 - part.permille) / 1000 / rows
	r.Split = r.Share * rows
	aboard := ceil(bytes, 16) - r.Split
	r.Blocks = t.grid(tune, r.Threads, r.Share+aside)
	area, err := t.pinned("halves of host memory", 2*aboard*16)
	if err != nil {
		return err
	}
	r.Host, r.HostHalf = area.at, area.bytes/2
	if err := t.flagged(r, kernels.HostChunks(aboard, r.Threads)+kernels.BlocksMost); err != nil {
		return err
	}
	return t.resting(r, 2*r.Split*16)
}
