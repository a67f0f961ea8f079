package bench

import (
	"context"
	"slices"

	"hocket.example/hocket/internal/contest"
)

// gemms is how many products run in a measurement.
const gemms = 6

// microsOf waits and returns what lies in brackets: of each rank, from the first
// bracket's begin to the last one's end, over their number.
func (b *besides) microsOf(ctx context.Context, ids [][]int64) ([]float64, error) {
	spans, err := b.Marks.Spans(ctx, b.World, ids)
	if err != nil {
		return nil, err
	}
	var out []float64
	for _, list := range spans {
		out = append(out, float64(list[len(list)-1][1]-list[0][0])/1e3/float64(len(list)))
	}
	return out, nil
}

// multiply issues a product on each rank.
func (b *besides) multiply(sms int, ids [][]int64) error {
	for r, s := range b.main {
		id, err := b.Marks.Around(s, func() error { return s.Launch(b.products[sms][r]) })
		if err != nil {
			return err
		}
		ids[r] = append(ids[r], id)
	}
	return nil
}

// exchange issues a call on each rank.
func (b *besides) exchange(e *contest.Entrant, ids [][]int64) error {
	t := e.Done
	e.Done++
	for m, x := range b.Members {
		id, err := b.Marks.Around(x.Stream, func() error { return e.Channel.Issue(0, m, t) })
		if err != nil {
			return err
		}
		ids[m] = append(ids[m], id)
	}
	return nil
}

// timeProduct measures the product alone.
func (b *besides) timeProduct(ctx context.Context, sms int) (float64, error) {
	ids := make([][]int64, b.Ranks)
	for range gemms {
		if err := b.multiply(sms, ids); err != nil {
			return 0, err
		}
	}
	for r := range ids {
		ids[r] = ids[r][1:] // the first one warms up
	}
	us, err := b.microsOf(ctx, ids)
	if err != nil {
		return 0, err
	}
	return slices.Max(us), nil
}

// timeCall measures the collective alone.
func (b *besides) timeCall(ctx context.Context, e *contest.Entrant, count int) (float64, error) {
	ids := make([][]int64, b.Ranks)
	for range count + 1 {
		if err := b.exchange(e, ids); err != nil {
			return 0, err
		}
	}
	for r := range ids {
		ids[r] = ids[r][1:]
	}
	us, err := b.microsOf(ctx, ids)
	if err != nil {
		return 0, err
	}
	return slices.Max(us), nil
}

// rate is GB/s of a link.
func (b *besides) rate(c contest.Call, us float64) float64 {
	return wireBytesOf(c, b.Ranks) / max(us, 0.001) / 1e3
}

// together issues products, and calls, so many for each. The first call precedes
// them; the others come last, so that the host keeps no product waiting.
func (b *besides) together(e *contest.Entrant, sms int, calls float64) (main, side [][]int64, err error) {
	main, side = make([][]int64, b.Ranks), make([][]int64, b.Ranks)
	if err := b.exchange(e, side); err != nil {
		return nil, nil, err
	}
	for range gemms {
		if err := b.multiply(sms, main); err != nil {
			return nil, nil, err
		}
	}
	for range int(calls*gemms) + 2 {
		if err := b.exchange(e, side); err != nil {
			return nil, nil, err
		}
	}
	return main, side, nil
}

// timeBoth measures the product beside the collective, and that beside it:
// microseconds of each, and the part of the products' time in which collectives
// ran. It begins with as many collectives as would last alone, and takes more
// until they outlast the products.
func (b *besides) timeBoth(ctx context.Context, e *contest.Entrant, sms int, alone float64) (product, collective, covered float64, err error) {
	calls := 1.5 * b.round / alone
	for range 4 {
		main, side, err := b.together(e, sms, calls)
		if err != nil {
			return 0, 0, 0, err
		}
		spans, err := b.Marks.Spans(ctx, b.World, main, side)
		if err != nil {
			return 0, 0, 0, err
		}
		product, collective, covered = 0, 0, 1
		for r := range b.Ranks {
			p, c := spans[r], spans[b.Ranks+r]
			product = max(product, meanWithin(p[1:], c))
			collective = max(collective, meanWithin(c, p))
			covered = min(covered, cover(p[1:], c))
		}
		if covered == 1 {
			break
		}
		calls = 2*calls + 2
	}
	return product, collective, covered, nil
}

// meanWithin returns microseconds a span of those that lie within the time of the
// others, or of all where none does.
func meanWithin(list, others [][2]int64) float64 {
	lo, hi := others[0][0], others[len(others)-1][1]
	in := slices.DeleteFunc(slices.Clone(list), func(s [2]int64) bool { return s[0] < lo || s[1] > hi })
	if len(in) == 0 {
		in = list
	}
	return float64(in[len(in)-1][1]-in[0][0]) / 1e3 / float64(len(in))
}

// cover returns the part of the time of list that falls into that of the others.
func cover(list, others [][2]int64) float64 {
	lo, hi := list[0][0], list[len(list)-1][1]
	in := min(hi, others[len(others)-1][1]) - max(lo, others[0][0])
	if hi <= lo || in <= 0 {
		return 0
	}
	return float64(in) / float64(hi-lo)
}
