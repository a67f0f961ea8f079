package hocket

import (
	"errors"
	"testing"
	"time"
)

// TestRace checks that the function race selects the first candidate unless another one is faster by more than the
// spread and by a worthwhile amount.
func TestRace(t *testing.T) {
	for name, c := range map[string]struct {
		times func(i, round int) time.Duration
		best  int
		runs  int // of each; 0 for all
	}{
		"the second": {func(i, _ int) time.Duration { return []time.Duration{100, 80, 90}[i] * time.Microsecond }, 1,
			0},
		"the first": {func(i, _ int) time.Duration { return []time.Duration{100, 180, 190}[i] * time.Microsecond }, 0,
			0},
		"hardly": {func(i, _ int) time.Duration { return []time.Duration{1000, 995, 1000}[i] * time.Microsecond },
			0, 0},
		"it varies": {func(i, round int) time.Duration {
			return []time.Duration{100, time.Duration(60 + 70*(round%2)), 300}[i] * time.Microsecond
		}, 0, 0},
		"a slow beginning": {func(i, round int) time.Duration {
			return time.Duration(100-10*i+1000*max(2-round, 0)*i) * time.Microsecond
		}, 2, 0},
		"they take long": {func(i, _ int) time.Duration {
			return []time.Duration{1000, 900,
				1000}[i] * time.Millisecond
		}, 1, 5},
	} {
		clock, counts := time.Unix(0, 0), make([]int, 3)
		best, medians, err := race(3, func(i int) error {
			clock = clock.Add(c.times(i, counts[i]))
			counts[i]++
			return nil
		}, func() time.Time { return clock })
		if runs := map[bool]int{true: measuredRounds + 2, false: c.runs}[c.runs == 0]; err != nil || best != c.best ||
			counts[2] != runs {
			t.Errorf("%s: %d of %v after %v runs, %v; want %d after %d", name, best, medians, counts, err, c.best, runs)
		}
	}
	broken := errors.New("broken")
	if _, _, err := race(2, func(i int) error { return []error{nil, broken}[i] }, time.Now); !errors.Is(err, broken) {
		t.Errorf("one that fails: %v", err)
	}
}
