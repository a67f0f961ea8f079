package coll

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// SMLimitedLaunch sets the threads and the unrolling of an SM-limited kernel, where the tuning leaves them open, to the
// values that were fastest with 8 blocks on two H200. The values lead to as many loads in flight as fit into shared
// memory.
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

// smLimitedFits returns an error if a tuning needs too much shared memory.
func smLimitedFits(t Team, tune device.Tuning) error {
	if _, threads, unroll := SMLimitedLaunch(tune, t.Members()); kernels.SMLimitedStages(t.BlockShared(), t.Members(), threads, unroll) < 2 {
		return fmt.Errorf("%w: %d threads with unroll %d take more shared memory than there is", device.ErrUnsupported, threads, unroll)
	}
	return nil
}

// smLimitedRoom returns how many thread blocks of an SM-limited kernel can run at once. Each block uses all shared
// memory of a multiprocessor, whatever its number of threads.
func smLimitedRoom(t Team, threads int) int { return t.Room(max(threads, TeamThreads)) }

// smLimitedByHost returns the part of the results, in thousandths, that members exchange through host memory, and the
// number of thread blocks of each member that read from host memory. The values were the fastest with 8 blocks on four
// H200. If there are more blocks, those that read host memory are too slow.
func smLimitedByHost(members int, bytes int64) (permille, readers int64) {
	switch {
	case members != 4 || bytes < 24<<20:
		return 0, 0
	case bytes < 48<<20:
		return 110, 2
	}
	return 170, 2
}

// planSMLimited plans an SM-limited kernel in which members read each other's operands.
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

// SMLimitedTiles returns how the tiles of r's results are split between the link and host memory. Every thread block
// sends the same number of tiles through host memory. These tiles have full size on all members, including the last
// one, whose share of the results may be smaller. Each thread block writes its last such tile early enough to be read
// before the launch ends.
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
