package cuda

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
)

var fewAlgorithms = []namedAlgorithm{{"few-copy", fewAlgorithm{reduceAlgorithm{name: "few-copy", kind: kernels.AllReduceFew, unrolls: []int{1, 2, 4}, direct: true}}}}

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

// fewAlgorithm is an all_reduce in two shots: a kernel adds up the member's share,
// and copy engines take it to the others.
type fewAlgorithm struct{ reduceAlgorithm }

func (a fewAlgorithm) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	r := a.request(tune, c)
	if err := t.few(tune, r); err != nil {
		return nil, err
	}
	r.Kind = kernels.ReduceShare
	flags, err := t.halves("flags of moves", kernels.MoveFlagBytes)
	if err != nil {
		return nil, err
	}
	steps := make([][]step, len(t.members))
	for i, m := range t.members {
		own, gather := shareOf(r, i)
		sum, err := m.kernel(own.Meeting(i))
		if err != nil {
			return nil, err
		}
		push, err := m.pushes(&gather)
		if err != nil {
			return nil, err
		}
		meet, err := m.move(&kernels.Move{Kind: kernels.MoveMeet, Members: len(t.members), Me: i, Run: 1, Blocks: 1, Threads: 32, Unroll: 1}, flags)
		if err != nil {
			return nil, err
		}
		steps[i] = []step{sum, push, meet}
	}
	return steps, nil
}

// shareOf is how a member adds up its share of r, and gives it to the others; it
// may be cut short, or nothing.
func shareOf(r *kernels.AllReduce, me int) (own kernels.AllReduce, gather kernels.Move) {
	own, bytes := *r, r.Count*r.DType.Size()
	from := min(int64(me)*r.Share*16, bytes)
	to := min(from+r.Share*16, bytes)
	own.Count = (to - from) / r.DType.Size()
	own.In, own.Out = nil, nil
	gather = kernels.Move{Members: len(r.In), Me: me, Run: to - from}
	for q := range r.In {
		own.In, own.Out = append(own.In, r.In[q]+nvlib.Ptr(from)), append(own.Out, r.Out[q]+nvlib.Ptr(from))
		gather.Dst[q] = own.Out[q]
		if q != me && to > from {
			gather.To |= 1 << q
		}
	}
	for q := range r.In {
		gather.Src[q] = own.Out[me]
	}
	return own, gather
}
