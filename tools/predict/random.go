package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"hocket.example/hocket/internal/bench"
	"hocket.example/hocket/internal/contest"
)

// layerColumns are those of docs/measured/layers.tsv and auto.tsv.
var layerColumns = strings.Fields("machine driver commit date who op m n k ranks strategy issue us iqr bounds " +
	"bounds_iqr gemm_us gemm_iqr link_gbs log")

// slower is by how much of sequential's time auto's must be longer, beyond the spread, to count as slower.
const slower = 0.02

// drawn is a layer that was drawn, and what auto takes for it.
type drawn struct {
	op string
	bench.Shape
	auto string
	// passes is how often it was measured.
	passes int
	// slow are the passes that found it slower than sequential, by how it was run.
	slow map[string]int
	gain map[string]float64 // sequential's time over auto's, of the first pass
}

// draw makes layers of 64 to 16384 rows, whose other extents are multiples of 512 from 1024 to 28672, of at most
// 2.2 TFLOP, each extent uniform on a logarithmic scale.
func draw(seed uint64, count int) []*drawn {
	rng := rand.New(rand.NewPCG(seed, 32))
	between := func(lo, hi, of float64) int64 {
		return int64(math.Round(lo*math.Pow(hi/lo, rng.Float64())/of) * of)
	}
	names := []string{"ag-gemm", "gemm-rs", "gemm-ar"}
	var out []*drawn
	for len(out) < count {
		s := bench.Shape{M: between(64, 16384, 64), N: between(1024, 28672, 512), K: between(1024, 28672, 512)}
		if float64(s.M)*float64(s.N)*float64(s.K) < 1.1e12 {
			out = append(out, &drawn{op: names[len(out)%len(names)], Shape: s})
		}
	}
	return out
}

// random times auto beside sequential, and those that were slower once more. Where auto takes sequential it is the
// same plan, and not timed.
func (j *job) random(ctx context.Context, to io.Writer) error {
	all := draw(j.seed, j.count)
	if words := strings.Fields(j.shapes); len(words) > 0 {
		all = nil
		for i := 0; i+1 < len(words); i += 2 {
			s, err := bench.ParseShape(words[i+1])
			if err != nil {
				return err
			}
			all = append(all, &drawn{op: words[i], Shape: s})
		}
	} else {
		fmt.Fprintf(os.Stderr, "seed %d\n", j.seed)
	}
	opts := bench.Options{Machine: j.device, Ranks: j.ranks, Rounds: j.rounds, Strategies: []string{"auto"}}
	fmt.Fprintln(to, strings.Join(layerColumns, "\t"))
	began := time.Now()
	timed := 0
	var failed []error
	for _, d := range all {
		var err error
		if d.auto, err = bench.Auto(d.op, d.Shape, opts); err != nil {
			return fmt.Errorf("%s %s: %w", d.op, d.Shape, err)
		}
	}
passes:
	for pass := range 2 {
		for _, d := range all {
			if d.auto == "sequential" || pass > 0 && len(d.slow) == 0 {
				continue
			}
			if time.Since(began) > j.most {
				fmt.Fprintf(os.Stderr, "%v are over in pass %d, before %s %s\n", j.most, pass+1, d.op, d.Shape)
				break passes
			}
			opts.Shapes = []bench.Shape{d.Shape}
			rep, err := bench.Run(ctx, d.op, opts)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s %s: %w", d.op, d.Shape, err))
				continue
			}
			d.take(rep.Layers[0])
			timed++
			j.layerRows(to, d, &rep.Layers[0])
		}
	}
	fmt.Fprintf(os.Stderr, "%d times two strategies in %.0f s\n", timed, time.Since(began).Seconds())
	judgeRandom(os.Stderr, all)
	return errors.Join(failed...)
}

// ways are a layer's times by sequential and by auto, by how it was run.
func ways(l bench.Layer) map[string][2]contest.Figure {
	sequential, auto := l.Strategies[0], l.Strategies[1]
	out := map[string][2]contest.Figure{}
	if sequential.Time.Median > 0 && auto.Time.Median > 0 {
		out["eager"] = [2]contest.Figure{sequential.Time, auto.Time}
	}
	if sequential.Graph != nil && auto.Graph != nil {
		out["graph"] = [2]contest.Figure{*sequential.Graph, *auto.Graph}
	}
	return out
}

// take notes what a pass has measured.
func (d *drawn) take(l bench.Layer) {
	if d.gain == nil {
		d.gain, d.slow = map[string]float64{}, map[string]int{}
	}
	d.passes++
	for how, f := range ways(l) {
		if _, again := d.gain[how]; !again {
			d.gain[how] = f[0].Median / f[1].Median
		}
		if f[1].Median-f[0].Median > slower*f[0].Median+max(f[0].Spread, f[1].Spread) {
			d.slow[how]++
		}
	}
}

// judgeRandom says how auto did.
func judgeRandom(w io.Writer, all []*drawn) {
	same := 0
	for _, d := range all {
		if d.auto == "sequential" {
			same++
		}
	}
	fmt.Fprintf(w, "%d layers; auto is sequential for %d\n", len(all), same)
	for _, how := range []string{"eager", "graph"} {
		sum, n, twice, open, worst := 0.0, 0, 0, 0, []*drawn{}
		for _, d := range all {
			if g, ok := d.gain[how]; ok {
				sum, n, worst = sum+math.Log(g), n+1, append(worst, d)
			} else if d.auto != "sequential" {
				open++
			}
			if d.slow[how] == 1 && d.passes < 2 {
				open++
			}
			if d.slow[how] > 1 {
				twice++
			}
		}
		if n == 0 {
			continue
		}
		fmt.Fprintf(w, "%s: %d measured, auto %.3f times as fast in the geometric mean, slower twice by more than "+
			"%.0f %% and its spread: %d\n", how, n, math.Exp(sum/float64(n)), 100*slower, twice)
		if open > 0 { // for want of time, or since they failed
			fmt.Fprintf(w, "    undecided: %d, which were not measured, or slower once and not measured again\n", open)
		}
		slices.SortFunc(worst, func(a, b *drawn) int { return int(math.Copysign(1, a.gain[how]-b.gain[how])) })
		for _, d := range worst[:min(3, n)] {
			fmt.Fprintf(w, "    %s %s by %s: %.3f, found slower %d times\n", d.op, d.Shape, d.auto, d.gain[how],
				d.slow[how])
		}
	}
}

// layerRows writes a layer's rows.
func (j *job) layerRows(to io.Writer, d *drawn, l *bench.Layer) {
	for _, how := range []string{"eager", "graph"} {
		figures, ok := ways(*l)[how]
		for i, f := range figures {
			if !ok {
				break
			}
			cells := append(strings.Fields(j.row), "hocket", d.op, fmt.Sprint(d.M), fmt.Sprint(d.N), fmt.Sprint(d.K),
				fmt.Sprint(j.ranks), []string{"sequential", "auto"}[i], how, fmt.Sprintf("%.1f", f.Median),
				fmt.Sprintf("%.1f", f.Spread), "-", "-", fmt.Sprintf("%.1f", l.GEMM.Median),
				fmt.Sprintf("%.1f", l.GEMM.Spread), "-", j.log)
			fmt.Fprintln(to, strings.Join(cells, "\t"))
		}
	}
}
