// Command step converts the output of `hocket bench PROGRAM --json` to rows of docs/measured/steps.tsv or, with
// -ops, of docs/measured/ops.tsv. Other lines of JSON in the input are measurements of a peer, in the format of
// tools/peers or in this one:
//
//	{"who": …, "T": …, "step_us": …, "back_to_back_us": …}
//
// An example:
//
//	hocket bench llama.hkt -m cuda --json | step -machine 2xH100 -driver 580.159 -commit 0123456 -date 2026-11-27 -log h100x2-step-0123456
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
)

// source holds the first and the last columns of every row, which describe the measurement.
type source struct{ machine, driver, commit, date, log, products string }

// strategy returns the name of a strategy. The value of HOCKET_PRODUCTS in the measurement is appended to it.
func (s source) strategy(name string) string { return strings.TrimSpace(name + " " + s.products) }

func main() {
	var s source
	flag.StringVar(&s.machine, "machine", "", "number and model of the GPUs, such as 2xH100")
	flag.StringVar(&s.driver, "driver", "", "the version of the driver")
	flag.StringVar(&s.commit, "commit", "", "the commit of hocket, seven hex digits")
	flag.StringVar(&s.date, "date", "", "YYYY-MM-DD")
	flag.StringVar(&s.products, "products", "", "the value of HOCKET_PRODUCTS; library is appended to the name of the strategy")
	flag.StringVar(&s.log, "log", "", "the log's name, without its ending")
	ops := flag.Int("ops", 0, "write this many statements for each way instead, those that lose the most time")
	peerDims := flag.String("dims", "S=1024", "dims of the lines of peers in addition to T, sorted by name")
	ranks := flag.Int("n", 2, "ranks of peers' lines")
	flag.Parse()
	if err := s.convert(os.Stdin, os.Stdout, *ops, *peerDims, *ranks); err != nil {
		log.Fatal(err)
	}
}

// figure and report are the parts of a report that this command reads.
type figure struct{ Median, Spread float64 }

type report struct {
	Bench struct {
		Ranks int
		Step  *struct {
			Func    string
			Dims    map[string]int64
			BoundUS float64 `json:"bound_us"`
			BoundBy string  `json:"bound_by"`
			Ways    []struct {
				Strategy, Issued, Refused string
				BackToBack                figure `json:"back_to_back_us"`
				Single                    figure `json:"single_us"`
				Host                      figure `json:"host_us"`
				Ops                       []struct {
					Op      string
					Line    int
					Times   int
					Shapes  string
					US      figure
					BoundUS float64 `json:"bound_us"`
					BoundBy string  `json:"bound_by"`
				}
			}
		}
	}
}

// peer is one measurement of another program, in either format.
type peer struct {
	Op, Name, Shape, Issued string
	US                      float64

	Who        string
	T          int64
	Step       float64 `json:"step_us"`
	BackToBack float64 `json:"back_to_back_us"`
}

// convert reads JSON objects and writes rows. Between objects, it skips lines that do not begin with a brace.
func (s source) convert(r io.Reader, w io.Writer, ops int, peerDims string, ranks int) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.Peek(1)
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if line[0] != '{' {
			if _, err := in.ReadString('\n'); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			continue
		}
		var raw json.RawMessage
		dec := json.NewDecoder(in)
		if err := dec.Decode(&raw); err != nil {
			return fmt.Errorf("no JSON: %w", err)
		}
		rest := io.MultiReader(dec.Buffered(), in)
		in = bufio.NewReader(rest)
		var rep report
		if err := json.Unmarshal(raw, &rep); err != nil {
			return err
		}
		switch {
		case rep.Bench.Step != nil && ops > 0:
			s.opRows(w, &rep, ops)
		case rep.Bench.Step != nil:
			s.stepRows(w, &rep)
		default:
			var p peer
			if err := json.Unmarshal(raw, &p); err != nil {
				return err
			}
			if ops == 0 {
				if err := s.peerRow(w, &p, peerDims, ranks); err != nil {
					return err
				}
			}
		}
	}
}

func (s source) row(w io.Writer, commit string, cells ...any) {
	text := []string{s.machine, s.driver, commit, s.date}
	for _, c := range cells {
		switch c := c.(type) {
		case float64:
			text = append(text, fmt.Sprintf("%.1f", c))
		default:
			text = append(text, fmt.Sprint(c))
		}
	}
	fmt.Fprintln(w, strings.Join(append(text, s.log), "\t"))
}

func (s source) stepRows(w io.Writer, rep *report) {
	st := rep.Bench.Step
	for _, way := range st.Ways {
		if way.Refused == "" {
			s.row(w, s.commit, "hocket", st.Func, dims(st.Dims), rep.Bench.Ranks, s.strategy(way.Strategy), way.Issued,
				way.BackToBack.Median,
				way.BackToBack.Spread, way.Single.Median, way.Host.Median, st.BoundUS, st.BoundBy)
		}
	}
}

func (s source) opRows(w io.Writer, rep *report, most int) {
	st := rep.Bench.Step
	for _, way := range st.Ways {
		for _, o := range way.Ops[:min(len(way.Ops), most)] {
			s.row(w, s.commit, "hocket", st.Func, dims(st.Dims), rep.Bench.Ranks, s.strategy(way.Strategy), way.Issued,
				o.Op,
				o.Line, o.Times, o.Shapes,
				o.US.Median, o.US.Spread, o.BoundUS, o.BoundBy)
		}
	}
}

func (s source) peerRow(w io.Writer, p *peer, peerDims string, ranks int) error {
	switch {
	case p.Name != "" && p.US > 0:
		s.row(w, "-", p.Name, p.Op, p.Shape, ranks, "-", p.Issued, p.US, "-", "-", "-", "-", "-")
	case p.Who != "" && p.BackToBack > 0:
		s.row(w, "-", p.Who, "step", strings.TrimSpace(fmt.Sprintf("%s T=%d", peerDims, p.T)), ranks, "-", "graph",
			p.BackToBack, "-", p.Step,
			"-", "-", "-")
	default:
		return fmt.Errorf("an object is neither a report of a program nor a figure: %+v", *p)
	}
	return nil
}

// dims returns the dims that identify a row, sorted by name.
func dims(all map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, all[name]))
	}
	return strings.Join(parts, " ")
}
