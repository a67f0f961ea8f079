package fuse

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestCut checks divisions whose numbers of bytes were computed by hand. All tensors have the same size, 1.
func TestCut(t *testing.T) {
	always := math.MaxInt
	step := func(uses int, args ...int) Step { return Step{Args: args, Bytes: 1, Uses: uses} }
	from := Step{Args: []int{^0}, Bytes: 1, Uses: always, From: 1}
	for name, c := range map[string]struct {
		steps []Step
		want  string // by segment: number of steps, of stored results, and of bytes
	}{
		"silu and mul":                {[]Step{step(1, 0), step(always, ^0, 1)}, "[{2 [] 3}]"},
		"silu is read again":          {[]Step{step(2, 0), step(always, ^0, 1)}, "[{2 [0] 4}]"},
		"a common operand":            {[]Step{step(always, 0, 1), step(always, 0, 2)}, "[{2 [0] 5}]"},
		"nothing in common":           {[]Step{step(always, 0), step(always, 1)}, "[{1 [] 2} {1 [] 2}]"},
		"joined by the third":         {[]Step{step(1, 0), step(1, 1), step(always, ^0, ^1)}, "[{3 [] 3}]"},
		"no reader":                   {[]Step{step(0, 0), step(always, 0)}, "[{2 [0] 3}]"},
		"not with the first":          {[]Step{step(1, 0), from}, "[{1 [] 2} {1 [] 2}]"},
		"at most four results":        {slices.Repeat([]Step{step(always, 0)}, 5), "[{4 [0 1 2] 5} {1 [] 2}]"},
		"the gradient of silu(g) · u": {gradient(step), "[{8 [0 1] 7}]"},
		"five results":                {cutEarlier(step), "[{3 [0 1] 4} {3 [1] 3}]"},
	} {
		if got := fmt.Sprint(Cut(c.steps, []int64{1, 1, 1, 1}, nil)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// gradient returns the steps of the gradient of silu(g) · u. Another command reads the result dm.0 again. The steps
// read the tensors dm, u, m.0 and g, and the results dm.0, du and dg are stored.
func gradient(step func(uses int, args ...int) Step) []Step {
	return []Step{
		step(2, 0, 1),             // dm.0
		step(math.MaxInt, 0, 2),   // du
		step(1, 3),                // sigmoid g
		step(1, 3),                // neg g
		step(1, ^3),               // sigmoid
		step(1, 2, ^4),            //
		step(1, ^2, ^5),           //
		step(math.MaxInt, ^0, ^6), // dg
	}
}

// cutEarlier returns six steps that read one tensor and have five results. Only the last step reads the result of the
// fourth step. A chain of the first four steps would store this result; two chains of three steps do not.
func cutEarlier(step func(uses int, args ...int) Step) []Step {
	always := math.MaxInt
	return []Step{step(always, 0), step(always, 0), step(always, 0), step(1, 0), step(always, 0), step(always, ^3, 0)}
}

// TestCutBest checks that no possible division of random steps is better than that of Cut.
func TestCutBest(t *testing.T) {
	several := 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 53))
		steps, sizes := randomSteps(rng)
		got := Cut(steps, sizes, nil)
		var bytes, first int64
		for _, s := range got {
			want, ok := weigh(steps, sizes, int(first), s.Steps)
			if !ok || s.Bytes != want.Bytes || !slices.Equal(s.Stored, want.Stored) {
				t.Fatalf("seed %d: %+v from step %d, want %+v, allowed %v\n%+v", seed, s, first, want, ok, steps)
			}
			bytes, first = bytes+s.Bytes, first+int64(s.Steps)
			if s.Steps > 1 {
				several++
			}
		}
		if int(first) != len(steps) {
			t.Fatalf("seed %d: %d of %d steps", seed, first, len(steps))
		}
		if least, kernels := fewest(steps, sizes, 0); bytes != least || len(got) != kernels {
			t.Fatalf("seed %d: %d kernels access %d bytes, but %d could access %d\n%+v\n%+v", seed, len(got), bytes,
				kernels, least, got, steps)
		}
	}
	if several < 400 {
		t.Errorf("only %d chains", several)
	}
}

func randomSteps(rng *rand.Rand) (steps []Step, sizes []int64) {
	for range 2 + rng.IntN(10) {
		sizes = append(sizes, []int64{0, 2, 4}[rng.IntN(3)])
	}
	for i := range 2 + rng.IntN(9) {
		s := Step{Bytes: []int64{2, 4}[rng.IntN(2)], Uses: []int{1, 1, 1, 2, math.MaxInt}[rng.IntN(5)]}
		for range 1 + rng.IntN(2) {
			if i > 0 && rng.IntN(2) == 0 {
				s.Args = append(s.Args, ^(i - 1 - rng.IntN(min(i, 3))))
			} else {
				s.Args = append(s.Args, rng.IntN(len(sizes)))
			}
		}
		if rng.IntN(12) == 0 {
			s.From = rng.IntN(i + 1)
		}
		steps = append(steps, s)
	}
	return steps, sizes
}

// fewest returns the fewest bytes, and then the fewest kernels, that any division of the steps from a given step on
// has.
func fewest(steps []Step, sizes []int64, first int) (bytes int64, kernels int) {
	if first == len(steps) {
		return 0, 0
	}
	bytes = math.MaxInt64
	for n := 1; first+n <= len(steps); n++ {
		s, ok := weigh(steps, sizes, first, n)
		if !ok {
			continue
		}
		b, k := fewest(steps, sizes, first+n)
		if b, k = b+s.Bytes, k+1; b < bytes || b == bytes && k < kernels {
			bytes, kernels = b, k
		}
	}
	return bytes, kernels
}

// weigh returns the segment of n steps that begins with a given step, and whether one kernel may compute it.
func weigh(steps []Step, sizes []int64, first, n int) (Segment, bool) {
	s := Segment{Steps: n}
	operands, reads, linked, ok := map[int]bool{}, map[int]int{}, map[int][]int{}, true
	for i := first; i < first+n; i++ {
		ok = ok && steps[i].From <= first
		for _, a := range steps[i].Args {
			if a < 0 && ^a >= first {
				reads[^a]++
				linked[^a], linked[i] = append(linked[^a], i), append(linked[i], ^a)
				continue
			}
			if !operands[a] && a >= 0 {
				s.Bytes += sizes[a]
			} else if !operands[a] {
				s.Bytes += steps[^a].Bytes
			}
			operands[a] = true
			for j := first; j < i; j++ {
				if slices.Contains(steps[j].Args, a) {
					linked[j], linked[i] = append(linked[j], i), append(linked[i], j)
				}
			}
		}
	}
	for i := first; i < first+n; i++ {
		if last := i == first+n-1; last || reads[i] == 0 || reads[i] < steps[i].Uses {
			s.Bytes += steps[i].Bytes
			if !last {
				s.Stored = append(s.Stored, i-first)
			}
		}
	}
	reached, next := map[int]bool{first: true}, []int{first}
	for len(next) > 0 {
		for _, j := range linked[next[0]] {
			if !reached[j] {
				reached[j], next = true, append(next, j)
			}
		}
		next = next[1:]
	}
	return s, n == 1 || ok && len(reached) == n && len(s.Stored) < 4 && len(operands) <= 8
}
