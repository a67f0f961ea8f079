package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/sim"
)

// These are the limits of errors of predictions, relative to the measured times: for layers of one node, and of
// several nodes.
const (
	mostMedian, mostOfNine, mostBias = 0.07, 0.20, 0.03
	mostOfAuto, shareOfAuto          = 0.03, 0.95
	mostAcross                       = 0.25
)

// judge prints the errors of the predictions in tables.
func judge(w io.Writer, files []string, again string) error {
	rows, err := read(files)
	if err != nil {
		return err
	}
	if rows[0]["nodes"] != "" {
		judgeNodes(w, rows)
		return nil
	}
	if again != "" {
		if err := predictAgain(rows, again); err != nil {
			return err
		}
	}
	groups := map[string][]row{}
	for _, r := range rows {
		of := r["machine"] + " at " + r["commit"] + ", " + r["issue"]
		groups[of] = append(groups[of], r)
	}
	for _, of := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(w, "%s: %d rows\n", of, len(groups[of]))
		judgeLayers(w, groups[of])
		judgeAuto(w, groups[of])
	}
	return nil
}

// number returns the number in a cell; 0 if the cell is empty.
func (r row) number(column string) float64 {
	x, _ := strconv.ParseFloat(r[column], 64)
	return x
}

func (r row) layer() string { return fmt.Sprintf("%s %sx%sx%s", r["op"], r["m"], r["n"], r["k"]) }

// predictAgain replaces auto's predictions by those of the current model.
func predictAgain(rows []row, describe string) error {
	d, err := machine.Load(describe)
	if err != nil {
		return err
	}
	d.Times = &comm.Found{Identity: d.GPU, Table: comm.Shipped()}
	for _, r := range rows {
		if r.number("predicted_us") == 0 {
			continue // a strategy that auto does not consider
		}
		p := sim.Layer(ops[r["op"]], int64(r.number("ranks")), int64(r.number("m")), int64(r.number("n")),
			int64(r.number("k")))
		got, err := sim.Named(p, r["strategy"], d)
		if err != nil {
			return fmt.Errorf("%s: %w", r.layer(), err)
		}
		r["predicted_us"] = fmt.Sprintf("%.1f", got.Time)
	}
	return nil
}

// errorsOf returns the errors of the predictions in a column, relative to the measured times. It omits rows without
// a prediction.
func errorsOf(rows []row, column string) (list []float64) {
	for _, r := range rows {
		if us, p := r.number("us"), r.number(column); us > 0 && p > 0 {
			list = append(list, p/us-1)
		}
	}
	return list
}

// band returns the median and the 90th percentile of the absolute errors, and the mean of the signed errors.
func band(list []float64) (median, nine, bias float64) {
	var off []float64
	for _, x := range list {
		off = append(off, math.Abs(x))
		bias += x / float64(len(list))
	}
	slices.Sort(off)
	if n := len(off); n > 0 {
		median, nine = off[n/2], off[n*9/10]
	}
	return median, nine, bias
}

func verdict(good bool) string {
	if good {
		return "meets"
	}
	return "MISSES"
}

func judgeLayers(w io.Writer, rows []row) {
	byStrategy := map[string][]row{}
	for _, r := range rows {
		byStrategy[r["strategy"]] = append(byStrategy[r["strategy"]], r)
	}
	for _, c := range []struct{ column, from string }{{"predicted_us", "auto's, from the description and the table"},
		{"alone_us", "from the GEMM and the collective alone"}} {
		list := errorsOf(rows, c.column)
		median, nine, bias := band(list)
		fmt.Fprintf(w, "  %s: %d predictions, median error %.1f %%, nine of ten within %.1f %%, bias %+.1f %%: "+
			"%s %.0f, %.0f and %.0f %%\n",
			c.from, len(list), 100*median, 100*nine, 100*bias, verdict(len(list) > 0 && median <= mostMedian &&
				nine <= mostOfNine && math.Abs(bias) <= mostBias), 100*mostMedian, 100*mostOfNine, 100*mostBias)
		for _, s := range slices.Sorted(maps.Keys(byStrategy)) {
			if list := errorsOf(byStrategy[s], c.column); len(list) > 0 {
				median, nine, bias := band(list)
				fmt.Fprintf(w, "    %-12s %3d  median %5.1f %%  nine of ten %5.1f %%  bias %+5.1f %%\n", s, len(list),
					100*median, 100*nine, 100*bias)
			}
		}
	}
	worst := slices.Clone(rows)
	off := func(r row) float64 { return math.Abs(r.number("alone_us")/r.number("us") - 1) }
	slices.SortStableFunc(worst, func(a, b row) int { return cmp.Compare(off(b), off(a)) })
	for _, r := range worst[:min(len(worst), 8)] {
		fmt.Fprintf(w, "    worst: %s, %s: %s µs (iqr %s), from alone %s, auto's %s\n", r.layer(), r["strategy"],
			r["us"],
			r["iqr"], r["alone_us"], r["predicted_us"])
	}
}

