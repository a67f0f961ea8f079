package bench

import (
	"bytes"
	"context"
	"math"
	"strings"
	"testing"

	"hocket.example/hocket/internal/contest"
	_ "hocket.example/hocket/internal/contest/abacus"
	"hocket.example/hocket/internal/device"
)

// TestBesideTeams wants a machine's own launches measured beside the product,
// with the blocks asked for, and those with wrong results never.
func TestBesideTeams(t *testing.T) {
	rep, err := Run(context.Background(), "beside",
		Options{Machine: "abacus-with-teams", Ranks: 3, Rounds: 2, Sizes: []int64{6000},
			Shapes: []Shape{{40, 24, 32}}, CTAs: []int{0, 4, -1}, SMs: []int{0, 7}})
	if err == nil && len(rep.Beside.Collectives) != 5 {
		t.Fatalf("%d collectives", len(rep.Beside.Collectives))
	}
	if err != nil {
		t.Fatal(err)
	}
	b := rep.Beside
	var text bytes.Buffer
	if err := rep.WriteText(&text); err != nil || len(b.Guesses) != 1 ||
		strings.Count(text.String(), "\nproduct 40x24x32 bf16 by a guess") != 1 {
		t.Errorf("%v, guesses %q, told in\n%s", err, b.Guesses, &text)
	}
	if len(b.GEMMs) != 2 || b.GEMMs[1].SMs != 7 || b.GEMMs[0].Slowdown.Median != 1 {
		t.Fatalf("%+v", b)
	}
	for _, c := range b.Collectives {
		reduces := c.Op == "all_reduce" || c.Op == "reduce_scatter"
		for k, w := range c.Ways {
			if w.CTAs == 0 && reduces {
				if w.Refused == "" {
					t.Errorf("%s by copy engines: %+v", c.Op, w)
				}
				continue
			}
			if w.Refused != "" || w.Wrong != 0 || w.Checked == 0 || w.Alone.Median <= 0 || w.OfBest <= 0 ||
				w.OfBest > 1 || len(w.Pairs) != 2 {
				t.Errorf("%s: %+v", c.Op, w)
				continue
			}
			if want := []int{0, 4, 0}[k]; w.Tuning.Blocks != want || w.Tuning.Algo == "wrong" || w.CTAs == 0 &&
				w.Tuning.Algo != "direct" {
				t.Errorf("%s with %d blocks by %+v", c.Op, w.CTAs, w.Tuning)
			}
			if n := len(w.Dropped); n == 0 && w.CTAs == 4 || n > 0 && w.CTAs == 0 {
				t.Errorf("%s with %d blocks leaves out %q", c.Op, w.CTAs, w.Dropped)
			}
			for _, d := range w.Dropped {
				if name, _, _ := strings.Cut(d, " "); strings.Trim(name, ":") != "wrong" ||
					!strings.HasSuffix(d, " elements of its result are wrong") {
					t.Errorf("%s with %d blocks leaves out %q", c.Op, w.CTAs, d)
				}
			}
			for _, p := range w.Pairs {
				if p.Slowdown.Median <= 0 || p.Rate.Median <= 0 || p.Covered < 0 || p.Covered > 1 {
					t.Errorf("%s: %+v", c.Op, p)
				}
			}
		}
		if few := c.Few(); few == nil || few.CTAs != 4 {
			t.Errorf("%s with few blocks: %+v", c.Op, few)
		}
	}
}

func TestBestPair(t *testing.T) {
	pair := func(slow, rate, covered float64) BesidePair {
		return BesidePair{Slowdown: contest.Figure{Median: slow}, Rate: contest.Figure{Median: rate}, Covered: covered}
	}
	nan := math.NaN()
	for name, c := range map[string]struct {
		pairs []BesidePair
		best  int
		ok    bool
	}{
		"fastest of the bearable": {[]BesidePair{pair(1.2, 350, 1), pair(1.05, 200, 1), pair(1.08, 300, 1)}, 2, true},
		"bearable comes later":    {[]BesidePair{pair(1.09, 350, 1), pair(1.01, 20, 1)}, 1, true},
		"none is":                 {[]BesidePair{pair(1.3, 350, 1), pair(1.1, 20, 1), pair(1.2, 300, 1)}, 1, false},
		"hardly beside":           {[]BesidePair{pair(1.01, 350, 0.2), pair(1.05, 300, 1)}, 1, true},
		"not a number":            {[]BesidePair{pair(nan, 350, 1), pair(1.05, 300, 1)}, 1, true},
	} {
		w, p, ok := (&BesideCollective{Ways: []BesideWay{{Pairs: c.pairs[:1]}, {Pairs: c.pairs[1:]}}}).BestPair()
		if w == nil || ok != c.ok || p.Rate != c.pairs[c.best].Rate {
			t.Errorf("%s: %+v, %t", name, p, ok)
		}
	}
	if _, p, ok := (&BesideCollective{}).BestPair(); p != nil || ok {
		t.Errorf("nothing measured: %+v", p)
	}
}

func TestWithin(t *testing.T) {
	products := [][2]int64{{0, 1000}, {1000, 2000}, {2000, 3000}, {3000, 9000}}
	calls := [][2]int64{{500, 900}, {900, 2500}, {2500, 3500}}
	if got := meanWithin(products, calls); got != 1 {
		t.Errorf("products within calls take %v µs", got)
	}
	if got := meanWithin(calls, products); got != 1 {
		t.Errorf("calls within products take %v µs", got)
	}
	if got := meanWithin(products[3:], calls); got != 6 {
		t.Errorf("without one within: %v µs", got)
	}
	if got := cover(products[:3], calls); got != 2500.0/3000 {
		t.Errorf("covered: %v", got)
	}
	if got := cover(products[3:], calls[:1]); got != 0 {
		t.Errorf("apart: %v", got)
	}
}

func TestBesideText(t *testing.T) {
	f := func(v float64) contest.Figure { return contest.Figure{Median: v, Spread: 0.01} }
	rep := &Report{Bench: "beside", Machine: "cuda", Ranks: 2, Beside: &Beside{Shape: Shape{8192, 7168, 8192},
		GEMMs: []GEMMAlone{{0, f(1200), f(1)}, {124, f(1240), f(1.033)}},
		Collectives: []BesideCollective{{Op: "all_reduce", Bytes: 64 << 20, Best: 360, Ways: []BesideWay{
			{CTAs: 8, Tuning: device.Tuning{Algo: "push", Blocks: 8, Threads: 512}, Alone: f(330), OfBest: 330.0 / 360,
				Pairs: []BesidePair{{0, f(1.2), f(300), 1}, {124, f(1.07), f(320), 0.95}}},
			{CTAs: 16, Refused: "no algorithm takes it so",
				Dropped: []string{"pull 16×512: 3 elements of its result are wrong"}},
		}}}}}
	var b bytes.Buffer
	if err := rep.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"  124  1240.0 ±0.0  1.033 ±0.010",
		"     8  push 8×512  330.0 ±0.0     0.92  1.200 at 300.0  1.070 at 320.0 (95 %) best      0",
		"16 CTAs: no algorithm takes it so",
		"16 CTAs: left out 1, the first: pull 16×512: 3 elements of its result are wrong",
		"GEMM at most 1.08× as long: yes: 1.070× with 8 CTAs beside a GEMM for 124 SMs, at 320.0 GB/s",
		"90 % of the best rate with at most 8 CTAs: yes: 330.0 of 360.0 GB/s with push 8×512",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
