package planner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/plan"
)

// Wait describes a wait that Squeeze has inserted: the first uses of the buffer Behind wait until all uses of the
// buffer Before are done. The two buffers can then share bytes.
type Wait struct {
	Before, Behind int32 // buffers
	// Time is the predicted increase of the plan's run time that the wait causes.
	Time float64
}

// ErrBudget is returned by Squeeze if no set of waits that it finds makes the plan fit.
var ErrBudget = errors.New("no set of inserted waits reduces the memory enough")

const (
	// mostWaits is the maximum number of waits that are inserted; mostTried is the maximum number of pairs of buffers
	// whose cost is predicted for each of them.
	mostWaits = 512
	mostTried = 6
)

// Squeeze inserts waits into a plan until its arena is no larger than budget. For each wait, Squeeze examines some
// pairs of buffers that can be live at once, the largest pairs first. Squeeze selects the pair whose wait has the
// lowest predicted cost relative to the memory that it saves. The function time predicts the time of a run. The given
// plan is not changed. If waits are not enough, Squeeze returns the smallest plan that it has found and ErrBudget. If
// ctx ends, Squeeze returns the error of ctx.
func Squeeze(
	ctx context.Context, p *plan.Plan, budget int64, time func(*plan.Plan) (float64, error),
) (*plan.Plan, []Wait, error) {
	var waits []Wait
	if p.ArenaBytes <= budget {
		return p, nil, nil
	}
	now, err := time(p)
	if err != nil {
		return p, nil, err
	}
	u, err := usageOf(p)
	if err != nil {
		return p, nil, err
	}
	best, bestWaits := p, 0
	first, firstUsage, firstTime := p, u, now
	for len(waits) < mostWaits {
		s, err := squeezeOnce(ctx, p, u, now, time)
		if err != nil {
			return best, waits[:bestWaits], err
		}
		if s == nil {
			break
		}
		s.wait.Time = s.time - now
		waits, p, u, now = append(waits, s.wait), s.plan, s.usage, s.time
		if p.ArenaBytes < best.ArenaBytes {
			best, bestWaits = p, len(waits)
		}
		if p.ArenaBytes <= budget {
			break
		}
	}
	waits = waits[:bestWaits]
	fewer, fewerWaits, err := firstUsage.again(ctx, first, waits, firstTime, time)
	if err != nil {
		return best, waits, err
	}
	if fewer != nil && len(fewerWaits) < len(waits) && fewer.ArenaBytes <= max(budget, best.ArenaBytes) {
		best, waits = fewer, fewerWaits
	}
	if best.ArenaBytes > budget {
		err = fmt.Errorf("%w: with the inserted waits that save the most, the plan still needs %d bytes", ErrBudget,
			best.ArenaBytes)
	}
	return best, waits, err
}

// again is the second pass of Squeeze: it inserts the waits into the original plan, in reverse order, and omits waits
// that others imply. A wait can have become redundant, because a wait that was inserted later also orders its commands.
// If the plan cannot be laid out, the returned plan is nil.
func (u *usage) again(
	ctx context.Context, p *plan.Plan, waits []Wait, now float64, time func(*plan.Plan) (float64, error),
) (*plan.Plan, []Wait, error) {
	var kept []Wait
	for _, w := range slices.Backward(waits) {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		q, usage := u.ordered(p, w.Before, w.Behind)
		if q == nil {
			continue
		}
		t, err := time(q)
		if err != nil {
			return nil, nil, err
		}
		w.Time = t - now
		p, u, now, kept = q, usage, t, append(kept, w)
	}
	if len(kept) == 0 || layOut(p, u, new(Stats)) != nil {
		return nil, nil, nil
	}
	return p, kept, nil
}

// squeezed holds a plan with one additional wait.
type squeezed struct {
	plan  *plan.Plan
	usage *usage
	wait  Wait
	time  float64 // predicted time of a run
}

