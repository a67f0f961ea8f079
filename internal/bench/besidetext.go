package bench

import (
	"fmt"

	"hocket.example/hocket/internal/contest"
)

// beside writes the products alone, then of each collective a line for each
// number of blocks, with a column for each number of multiprocessors that the
// product counted on.
func (t *table) beside(b *Beside) {
	if b == nil {
		return
	}
	t.Line("\nGEMM %s alone on every rank", b.Shape)
	rows := [][]string{{"SMs", "µs", "slow-down"}}
	for _, g := range b.GEMMs {
		rows = append(rows, []string{smsText(g.SMs), g.Time.Text(1), g.Slowdown.Text(3)})
	}
	t.Rows(rows)
	t.guesses("", b.Guesses)
	for i := range b.Collectives {
		t.besideCollective(&b.Collectives[i])
	}
}

func (t *table) besideCollective(c *BesideCollective) {
	t.Line("\n%s of %s: GB/s alone, and slow-down of the GEMM for so many SMs with GB/s beside it", c.Op, contest.BytesText(c.Bytes))
	best, pair, bears := c.BestPair()
	head := []string{"CTAs", "", "alone", "of best"}
	for i := range c.Ways {
		if c.Ways[i].Refused == "" {
			for _, p := range c.Ways[i].Pairs {
				head = append(head, smsText(p.SMs)+" SMs")
			}
			break
		}
	}
	rows := [][]string{append(head, "wrong")}
	for i := range c.Ways {
		w := &c.Ways[i]
		if w.Refused != "" {
			continue
		}
		row := []string{ctasText(w.CTAs), contest.TuningText(w.Tuning), w.Alone.Text(1), fmt.Sprintf("%.2f", w.OfBest)}
		for k := range w.Pairs {
			row = append(row, w.Pairs[k].text(&w.Pairs[k] == pair))
		}
		rows = append(rows, append(row, fmt.Sprint(w.Wrong)))
	}
	t.Rows(rows)
	for _, w := range c.Ways {
		t.refusal(ctasText(w.CTAs)+" CTAs", w.Refused)
		if n := len(w.Dropped); n > 0 {
			t.refusal(fmt.Sprintf("%s CTAs: left out %d, the first", ctasText(w.CTAs), n), w.Dropped[0])
		}
	}
	if pair == nil {
		return
	}
	verdict := "no pair does"
	if bears {
		verdict = "yes"
	}
	t.Line("GEMM at most %.2f× as long: %s: %.3f× with %s CTAs beside a GEMM for %s SMs, at %.1f GB/s", bearable, verdict, pair.Slowdown.Median, ctasText(best.CTAs), smsText(pair.SMs), pair.Rate.Median)
	if few := c.Few(); few != nil {
		verdict := "no"
		if few.OfBest >= most {
			verdict = "yes"
		}
		t.Line("%.0f %% of the best rate with at most %d CTAs: %s: %.1f of %.1f GB/s with %s", 100*most, fewCTAs, verdict, few.Alone.Median, c.Best, contest.TuningText(few.Tuning))
	}
}

// Text is "1.043 at 312.0", and the part of the
// time in which the collective ran where that is not all.
func (p *BesidePair) text(best bool) string {
	s := fmt.Sprintf("%.3f at %.1f", p.Slowdown.Median, p.Rate.Median)
	if p.Covered < 1 {
		s += fmt.Sprintf(" (%.0f %%)", 100*p.Covered)
	}
	if best {
		s += " best"
	}
	return s
}

func smsText(n int) string {
	if n == 0 {
		return "all"
	}
	return fmt.Sprint(n)
}

func ctasText(n int) string {
	if n < 0 {
		return "any"
	}
	return fmt.Sprint(n)
}
