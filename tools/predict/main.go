// Command predict measures how good predictions of layers are. "measure" times layers under each strategy, and in the
// same rounds their GEMM and their collective alone, and writes rows of docs/measured/predictions.tsv. "judge" reads
// rows and prints the errors of predictions, and what auto's choice cost. "random" measures auto against sequential on
// layers drawn at random, writes rows of docs/measured/auto.tsv, and reports which layers were slower twice:
//
//	predict -row '2xH100 580.159 0123456 2026-11-27' -log h100x2-predict measure > rows.tsv
//	predict judge ../docs/measured/predictions.tsv
//	predict judge ../docs/measured/nodes.tsv
//	predict -row '2xH100 580.159 0123456 2026-11-28' -log h100x2-auto -seed 7 random > rows.tsv
//
// Each row has two predictions. predicted_us is auto's own, from the machine's description and the dispatch table.
// alone_us is by the same model with the measured times of the layer's GEMM and collective alone, whole and in parts;
// it uses no measured time of the layer. With -again, judge computes that prediction again with the current model.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strings"
	"time"

	_ "hocket.example/hocket/cuda"
	"hocket.example/hocket/internal/bench"
	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
)

// columns are those of docs/measured/predictions.tsv. gemm2_us and wire4_us are of half of the layer's rows, and of a quarter.
var columns = strings.Fields("machine driver commit date who op m n k ranks strategy issue us iqr gemm_us gemm2_us " +
	"gemm4_us wire_us wire2_us wire4_us predicted_us alone_us auto log")

// shapes are layers of Llama 3 8B and 70B, of all sizes early on: a run may end before the last.
const shapes = `ag-gemm 2048x28672x8192   gemm-rs 4096x8192x8192    gemm-ar 1024x4096x14336
	ag-gemm 512x28672x8192    gemm-rs 256x8192x8192     gemm-ar 8192x8192x8192
	ag-gemm 16384x6144x4096   gemm-rs 1024x8192x28672   gemm-ar 256x8192x28672
	ag-gemm 1024x6144x4096    gemm-rs 16384x4096x14336  gemm-ar 2048x8192x28672
	ag-gemm 4096x10240x8192   gemm-rs 512x4096x14336    gemm-ar 512x8192x8192
	ag-gemm 256x10240x8192    gemm-rs 2048x4096x4096    gemm-ar 16384x4096x14336
	ag-gemm 8192x28672x8192   gemm-rs 8192x8192x28672   gemm-ar 4096x4096x4096
	ag-gemm 2048x28672x4096`

var ops = map[string]ir.Op{"ag-gemm": ir.OpAllGather, "gemm-rs": ir.OpReduceScatter, "gemm-ar": ir.OpAllReduce}

