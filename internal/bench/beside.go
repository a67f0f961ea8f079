package bench

import (
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
)

// Beside is collectives beside products.
type Beside struct {
	// Shape is the product's, on every rank; it is of bf16.
	Shape
	// GEMMs is the product alone, for each number of multiprocessors that it
	// counted on.
	GEMMs []GEMMAlone `json:"gemm_alone"`
	// Collectives are those measured beside it.
	Collectives []BesideCollective `json:"collectives"`
	// Guesses names the products that ran by a guess of an algorithm, for want of memory
	// to time others in: their times are not to be taken for the fastest.
	Guesses []string `json:"guesses,omitempty"`
}

// GEMMAlone is the product with nothing beside it: microseconds on the slowest
// rank, and that over the one which counts on all multiprocessors.
type GEMMAlone struct {
	SMs      int            `json:"sms"` // 0 for all
	Time     contest.Figure `json:"us"`
	Slowdown contest.Figure `json:"slowdown"`
}

// BesideCollective is a collective beside the product. Rates are the bytes that
// the busiest rank must send or receive, over the time of the slowest: GB/s of a
// link.
type BesideCollective struct {
	Op    string `json:"op"`
	Bytes int64  `json:"bytes"` // of the message
	// Best is the largest rate of any way alone.
	Best float64     `json:"best_gbps"`
	Ways []BesideWay `json:"ways"`
}

// BesideWay is the fastest way found with so many blocks.
type BesideWay struct {
	// CTAs is the number of blocks, 0 for copy engines, -1 for any.
	CTAs   int            `json:"ctas"`
	Tuning device.Tuning  `json:"tuning"`
	Alone  contest.Figure `json:"alone_gbps"`
	// OfBest is the part of the largest rate of any way.
	OfBest float64      `json:"of_best"`
	Pairs  []BesidePair `json:"pairs,omitempty"`
	// Wrong is how many of the elements looked at (Checked) were wrong.
	Wrong   int64 `json:"wrong"`
	Checked int64 `json:"checked"`
	// Refused says why nothing was measured; empty where something was.
	Refused string `json:"refused,omitempty"`
	// Dropped are tunings that were left out because they failed or gave wrong
	// results, and how.
	Dropped []string `json:"dropped,omitempty"`
}

// BesidePair is a way beside the product that counts on so many
// multiprocessors.
type BesidePair struct {
	SMs int `json:"sms"` // 0 for all
	// Slowdown is the product's time over that of it alone, with all
	// multiprocessors, of the same round.
	Slowdown contest.Figure `json:"slowdown"`
	// Rate is the collective's.
	Rate contest.Figure `json:"gbps"`
	// Covered is the part of the product's time during which collectives ran.
	Covered float64 `json:"covered"`
}

// Limits of what counts as good: a product that takes at most bearable times as
// long, with collectives for most of its time; a collective that reaches most of
// its best rate with fewCTAs.
const (
	bearable = 1.08
	most     = 0.90
	fewCTAs  = 8
)

// BestPair returns the pair with the largest rate of those that slow the product
// down bearably though collectives run for most of its time, or else the one that
// slows it down least, and whether it is bearable; nil where nothing was measured.
func (c *BesideCollective) BestPair() (w *BesideWay, p *BesidePair, ok bool) {
	for i := range c.Ways {
		for k := range c.Ways[i].Pairs {
			x := &c.Ways[i].Pairs[k]
			good := x.Slowdown.Median <= bearable && x.Covered >= most
			if p == nil || good && !ok || good == ok && (good && x.Rate.Median > p.Rate.Median || !good && x.Slowdown.Median < p.Slowdown.Median) {
				w, p, ok = &c.Ways[i], x, good
			}
		}
	}
	return w, p, ok
}

// Few returns the way with at most fewCTAs blocks, but not none, that is fastest
// alone; nil where there is none.
func (c *BesideCollective) Few() *BesideWay {
	var best *BesideWay
	for i := range c.Ways {
		if w := &c.Ways[i]; w.Refused == "" && w.CTAs > 0 && w.CTAs <= fewCTAs && (best == nil || w.Alone.Median > best.Alone.Median) {
			best = w
		}
	}
	return best
}
