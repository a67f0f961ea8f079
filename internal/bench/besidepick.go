package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// rival is a way with what was measured of it.
type rival struct {
	*contest.Entrant
	row   int // among the ways of the collective
	alone []float64
	// By multiprocessors.
	slow, rates, covered map[int][]float64
}

// collective measures one collective.
func (b *besides) collective(ctx context.Context, c contest.Call) (*BesideCollective, error) {
	row := &BesideCollective{Op: c.Op.String(), Bytes: c.Bytes}
	var list []*rival
	for _, n := range b.ctas() {
		for _, tunings := range b.contests(c, n) {
			w := BesideWay{CTAs: n}
			r, err := b.fastest(ctx, c, tunings, &row.Best, &w)
			if err != nil {
				return nil, err
			}
			switch {
			case r != nil:
				r.row = len(row.Ways)
				w.Tuning, list = r.Way.Tuning, append(list, r)
			case len(w.Dropped) > 0:
				w.Refused = "all that take it so fail or are wrong"
			default:
				w.Refused = "no algorithm takes it so"
			}
			row.Ways = append(row.Ways, w)
		}
	}
	for range b.Rounds {
		if err := b.turn(ctx, list); err != nil {
			return nil, err
		}
	}
	for _, r := range list {
		w := &row.Ways[r.row]
		if err := b.conclude(ctx, r, w); err != nil {
			return nil, err
		}
		row.Best = max(row.Best, w.Alone.Median)
		if err := r.Leave(); err != nil {
			return nil, err
		}
	}
	for i := range row.Ways {
		row.Ways[i].OfBest = row.Ways[i].Alone.Median / row.Best
	}
	return row, nil
}

// turn measures everything once.
func (b *besides) turn(ctx context.Context, list []*rival) error {
	for _, sms := range append([]int{0}, slices.DeleteFunc(slices.Clone(b.targets()), func(n int) bool { return n == 0 })...) {
		us, err := b.timeProduct(ctx, sms)
		if err != nil {
			return err
		}
		b.gemm[sms] = append(b.gemm[sms], us)
		if sms == 0 {
			b.round = us
		}
	}
	for _, r := range list {
		us, err := b.timeCall(ctx, r.Entrant, r.Chains.Eager)
		if err != nil {
			return err
		}
		r.alone = append(r.alone, b.rate(r.Call, us))
		for _, sms := range b.targets() {
			product, collective, covered, err := b.timeBoth(ctx, r.Entrant, sms, us)
			if err != nil {
				return fmt.Errorf("%s beside a product for %d multiprocessors: %w", contest.TuningText(r.Way.Tuning), sms, err)
			}
			r.slow[sms] = append(r.slow[sms], product/b.round)
			r.rates[sms] = append(r.rates[sms], b.rate(r.Call, collective))
			r.covered[sms] = append(r.covered[sms], covered)
		}
	}
	return nil
}

// conclude fills in a way's figures, and has its results beside the product
// checked.
func (b *besides) conclude(ctx context.Context, r *rival, w *BesideWay) error {
	w.Alone = contest.FigureOf(r.alone)
	for _, sms := range b.targets() {
		w.Pairs = append(w.Pairs, BesidePair{SMs: sms, Slowdown: contest.FigureOf(r.slow[sms]), Rate: contest.FigureOf(r.rates[sms]), Covered: slices.Min(r.covered[sms])})
	}
	var err error
	w.Wrong, w.Checked, err = b.Check(ctx, r.Entrant, func() error {
		_, _, err := b.together(r.Entrant, 0, 1)
		return err
	})
	return err
}

// ctas lists numbers of blocks.
func (b *besides) ctas() []int {
	if b.CTAs != nil {
		return b.CTAs
	}
	return []int{0, 4, 8, 16, 32, -1}
}

// fastest returns the tuning that is fastest alone, nil where none takes the call,
// raises best to its rate, and notes in w what was left out though it takes the call.
func (b *besides) fastest(ctx context.Context, c contest.Call, list []device.Tuning, best *float64, w *BesideWay) (*rival, error) {
	var found *contest.Entrant
	least := 0.0
	for _, t := range list {
		e, err := b.Enter(c, b.Dispatch, t, t.Algo != "")
		if err != nil && !errors.Is(err, device.ErrUnsupported) && b.Ended(ctx) {
			return nil, fmt.Errorf("%s: %w", contest.TuningText(t), err)
		}
		if err != nil {
			if !errors.Is(err, device.ErrUnsupported) {
				w.Dropped = append(w.Dropped, fmt.Sprintf("%s: %v", contest.TuningText(t), err))
			}
			continue
		}
		us, wrong, err := b.tried(ctx, e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", contest.TuningText(e.Way.Tuning), err)
		}
		if wrong > 0 {
			w.Dropped = append(w.Dropped, fmt.Sprintf("%s: %d elements of its result are wrong", contest.TuningText(e.Way.Tuning), wrong))
		}
		if us > 0 && (found == nil || us < least) {
			found, e, least = e, found, us
		}
		if e != nil {
			if err := e.Leave(); err != nil {
				return nil, err
			}
		}
	}
	if found == nil {
		return nil, nil
	}
	*best = max(*best, b.rate(c, least))
	return &rival{Entrant: found, slow: map[int][]float64{}, rates: map[int][]float64{}, covered: map[int][]float64{}}, nil
}

// tried returns microseconds of a call alone, the better of two tries; 0, and how
// many elements are wrong, where any are.
func (b *besides) tried(ctx context.Context, e *contest.Entrant) (us float64, wrong int64, err error) {
	wrong, _, err = b.Check(ctx, e, func() error { return b.Run(e, 1) })
	if err != nil || wrong > 0 {
		return 0, wrong, err
	}
	one, err := b.timeCall(ctx, e, 3)
	if err != nil {
		return 0, 0, err
	}
	two, err := b.timeCall(ctx, e, 3)
	return min(one, two), 0, err
}

// contests lists the tunings of so many blocks, of each list of which the one
// that is fastest alone is measured. Copy engines are measured each way: between
// kernels of one block in which members meet, which wait for a multiprocessor, and
// between events.
func (b *besides) contests(c contest.Call, ctas int) [][]device.Tuning {
	if ctas != 0 {
		return [][]device.Tuning{b.candidates(ctas)}
	}
	if c.Op == ir.OpReduceScatter || c.Op == ir.OpAllReduce {
		return [][]device.Tuning{nil} // something has to add up
	}
	var lists [][]device.Tuning
	for _, name := range b.Dispatch.ByEngines(c.Op) {
		lists = append(lists, contest.NamesOnly([]string{name}))
	}
	return lists
}

// candidates lists the tunings of so many blocks.
func (b *besides) candidates(ctas int) []device.Tuning {
	own := slices.DeleteFunc(b.Dispatch.Algorithms(), func(n string) bool {
		return slices.Contains(comm.Schedules(), n) || b.Dispatch.Info(n).Library || b.Algorithms != nil && !slices.Contains(b.Algorithms, n)
	})
	if ctas < 0 {
		return append([]device.Tuning{{}}, contest.NamesOnly(append(own, b.Dispatch.Libraries()...))...)
	}
	var list []device.Tuning
	for _, n := range own {
		for _, threads := range []int{0, 512, 1024} {
			for _, unroll := range []int{0, 1, 2, 8} {
				list = append(list, device.Tuning{Algo: n, Blocks: ctas, Threads: threads, Unroll: unroll})
			}
		}
	}
	return list
}
