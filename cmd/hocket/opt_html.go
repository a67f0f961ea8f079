package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

// htmlFlags holds the flags of opt that request pages and pictures.
type htmlFlags struct{ html, svg string }

func (o *htmlFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&o.html, "html", "",
		"write a page with a column per pass to `FILE` instead; click a value to follow it")
	c.Flags().StringVar(&o.svg, "svg", "",
		"draw the predicted timeline, sequential and by --strategy, to `FILE` instead")
}

// check returns an error for flags that cannot be combined.
func (o *htmlFlags) check(c *cobra.Command) error {
	switch {
	case c.Flags().Changed("html") && o.html == "":
		return usagef("--html is given without a file name")
	case c.Flags().Changed("svg") && o.svg == "":
		return usagef("--svg is given without a file name")
	}
	return nil
}

// alone reports whether the page or picture is the only output that is requested.
func (o *optFlags) alone() bool {
	return (o.html != "" || o.svg != "") && o.after == "" && o.out == "" && !o.explain
}

// mostPlanned is the largest number of ranks for which a page shows memory. The size of a plan grows with the number of
// ranks.
const mostPlanned = 64

// page writes the page of --html. The page contains predictions, or the reason why there are none.
func (a *programs) page(p *hocket.Program, file string, opts hocket.LowerOptions) error {
	l, err := p.Lower(opts)
	if err != nil {
		return ofHocket(err)
	}
	var page hocket.HTMLOptions
	if page.Explanation, err = p.Explain(opts); err != nil {
		page.Unexplained = firstMessage(err)
	}
	if page.Explanation != nil && page.Explanation.Ranks <= mostPlanned {
		page.Memory, _ = p.PlanMemory(opts) // too large a plan has no picture
	}
	err = files.Write(file, func(w io.Writer) error { return l.WriteHTML(w, page) })
	if err != nil {
		return &failure{code: exitUsage, kind: "output", err: err}
	}
	return nil
}

// picture draws the timelines of --svg: the timeline of the sequential program and below it, on the same scale, the
// timeline of the strategy.
func (a *programs) picture(p *hocket.Program, file string, opts hocket.LowerOptions) error {
	var titles []string
	var list []*hocket.Explanation
	for _, strategy := range slices.Compact([]string{"sequential", cmp.Or(opts.Strategy, "sequential")}) {
		opts.Strategy = strategy
		e, err := p.Explain(opts)
		if err != nil {
			return ofHocket(err)
		}
		if len(e.Timeline) == 0 {
			return &failure{code: exitUndecided, kind: "predict",
				err:  errors.New("no timeline can be drawn, because no time is predicted"),
				help: "hocket opt --explain shows the reason"}
		}
		list = append(list, e)
		titles = append(titles, fmt.Sprintf("%s: %s on %d ranks, %s: predicted %s, of it %s exposed communication",
			strategy, e.Func,
			e.Ranks, e.Machine, trace.Microseconds(e.Time), trace.Microseconds(e.Exposed)))
	}
	err := files.Write(file, func(w io.Writer) error { return hocket.WriteTimelineSVG(w, titles, list...) })
	if err != nil {
		return &failure{code: exitUsage, kind: "output", err: err}
	}
	return nil
}

// firstMessage describes an error in one sentence.
func firstMessage(err error) string {
	for _, d := range findings(err) {
		if d.Severity == ir.Error {
			return d.Message
		}
	}
	return err.Error()
}
