package cuda

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
)

// fewLaunch completes the tuning of a kernel for few multiprocessors, by what was
// fastest with 8 blocks on two H200: as much on its way as shared memory holds.
func fewLaunch(tune device.Tuning, members int) (blocks, threads, unroll int) {
	threads, unroll = teamThreads, 1
	switch {
	case members == 2:
		unroll = 2
	case members > 4:
		threads /= 2
	}
	return cmp.Or(tune.Blocks, 8), cmp.Or(tune.Threads, threads), cmp.Or(tune.Unroll, unroll)
}

// fewFits refuses tunings that shared memory has no room for.
func (t *team) fewFits(tune device.Tuning) error {
	if _, threads, unroll := fewLaunch(tune, len(t.members)); kernels.FewStages(len(t.members), threads, unroll) < 2 {
		return fmt.Errorf("%w: %d threads with unroll %d take more shared memory than there is", device.ErrUnsupported, threads, unroll)
	}
	return nil
}

// fewRoom is room for blocks of which each has the shared memory of a
// multiprocessor, however few its threads.
func (t *team) fewRoom(threads int) int { return t.room(max(threads, teamThreads)) }

// few is for what few blocks of members read from each other.
func (t *team) few(tune device.Tuning, r *kernels.AllReduce) error {
	shareOut(r, int64(len(t.members)))
	tune.Blocks, r.Threads, r.Unroll = fewLaunch(tune, len(t.members))
	r.Blocks = t.grid(tune, max(r.Threads, teamThreads), ceil(r.Share, int64(r.Threads)))
	return t.flagged(r, 2*kernels.BlocksMost)
}
