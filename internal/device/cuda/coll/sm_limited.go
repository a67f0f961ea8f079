package coll

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// SMLimitedLaunch completes the tuning of a kernel for few multiprocessors, by what was
// fastest with 8 blocks on two H200: as much on its way as shared memory holds.
func SMLimitedLaunch(tune device.Tuning, members int) (blocks, threads, unroll int) {
	threads, unroll = TeamThreads, 1
	switch {
	case members == 2:
		unroll = 2
	case members > 4:
		threads /= 2
	}
	return cmp.Or(tune.Blocks, 8), cmp.Or(tune.Threads, threads), cmp.Or(tune.Unroll, unroll)
}

// smLimitedFits refuses tunings that shared memory has no room for.
func smLimitedFits(t Team, tune device.Tuning) error {
	if _, threads, unroll := SMLimitedLaunch(tune, t.Members()); kernels.SMLimitedStages(t.BlockShared(), t.Members(), threads, unroll) < 2 {
		return fmt.Errorf("%w: %d threads with unroll %d take more shared memory than there is", device.ErrUnsupported, threads, unroll)
	}
	return nil
}

// smLimitedRoom is room for blocks of which each has the shared memory of a
// multiprocessor, however few its threads.
func smLimitedRoom(t Team, threads int) int { return t.Room(max(threads, TeamThreads)) }

// smLimitedByHost is how much of their results, in thousandths, so many members exchange by
// way of host memory, and how many blocks of each read there: what was fastest with 8
// blocks on four H200. With more, those that read fall behind.
func smLimitedByHost(members int, bytes int64) (permille, readers int64) {
	switch {
	case members != 4 || bytes < 24<<20:
		return 0, 0
	case bytes < 48<<20:
		return 110, 2
	}
	return 170, 2
}

// planSMLimited is for what few blocks of members read from each other.
func planSMLimited(p *Plan, t Team, tune device.Tuning, r *kernels.AllReduce) {
	ShareOut(r, int64(t.Members()))
	tune.Blocks, r.Threads, r.Unroll = SMLimitedLaunch(tune, t.Members())
	r.Blocks = grid(t, tune, max(r.Threads, TeamThreads), ceil(r.Share, int64(r.Threads)))
	by := kernels.AllReduceSMLimited{Shared: t.BlockShared(), ByHost: SMLimitedTiles(t.HostParts(), r)}
	r.By = by
	if by.Split > 0 {
		bytes := by.Split * (int64(r.Blocks) - by.Readers) * kernels.SMLimitedTile(r.Threads) * 16
		p.hostMemory(bytes, func(a Area) {
			by.Host = a.At
			r.By = by
		})
	}
	flagged(p, t, r, by.Slots(r.Blocks))
}

// SMLimitedTiles returns what of r's results goes by way of host memory: as many tiles of
// each block, all of them whole on the last member too, whose share may be less than
// others', and the last of them early enough to be read before the end.
func SMLimitedTiles(parts HostParts, r *kernels.AllReduce) (host kernels.ByHost) {
	members, bytes := int64(len(r.In)), r.Count*r.DType.Size()
	permille, readers := parts.SMLimited(len(r.In), bytes)
	blocks := int64(r.Blocks) - readers
	if readers == 0 || blocks < 2*readers || r.Threads < TeamThreads { // smaller blocks read too slowly
		return host
	}
	tiles := max(0, min(r.Share, bytes/16-(members-1)*r.Share)) / kernels.SMLimitedTile(r.Threads) / blocks
	if split := tiles * permille / 1000; split > 0 {
		host.Split, host.Writers, host.Readers = split, max(1, tiles*85/100/split), readers
	}
	return host
}