// judgeAuto compares, for each layer, the strategy that auto chooses with the fastest strategy.
func judgeAuto(w io.Writer, rows []row) {
	best, took := map[string]row{}, map[string]row{}
	for _, r := range rows {
		l := r.layer()
		if best[l] == nil || r.number("us") < best[l].number("us") {
			best[l] = r
		}
		if r["strategy"] == r["auto"] {
			took[l] = r
		}
	}
	good := 0
	for _, l := range slices.Sorted(maps.Keys(best)) {
		if took[l] == nil {
			fmt.Fprintf(w, "    auto: %s: what it takes, %s, was not measured\n", l, best[l]["auto"])
			continue
		}
		over := took[l].number("us")/best[l].number("us") - 1
		if over <= mostOfAuto {
			good++
			continue
		}
		fmt.Fprintf(w, "    auto: %s: %s took %s µs (iqr %s), %.1f %% more than %s (%s, iqr %s)\n", l,
			took[l]["strategy"],
			took[l]["us"], took[l]["iqr"], 100*over, best[l]["strategy"], best[l]["us"], best[l]["iqr"])
	}
	share := float64(good) / float64(len(best))
	fmt.Fprintf(w, "  auto: within %.0f %% of the fastest on %d of %d layers: %s %.0f %%\n", 100*mostOfAuto, good,
		len(best),
		verdict(share >= shareOfAuto), 100*shareOfAuto)
}

// judgeNodes judges the rows of the newest commit in docs/measured/nodes.tsv. It judges the predictions for layers,
// and compares auto with sequential. Auto passes if sequential is at most faster by the larger one of the two
// spreads.
func judgeNodes(w io.Writer, rows []row) {
	commit := rows[len(rows)-1]["commit"]
	sequential := map[string]row{}
	predicted, auto := true, true
	for _, r := range rows {
		if r["commit"] != commit || !strings.HasPrefix(r["what"], "GEMM") {
			continue
		}
		size := r["what"] + " " + r["bytes"]
		us, iqr, p := r.number("us"), r.number("iqr"), r.number("predicted_us")
		if r["way"] == "sequential" {
			sequential[size] = r
		}
		note := ""
		if p > 0 {
			good := math.Abs(p/us-1) <= mostAcross
			note = fmt.Sprintf("predicted %.0f, %+.1f %%: %s %.0f %%", p, 100*(p/us-1), verdict(good), 100*mostAcross)
			predicted = predicted && (good || strings.HasPrefix(r["way"], "auto"))
		}
		if s := sequential[size]; s != nil && strings.HasPrefix(r["way"], "auto") {
			spread := max(iqr, s.number("iqr"))
			good := us <= s.number("us")+spread
			auto = auto && good
			note += fmt.Sprintf("; sequential took %s, spread %.0f: %s", s["us"], spread, verdict(good))
		}
		fmt.Fprintf(w, "  %4.0f MiB %-24s %8.0f µs (iqr %.0f)  %s\n", r.number("bytes")/(1<<20), r["way"], us, iqr,
			note)
	}
	fmt.Fprintf(w, "nodes at %s: predictions of sequential and chunked: %s; auto not slower than sequential: %s\n",
		commit,
		verdict(predicted), verdict(auto))
}
