package bench

import (
	"fmt"
	"math"
	"strings"

	"hocket.example/hocket/internal/contest"
)

// collectives writes a line for each algorithm at each size.
func (t *table) collectives(rows []Collective) {
	if len(rows) == 0 {
		return
	}
	peers := peerNames(rows)
	head := []string{"", "algorithm", "graph µs", "eager µs", "skew", "GB/s", "bound µs", "× bound", "NCCL/this", "wrong"}
	for _, p := range peers {
		head = append(head, p+" µs")
	}
	lines := [][]string{head}
	for i := range rows {
		r := &rows[i]
		for k := range r.Ways {
			if r.Ways[k].Refused == "" {
				lines = append(lines, r.line(k, peers))
			}
		}
	}
	t.Line("")
	t.Rows(lines)
	t.summary(rows)
	t.refusals(rows)
}

// line returns the cells of the line for algorithm k. The algorithm that hocket chooses is marked with a star.
func (r *Collective) line(k int, peers []string) []string {
	w := &r.Ways[k]
	size, name := "", contest.TuningText(w.Tuning)
	if k == 0 {
		size = contest.BytesText(r.Bytes)
	}
	if w.By != "asked" {
		name += " *"
	}
	against := ""
	if n := r.nccl(); n > 0 && !w.Library {
		against = fmt.Sprintf("%.2f", n/w.Best())
	}
	cells := []string{size, name, figureText(w.Graph), figureText(w.Eager), fmt.Sprintf("%.2f", w.Skew), fmt.Sprintf("%.1f", gbps(r.Bytes, w.Best())),
		r.bound("%.1f", r.Bound), r.bound("%.2f", w.Best()/r.Bound), against, fmt.Sprint(w.Wrong)}
	for _, p := range peers {
		cell := ""
		if us, ok := r.Peers[p]; ok && k == 0 {
			cell = fmt.Sprintf("%.2f", us)
		}
		cells = append(cells, cell)
	}
	return cells
}

// bound formats a number that is computed from the bound; it returns "" if there is no bound.
func (r *Collective) bound(format string, v float64) string {
	if r.Bound == 0 {
		return ""
	}
	return fmt.Sprintf(format, v)
}

// nccl returns the shortest time of NCCL's algorithms in this run; 0 if none was measured.
func (r *Collective) nccl() float64 {
	best := 0.0
	for i := range r.Ways {
		w := &r.Ways[i]
		if us := w.Best(); us > 0 && w.Library && (best == 0 || us < best) {
			best = us
		}
	}
	return best
}

// bestPeer returns the shortest of the times of other programs and of NCCL's time in this run.
func (r *Collective) bestPeer() float64 {
	best := r.nccl()
	for name, us := range r.Peers {
		if !strings.HasSuffix(name, eagerSuffix) && (best == 0 || us < best) {
			best = us
		}
	}
	return best
}

// summary writes a comparison of the algorithms that hocket chooses with the fastest others.
func (t *table) summary(rows []Collective) {
	logs, n, won := 0.0, 0, 0
	for i := range rows {
		r := &rows[i]
		us, peer := r.Ways[0].Best(), r.bestPeer()
		if us <= 0 || peer <= 0 {
			continue
		}
		logs += math.Log(peer / us)
		if n++; us < peer {
			won++
		}
	}
	if n > 0 {
		t.Line("chosen algorithm compared with the fastest other one: geometric mean %.2f×, faster at %d of %d sizes",
			math.Exp(logs/float64(n)), won, n)
	}
}

// refusals reports once for each algorithm why it was not measured.
func (t *table) refusals(rows []Collective) {
	said := map[string]bool{}
	for _, r := range rows {
		for _, w := range r.Ways {
			if w.Refused != "" && !said[w.Refused] {
				said[w.Refused] = true
				t.refusal(contest.BytesText(r.Bytes)+" by "+w.Algorithm, w.Refused)
			}
		}
	}
}

func figureText(f *contest.Figure) string {
	if f == nil {
		return ""
	}
	return f.Text(2)
}
