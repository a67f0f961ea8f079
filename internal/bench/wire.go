package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
)

// wireRate measures the rate of copies of n bytes from rank 0 to rank 1, in GB/s.
func (j *job) wireRate(ctx context.Context, n int64) (contest.Figure, error) {
	w, err := j.machine.Open(ctx, j.Ranks)
	if err != nil {
		return contest.Figure{}, err
	}
	var us []float64
	err = contest.Within(ctx, w, func() (err error) {
		us, err = copies(ctx, w, n, j.Rounds)
		return err
	})
	if err = errors.Join(err, w.Close()); err != nil {
		return contest.Figure{}, err
	}
	return contest.FigureOf(contest.Mapped(us, func(v float64) float64 { return gbps(n, v) })), nil
}

// chained is the number of consecutive copies between two marks.
const chained = 6

// copies copies n bytes of random data repeatedly, and returns the microseconds per copy, one value for each round.
func copies(ctx context.Context, w device.World, n int64, rounds int) ([]float64, error) {
	marks := contest.Observe(w)
	from, err := w.Device(0).Alloc(n, device.Shared)
	if err != nil {
		return nil, fmt.Errorf("an operand of %s: %w", contest.BytesText(n), err)
	}
	to, err := w.Device(1).Alloc(n, device.Shared)
	if err != nil {
		return nil, fmt.Errorf("an operand of %s: %w", contest.BytesText(n), err)
	}
	s, err := w.Device(0).NewStream(device.StreamOptions{Name: "copies"})
	if err != nil {
		return nil, err
	}
	block := make([]byte, min(n, 1<<20))
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range block {
		block[i] = byte(rng.Uint32())
	}
	dst, src := contest.Words(to, 0, n), contest.Words(from, 0, n)
	err = errors.Join(contest.Spread(s, from, block), w.Device(0).PrepareCopy(dst, src), w.Sync(ctx))
	if err != nil {
		return nil, err
	}
	var samples []float64
	for round := range rounds + 1 { // the first is a warm-up
		id, err := marks.Around(s, func() error {
			for range chained {
				if err := s.Copy(dst, src); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		us, err := marks.Take(ctx, w, id)
		if err != nil {
			return nil, err
		}
		if round > 0 {
			samples = append(samples, us[0]/chained)
		}
	}
	return samples, nil
}

// gbps returns the rate in GB/s for bytes that took us microseconds. gbps returns 0 if us is 0.
func gbps(bytes int64, us float64) float64 {
	if us <= 0 {
		return 0
	}
	return float64(bytes) / us / 1e3
}