// squeezeOnce returns the plan with one additional wait, or nil if no wait can be added.
func squeezeOnce(
	ctx context.Context, p *plan.Plan, u *usage, now float64, time func(*plan.Plan) (float64, error),
) (best *squeezed, err error) {
	at := measure(p, u).BoundAt
	type pair struct {
		a, b  int32
		saves int64
	}
	var pairs []pair
	for _, a := range at {
		for _, b := range at {
			if u.inOrder(p, a, b) {
				pairs = append(pairs, pair{a, b, min(p.Buffers[a].Bytes, p.Buffers[b].Bytes)})
			}
		}
	}
	// Sort larger pairs first. Among pairs of equal size, those whose uses are closest in issue order are last,
	// because waits between them would stall the most.
	slices.SortStableFunc(pairs, func(x, y pair) int {
		far := func(z pair) int32 { return p.Buffers[z.b].First - p.Buffers[z.a].Last }
		return cmp.Or(cmp.Compare(y.saves, x.saves), cmp.Compare(far(y), far(x)))
	})
	price := 0.0
	tried := 0
	for _, x := range pairs {
		if tried == mostTried {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		q, usage := u.ordered(p, x.a, x.b)
		if q == nil {
			continue
		}
		tried++
		t, err := time(q)
		if err != nil {
			return nil, err
		}
		if c := (t - now) / float64(x.saves); best == nil || c < price {
			best, price = &squeezed{q, usage, Wait{Before: x.a, Behind: x.b}, t}, c
		}
	}
	if best != nil && layOut(best.plan, best.usage, new(Stats)) != nil {
		return nil, nil // more than the memory of any plan
	}
	return best, nil
}

// inOrder reports whether b may be ordered after a. At least one rank must have both buffers, and on every rank that
// has both, b's commands must be issued after a's.
func (u *usage) inOrder(p *plan.Plan, a, b int32) bool {
	if a == b || p.Buffers[a].Role == plan.RoleInput || p.Buffers[b].Role == plan.RoleInput {
		return false
	}
	both := false
	for i := range u.holders[a] {
		x := &u.holders[a][i]
		for k := range u.holders[b] {
			if y := &u.holders[b][k]; y.rank == x.rank {
				if both = true; x.end >= y.begin {
					return false
				}
			}
		}
	}
	return both
}

// ordered returns the plan in which each use of b waits for the uses of a on the same rank, and the plan's usage.
// The plan is not laid out yet. If events cannot order the uses, or if the plan would deadlock, ordered returns
// nil.
func (u *usage) ordered(p *plan.Plan, a, b int32) (*plan.Plan, *usage) {
	at := make([][]int32, len(p.Streams)) // by stream: its commands
	for i := range p.Cmds {
		s := p.Cmds[i].Stream
		at[s] = append(at[s], int32(i))
	}
	q := *p
	after, before := map[int32][]plan.Cmd{}, map[int32][]plan.Cmd{}
	for i := range u.holders[a] {
		x := &u.holders[a][i]
		k := slices.IndexFunc(u.holders[b], func(h holder) bool { return h.rank == x.rank })
		if k < 0 {
			continue
		}
		for e := x.uses; e >= 0; e = u.uses[e].next {
			for g := u.holders[b][k].uses; g >= 0; g = u.uses[g].next {
				from, to := &u.uses[e], &u.uses[g]
				if to.before[0].knows(from.stream, from.last) {
					continue
				}
				// The transfer of a peer may use the buffer, but an event cannot order streams of different ranks.
				if p.Streams[from.stream].Rank != p.Streams[to.stream].Rank {
					return nil, nil
				}
				last, first := at[from.stream][from.last-1], at[to.stream][to.first-1]
				record, wait := p.Cmds[last], p.Cmds[first]
				slot := int32(q.Events)
				q.Events++
				after[last] = append(after[last], plan.Cmd{Kind: plan.Record, Rank: record.Rank, Stream: record.Stream,
					Site: record.Site, Iter: record.Iter, Event: slot})
				before[first] = append(before[first],
					plan.Cmd{Kind: plan.WaitEvent, Rank: wait.Rank, Stream: wait.Stream,
						Site: wait.Site, Iter: wait.Iter, Event: slot})
			}
		}
	}
	if len(after) == 0 {
		return nil, nil
	}
	q.Cmds = make([]plan.Cmd, 0, len(p.Cmds)+2*len(after))
	for i := range p.Cmds {
		q.Cmds = append(q.Cmds, before[int32(i)]...)
		q.Cmds = append(q.Cmds, p.Cmds[i])
		q.Cmds = append(q.Cmds, after[int32(i)]...)
	}
	q.Buffers = slices.Clone(p.Buffers)
	for i := range q.Buffers {
		q.Buffers[i].First, q.Buffers[i].Last = -1, -1
	}
	again, err := simulate(new(world), &q, new(Stats))
	if err != nil {
		return nil, nil // the plan would deadlock
	}
	return &q, again
}