func main() {
	var j job
	flag.StringVar(&j.device, "m", "cuda", "where to measure: cuda or cpu")
	flag.IntVar(&j.ranks, "n", 2, "ranks")
	flag.IntVar(&j.rounds, "rounds", 3, "rounds that count")
	flag.StringVar(&j.shapes, "shapes", "", "layers to measure: `OP MxNxK` … (default: a list, or drawn ones)")
	flag.IntVar(&j.count, "count", 60, "how many layers random draws")
	flag.Uint64Var(&j.seed, "seed", uint64(time.Now().UnixNano()), "what random draws with")
	flag.StringVar(&j.issue, "issue", "graph", "how layers are run: graph or eager")
	flag.DurationVar(&j.most, "for", time.Hour, "begin no shape after so long")
	flag.StringVar(&j.row, "row", "- - - -", "the first columns of rows: machine, driver, commit, date")
	flag.StringVar(&j.log, "log", "-", "the last column of rows")
	again := flag.String("again", "", "a `DESCRIPTION` by which judge predicts anew, a file or a name: h100x2")
	flag.Parse()
	var err error
	switch flag.Arg(0) {
	case "measure":
		err = j.measure(context.Background(), os.Stdout)
	case "random":
		err = j.random(context.Background(), os.Stdout)
	case "judge":
		err = judge(os.Stdout, flag.Args()[1:], *again)
	default:
		err = fmt.Errorf("measure, random or judge FILE, not %q", flag.Arg(0))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// job is what is measured, and where.
type job struct {
	device, shapes, issue, row, log string
	ranks, rounds, count            int
	seed                            uint64
	most                            time.Duration

	described *machine.Description
}

// measure writes the rows of a shape once it is measured. A shape that fails is named, and the next one is begun.
func (j *job) measure(ctx context.Context, to io.Writer) error {
	if err := j.describe(); err != nil {
		return err
	}
	fmt.Fprintln(to, strings.Join(columns, "\t"))
	words := strings.Fields(cmp.Or(j.shapes, shapes))
	began := time.Now()
	var failed []error
	for i := 0; i+1 < len(words); i += 2 {
		if time.Since(began) > j.most {
			fmt.Fprintf(os.Stderr, "%d of %d layers in %v\n", i/2, len(words)/2, j.most)
			break
		}
		at := time.Now()
		if err := j.layer(ctx, to, words[i], words[i+1]); err != nil {
			failed = append(failed, fmt.Errorf("%s %s: %w", words[i], words[i+1], err))
		}
		fmt.Fprintf(os.Stderr, "%s %s: %.1f s\n", words[i], words[i+1], time.Since(at).Seconds())
	}
	return errors.Join(failed...)
}

// describe finds what auto predicts with.
func (j *job) describe() (err error) {
	dev, err := contest.Open(j.device)
	if err != nil {
		return err
	}
	if j.described, _, err = compile.DescriptionFor(dev, j.ranks); err != nil {
		return err
	}
	if found := comm.FindOn(dev, j.ranks); found.Table != nil {
		j.described.Times = &found
	}
	return nil
}

func (j *job) layer(ctx context.Context, to io.Writer, op, shape string) error {
	s, err := bench.ParseShape(shape)
	if err != nil {
		return err
	}
	if ops[op] == 0 {
		return fmt.Errorf("there is no layer %q; there are ag-gemm, gemm-rs and gemm-ar", op)
	}
	opts := bench.Options{Machine: j.device, Ranks: j.ranks, Rounds: j.rounds, Shapes: []bench.Shape{s}, Alone: true,
		Eager: j.issue == "eager", Graph: j.issue == "graph",
		Strategies: []string{"chunked(2)", "chunked(4)", "exchange", "exchange(2)"}}
	if op == "ag-gemm" {
		opts.Strategies = append(opts.Strategies, "ahead")
	}
	rep, err := bench.Run(ctx, op, opts)
	if err != nil {
		return err
	}
	for _, l := range rep.Layers {
		if err := j.rows(to, op, l); err != nil {
			return err
		}
	}
	return nil
}

// rows writes a row of each strategy.
func (j *job) rows(to io.Writer, op string, l bench.Layer) error {
	var alone []sim.Alone
	// A GPU slows down while it works. GEMMs before and after the layers show how fast it was then. The times of GEMMs
	// that were measured in other runs are scaled by that of the whole GEMM.
	pace := 1.0
	cells := map[string]string{"who": "hocket", "op": op, "m": fmt.Sprint(l.M), "n": fmt.Sprint(l.N),
		"k":     fmt.Sprint(l.K),
		"ranks": fmt.Sprint(j.ranks), "issue": j.issue, "log": j.log}
	for i, v := range strings.Fields(j.row) {
		cells[columns[i]] = v
	}
	for _, a := range l.Alone {
		one := sim.Alone{Parts: a.Parts, GEMM: a.GEMM.Median, Collective: a.Collective.Median}
		if j.issue == "graph" && a.GraphGEMM != nil {
			one.GEMM, one.Collective = a.GraphGEMM.Median, a.GraphCollective.Median
		}
		if a.Parts == 1 && one.GEMM > 0 {
			pace = l.GEMM.Median / one.GEMM
		}
		one.GEMM *= pace
		alone = append(alone, one)
		part := strings.TrimSuffix(fmt.Sprint(a.Parts), "1")
		cells["gemm"+part+"_us"] = fmt.Sprintf("%.1f", one.GEMM)
		cells["wire"+part+"_us"] = fmt.Sprintf("%.1f", one.Collective)
	}
	for _, s := range l.Strategies {
		took := s.Time
		if j.issue == "graph" && s.Graph != nil {
			took = *s.Graph
		}
		if reason := s.Refused + s.GraphRefused; reason != "" || took.Median <= 0 {
			fmt.Fprintf(os.Stderr, "%s %s, %s: not measured: %s\n", op, l.Shape, s.Strategy, reason)
			continue
		}
		cells["strategy"], cells["auto"] = s.Strategy, l.Auto
		cells["us"], cells["iqr"] = fmt.Sprintf("%.1f", took.Median), fmt.Sprintf("%.1f", took.Spread)
		delete(cells, "predicted_us") // of what auto does not weigh
		if s.Predicted > 0 {
			cells["predicted_us"] = fmt.Sprintf("%.1f", s.Predicted)
		}
		p := sim.Layer(ops[op], int64(j.ranks), l.M, l.N, l.K)
		got, err := sim.Named(p, s.Strategy, sim.Timed(p, alone, j.described))
		if err != nil {
			return err
		}
		cells["alone_us"] = fmt.Sprintf("%.1f", got.Time)
		var row []string
		for _, c := range columns {
			v := cells[c]
			if v == "" {
				v = "-"
			}
			row = append(row, v)
		}
		fmt.Fprintln(to, strings.Join(row, "\t"))
	}
	return nil
}

// row is one line of a table, by column.
type row map[string]string

// read reads tables, each with its columns in the first line.
func read(files []string) (rows []row, err error) {
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		var head []string
		for lines.Scan() {
			cells := strings.Split(lines.Text(), "\t")
			switch {
			case head == nil:
				head = cells
				continue
			case slices.Equal(head, cells):
				continue // tables behind each other
			case len(cells) != len(head):
				return nil, fmt.Errorf("%s: %d cells, want %d: %q", file, len(cells), len(head), lines.Text())
			}
			r := row{}
			for i, c := range head {
				r[c] = cells[i]
			}
			rows = append(rows, r)
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	if len(rows) == 0 {
		return nil, errors.New("judge FILE …: no rows")
	}
	return rows, nil
}
