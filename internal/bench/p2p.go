package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
)

// Transfer is one kind of copy between all pairs of ranks.
type Transfer struct {
	Bytes int64 `json:"bytes"`
	// Form is "put", where the source's stream copies, or "get", where the
	// destination's does.
	Form string `json:"form"`
	// Issue is "eager", or "graph" for replays of captured copies.
	Issue string `json:"issue"`
	// OneWay[s][d] is GB/s from rank s to rank d; zeros on the diagonal.
	OneWay [][]float64 `json:"one_way_gbps"`
	// TwoWay[s][d], s < d, is GB/s of both ways together; nil for graphs.
	TwoWay [][]float64 `json:"two_way_gbps,omitempty"`
	// Slowest and Fastest are the extremes of OneWay, Time the microseconds of a
	// copy of the slowest pair, Spread the largest spread of a pair's GB/s.
	Slowest float64 `json:"slowest_gbps"`
	Fastest float64 `json:"fastest_gbps"`
	Time    float64 `json:"slowest_us"`
	Spread  float64 `json:"spread_gbps"`
}

// link is a world with a buffer to copy from and one to copy to on each rank.
type link struct {
	world    device.World
	marks    *contest.Marks
	streams  []device.Stream
	src, dst []device.Memory
}

func (j *job) transfers(ctx context.Context) error {
	sizes := j.Sizes
	if sizes == nil {
		sizes = j.usualSizes()
	}
	l, err := openLink(ctx, j.machine, j.Ranks, slices.Max(sizes))
	if err != nil {
		return err
	}
	j.method("random data; at least %d chained copies between two marks on the stream that copies; one pair at a time; median of %d after one to warm up", leastChain, j.Rounds)
	j.method("eager copies that are shorter than the host takes to issue one show what the host can issue")
	j.method("two-way: both ranks of a pair copy at once, from a common start; bytes of both over the longer time")
	if j.graphs() {
		j.method("graph: the chain captured, time of %d more launches within the same marks", moreLaunches)
	}
	err = contest.Within(ctx, l.world, func() error {
		for i, n := range sizes {
			j.done(i, len(sizes))
			for _, get := range []bool{false, true} {
				if err := j.transfer(ctx, l, n, get); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return errors.Join(err, l.world.Close())
}

func (j *job) usualSizes() []int64 {
	if j.embedded() {
		return []int64{1 << 10, 64 << 10, 1 << 20}
	}
	var sizes []int64
	for n := int64(1 << 10); n <= 1<<30; n *= 4 {
		sizes = append(sizes, n)
	}
	return sizes
}

// openLink opens a world with bytes of random data on every rank.
func openLink(ctx context.Context, m device.Machine, ranks int, bytes int64) (*link, error) {
	w, err := m.Open(ctx, ranks)
	if err != nil {
		return nil, err
	}
	l := &link{world: w}
	if err := contest.Within(ctx, w, func() error { return l.fill(ctx, bytes) }); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return l, nil
}

func (l *link) fill(ctx context.Context, bytes int64) error {
	l.marks = contest.Observe(l.world)
	block := make([]byte, min(bytes, 1<<20))
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range block {
		block[i] = byte(rng.Uint32())
	}
	for r := range l.world.Ranks() {
		d := l.world.Device(r)
		s, err := d.NewStream(device.StreamOptions{Name: "copies"})
		if err != nil {
			return err
		}
		l.streams = append(l.streams, s)
		for _, list := range []*[]device.Memory{&l.src, &l.dst} {
			mem, err := d.Alloc(bytes, device.Shared)
			if err != nil {
				return fmt.Errorf("an operand of %s: %w", contest.BytesText(bytes), err)
			}
			*list = append(*list, mem)
		}
		if err := contest.Spread(s, l.src[r], block); err != nil {
			return err
		}
	}
	if err := l.prepare(bytes); err != nil {
		return err
	}
	return l.world.Sync(ctx)
}

// prepare makes ready what copies need between all pairs.
func (l *link) prepare(bytes int64) error {
	for s := range l.src {
		for d := range l.dst {
			for _, r := range []int{s, d} {
				if s == d {
					continue
				}
				if err := l.world.Device(r).PrepareCopy(contest.Words(l.dst[d], 0, bytes&^3), contest.Words(l.src[s], 0, bytes&^3)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// leastChain and mostChain bound how many copies are chained.
const (
	leastChain = 6
	mostChain  = 64
)

func chainOf(bytes int64) int {
	return int(min(max(1<<28/bytes, leastChain), mostChain))
}

// Way is one direction of a pair.
type way struct {
	src, dst int
	get      bool
}

// copies issues count copies of n bytes.
func (l *link) copies(w way, n int64, count int) error {
	s, d, r := l.stream(w), contest.Words(l.dst[w.dst], 0, n), contest.Words(l.src[w.src], 0, n)
	for range count {
		if err := s.Copy(d, r); err != nil {
			return err
		}
	}
	return nil
}

// stream returns the one that copies.
func (l *link) stream(w way) device.Stream {
	if w.get {
		return l.streams[w.dst]
	}
	return l.streams[w.src]
}

// transfer measures one size and form, eagerly and, where there are, by graphs.
func (j *job) transfer(ctx context.Context, l *link, n int64, get bool) error {
	eager, err := j.matrix(n, get, "eager", func(w way) ([]float64, error) { return l.oneWay(ctx, w, n, j.Rounds) })
	if err != nil {
		return err
	}
	if eager.TwoWay, err = l.twoWays(ctx, n, get, j.Rounds); err != nil {
		return err
	}
	j.report.P2P = append(j.report.P2P, *eager)
	if !j.graphs() {
		return nil
	}
	graph, err := j.matrix(n, get, "graph", func(w way) ([]float64, error) { return l.replayed(ctx, w, n, j.Rounds) })
	if err != nil {
		return err
	}
	j.report.P2P = append(j.report.P2P, *graph)
	return nil
}

// matrix measures all ordered pairs; measure returns microseconds a copy.
func (j *job) matrix(n int64, get bool, issue string, measure func(way) ([]float64, error)) (*Transfer, error) {
	t := &Transfer{Bytes: n, Form: "put", Issue: issue}
	if get {
		t.Form = "get"
	}
	for s := range j.Ranks {
		row := make([]float64, j.Ranks)
		for d := range j.Ranks {
			if s == d {
				continue
			}
			us, err := measure(way{s, d, get})
			if err != nil {
				return nil, fmt.Errorf("%d bytes, %s from rank %d to rank %d: %w", n, t.Form, s, d, err)
			}
			rate := contest.FigureOf(contest.Mapped(us, func(v float64) float64 { return gbps(n, v) }))
			row[d] = rate.Median
			if t.Slowest == 0 || rate.Median < t.Slowest {
				t.Slowest, t.Time = rate.Median, contest.FigureOf(us).Median
			}
			t.Fastest, t.Spread = max(t.Fastest, rate.Median), max(t.Spread, rate.Spread)
		}
		t.OneWay = append(t.OneWay, row)
	}
	return t, nil
}

// gbps returns GB/s; 0 where no time passed that the clock can tell.
func gbps(bytes int64, us float64) float64 {
	if us <= 0 {
		return 0
	}
	return float64(bytes) / us / 1e3
}

// oneWay returns microseconds a copy, once a round.
func (l *link) oneWay(ctx context.Context, w way, n int64, rounds int) ([]float64, error) {
	count := chainOf(n)
	var samples []float64
	for round := range rounds + 1 {
		id, err := l.marks.Around(l.stream(w), func() error { return l.copies(w, n, count) })
		if err != nil {
			return nil, err
		}
		us, err := l.marks.Take(ctx, l.world, id)
		if err != nil {
			return nil, err
		}
		if round > 0 {
			samples = append(samples, us[0]/float64(count))
		}
	}
	return samples, nil
}

// twoWays measures every pair with both ranks copying at once.
func (l *link) twoWays(ctx context.Context, n int64, get bool, rounds int) ([][]float64, error) {
	out := make([][]float64, l.world.Ranks())
	for s := range out {
		out[s] = make([]float64, l.world.Ranks())
		for d := s + 1; d < len(out); d++ {
			rate, err := l.twoWay(ctx, [2]way{{s, d, get}, {d, s, get}}, n, rounds)
			if err != nil {
				return nil, fmt.Errorf("%d bytes between ranks %d and %d: %w", n, s, d, err)
			}
			out[s][d] = rate
		}
	}
	return out, nil
}

func (l *link) twoWay(ctx context.Context, ways [2]way, n int64, rounds int) (float64, error) {
	start, err := l.meeting(ways)
	if err != nil {
		return 0, err
	}
	defer start.release()
	count := chainOf(n)
	var samples []float64
	for round := range rounds + 1 {
		if err := start.meet(); err != nil {
			return 0, err
		}
		ids, err := l.crossing(ways, n, count)
		if err != nil {
			return 0, err
		}
		us, err := l.marks.Take(ctx, l.world, ids...)
		if err != nil {
			return 0, err
		}
		if round > 0 {
			samples = append(samples, gbps(2*n*int64(count), slices.Max(us)))
		}
	}
	return contest.FigureOf(samples).Median, nil
}

// crossing issues count copies each way, in turns so that neither way is done
// before the other has begun, and returns the brackets.
func (l *link) crossing(ways [2]way, n int64, count int) ([]int64, error) {
	var ids []int64
	for _, w := range ways {
		id, err := l.marks.Begin(l.stream(w))
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	for range count {
		for _, w := range ways {
			if err := l.copies(w, n, 1); err != nil {
				return nil, err
			}
		}
	}
	for i, w := range ways {
		if err := l.stream(w).End(ids[i]); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// meeting is where two streams wait for each other.
type meeting struct {
	streams [2]device.Stream
	events  [2]device.Event
}

func (l *link) meeting(ways [2]way) (*meeting, error) {
	m := &meeting{streams: [2]device.Stream{l.stream(ways[0]), l.stream(ways[1])}}
	for i, w := range ways {
		rank := w.src
		if w.get {
			rank = w.dst
		}
		e, err := l.world.Device(rank).NewEvent()
		if err != nil {
			return nil, err
		}
		m.events[i] = e
	}
	return m, nil
}

func (m *meeting) meet() error {
	for i, s := range m.streams {
		if err := s.Record(m.events[i]); err != nil {
			return err
		}
	}
	for i, s := range m.streams {
		if err := s.Wait(m.events[1-i]); err != nil {
			return err
		}
	}
	return nil
}

func (m *meeting) release() {
	for _, e := range m.events {
		e.Release()
	}
}

// moreLaunches is how many launches the longer of two windows has more.
const moreLaunches = 3

// replayed returns microseconds a copy within a graph: the difference between
// windows with one launch and with more, so that what a window costs falls out.
func (l *link) replayed(ctx context.Context, w way, n int64, rounds int) (samples []float64, err error) {
	count := chainOf(n)
	g, err := l.world.Capture(func() error { return l.copies(w, n, count) })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	window := func(launches int) (float64, error) {
		id, err := l.marks.Around(l.stream(w), func() error {
			for range launches {
				if err := g.Launch(ctx); err != nil {
					return err
				}
			}
			return l.copies(w, 4, 1) // brings the stream, and its mark, behind the graph
		})
		if err != nil {
			return 0, err
		}
		us, err := l.marks.Take(ctx, l.world, id)
		if err != nil {
			return 0, err
		}
		return us[0], nil
	}
	for round := range rounds + 1 {
		one, err := window(1)
		if err != nil {
			return nil, err
		}
		more, err := window(1 + moreLaunches)
		if err != nil {
			return nil, err
		}
		if round > 0 {
			samples = append(samples, (more-one)/float64(count*moreLaunches))
		}
	}
	return samples, nil
}

// wireRate measures one copy of n bytes from rank 0 to rank 1, in GB/s.
func (j *job) wireRate(ctx context.Context, n int64) (contest.Figure, error) {
	l, err := openLink(ctx, j.machine, j.Ranks, n)
	if err != nil {
		return contest.Figure{}, err
	}
	var us []float64
	err = contest.Within(ctx, l.world, func() (err error) {
		us, err = l.oneWay(ctx, way{src: 0, dst: 1}, n, j.Rounds)
		return err
	})
	if err = errors.Join(err, l.world.Close()); err != nil {
		return contest.Figure{}, err
	}
	return contest.FigureOf(contest.Mapped(us, func(v float64) float64 { return gbps(n, v) })), nil
}
