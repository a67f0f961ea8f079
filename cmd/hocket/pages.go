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

// pageFlags holds the flags of pages and pictures, which have the same names in all commands.
type pageFlags struct{ html, svg string }

// add adds --html and --svg to c. A flag without a description is not added.
func (o *pageFlags) add(c *cobra.Command, html, svg string) {
	if html != "" {
		c.Flags().StringVar(&o.html, "html", "", html)
	}
	if svg != "" {
		c.Flags().StringVar(&o.svg, "svg", "", svg)
	}
}

// checkOutputs returns an error if one of the files cannot be written. Empty names are ignored.
func checkOutputs(names ...string) error {
	for _, name := range names {
		if name == "" {
			continue
		}
		if err := files.Check(name); err != nil {
			return outputFailure(err)
		}
	}
	return nil
}

// writeOutput writes a file atomically. writeOutput does nothing if the file has no name.
func writeOutput(file string, write func(io.Writer) error) error {
	if file == "" {
		return nil
	}
	if err := files.Write(file, write); err != nil {
		return outputFailure(err)
	}
	return nil
}

func writeText(file, text string) error {
	return writeOutput(file, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

func outputFailure(err error) error { return &failure{code: exitUsage, kind: "output", err: err} }

// alone reports whether the page or picture is the only output that is requested.
func (o *optFlags) alone() bool {
	return (o.html != "" || o.svg != "") && o.after == "" && o.out == "" && !o.explain
}

// mostPlanned is the largest number of ranks for which a page shows memory. The size of a plan grows with the number of
// ranks.
const mostPlanned = 64

// page writes the page of a lowered program. The page contains predictions, or the reason why there are none.
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
		page.Memory, _ = p.PlanMemory(opts) // a plan that is too large is not drawn
	}
	return writeOutput(file, func(w io.Writer) error { return l.WriteHTML(w, page) })
}

// picture writes the timelines of --svg: the timeline of the sequential program, and below it, on the same time scale,
// the timeline of the program with the strategy.
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
	return writeOutput(file, func(w io.Writer) error { return hocket.WriteTimelineSVG(w, titles, list...) })
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

// page writes the page of --html about a run or its refutation.
func (j *job) page(write func(w io.Writer, title, program string) error) error {
	title := "hocket run: " + j.sig.Func + ", " + j.flags.machine
	return writeOutput(j.flags.html, func(w io.Writer) error { return write(w, title, j.app.source) })
}

// pageOfRefutation writes the --html page about a program if err reports a fault that the proof of its plan found.
// pageOfRefutation returns err, or the reason why there is no page.
func (j *job) pageOfRefutation(err error, b hocket.Binding) error {
	if j.flags.html == "" || j.sig == nil {
		return err
	}
	v, bad := hocket.Check(j.program, b, hocket.CheckOptions{Strategy: j.flags.strategy})
	if bad != nil {
		return outputFailure(bad)
	}
	if v.Kind == hocket.Refuted {
		return cmp.Or(j.page(v.WriteHTML), err)
	}
	return err
}
