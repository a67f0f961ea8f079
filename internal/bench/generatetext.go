package bench

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/contest"
)

// generation writes the times of a program that generates tokens.
func (t *table) generation(g *Generation) {
	if g == nil {
		return
	}
	t.Line("\n%s", strings.TrimSpace(g.Func+" "+(&Step{Dims: g.Dims}).dims()))
	compared := slices.ContainsFunc(g.Cases, func(c GenerationCase) bool { return len(c.Peers) > 0 })
	row := func(cells []string, ratio string) []string { // adds the ratio after a time and its multiple of the bound
		if compared {
			cells = append(cells, ratio)
		}
		return cells
	}
	const over, ratio = "× bound", "÷ hocket"
	rows := [][]string{row([]string{"prompt", "batch", "", "issued", "first token µs", over}, ratio)}
	if g.Tokens > 0 {
		rows[0] = append(row(append(rows[0], "per token µs", over), ratio), "tokens/s")
	}
	for _, c := range g.Cases {
		for _, w := range c.Ways {
			if w.Refused != "" {
				continue
			}
			cells := row([]string{fmt.Sprint(c.Prompt), fmt.Sprint(c.Batch), w.Strategy, w.Issued, w.First.Text(1),
				quotient(w.First.Median, c.FirstBound)}, "")
			if w.Token != nil {
				cells = append(row(append(cells, w.Token.Text(1), quotient(w.Token.Median, c.TokenBound)), ""),
					fmt.Sprintf("%.1f", w.TokensPerSecond))
			}
			rows = append(rows, cells)
		}
		for _, p := range c.Peers {
			first, us := theirs(p.First)
			cells := row([]string{fmt.Sprint(c.Prompt), fmt.Sprint(c.Batch), p.Name, p.Issued, first,
				quotient(us, c.FirstBound)}, known("%.2f", p.FirstRatio))
			if g.Tokens > 0 {
				token, us := theirs(p.Token)
				cells = append(row(append(cells, token, quotient(us, c.TokenBound)), known("%.2f", p.TokenRatio)),
					known("%.1f", quotientOf(float64(c.Batch)*1e6, us)))
			}
			rows = append(rows, cells)
		}
	}
	t.Rows(rows)
	for _, c := range g.Cases {
		for _, w := range c.Ways {
			name := fmt.Sprintf("prompt %d, batch %d, %s", c.Prompt, c.Batch, w.Strategy)
			t.refusal(name, w.Refused)
			t.guesses(name+": ", w.Guesses)
		}
	}
}

// theirs formats a time of a peer, and returns its median; "" and 0 if it is unknown.
func theirs(f *contest.Figure) (string, float64) {
	switch {
	case f == nil:
		return "", 0
	case f.Spread == 0:
		return fmt.Sprintf("%.1f", f.Median), f.Median
	}
	return f.Text(1), f.Median
}

// known formats a figure; a figure of 0 is unknown and becomes "".
func known(format string, v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf(format, v)
}

// quotient formats the quotient of two figures; "" if one of them is unknown.
func quotient(a, b float64) string { return known("%.2f", quotientOf(a, b)) }

func quotientOf(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
