package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"hocket.example/hocket/internal/report"
	"hocket.example/hocket/internal/trace/account"
	"hocket.example/hocket/internal/trace/profile"
)

// traceFlags holds the flags of trace.
type traceFlags struct {
	pageFlags
	against []string
	failIf  []string
	program string
	bound   float64 // in microseconds

	conditions []*account.Condition // the parsed values of failIf
}

func (a *app) traceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "trace FILE… [flags]",
		SuggestFor: []string{"profile", "timeline"},
		Short:      "Show where the time of a profiled run was spent",
		Long: `Reads the profiles of all ranks of a job, puts them on one clock, and says how long
each collective moved data, which ranks waited for which others, and why; how much communication
was not overlapped; and which chain of work determined the total time.

A file is one of
  a timeline of hocket run --trace
  a timeline of torch.profiler (JSON, also gzipped), of one rank or of several
  what nsys stats --report cuda_gpu_trace prints, as text or CSV
  what nsys export --type sqlite writes
  a flight record of torch, in JSON or pickled, of which nothing is executed
The type is detected from the contents. Rank numbers are read from the files, or else from
their names, as rank3. docs/trace.md defines every number.

A CONDITION is METRIC > LIMIT. METRIC is one of exposed, wait, transfer and idle,
summed over ranks; skew, residual, span, step; or problems. LIMIT is a time (80us,
1.5ms, 2s), or a percentage of the ranks' time for the first four; for problems it
is a number.`,
		Example: `  hocket run examples/mlp.hkt --trace run.json && hocket trace run.json
  hocket trace run.json --fail-if 'exposed > 100%' --html run.html`,
		Args: cobra.ArbitraryArgs,
	}
	o := &traceFlags{}
	f := c.Flags()
	o.pageFlags.add(c, "write a page to `FILE`: where the time went", "")
	f.StringVar(&o.program, "program", "", "with --html, show the program in `FILE` on the page, with the time of each line")
	f.StringArrayVar(&o.against, "against", nil,
		"compare with an older profile: `FILE`; repeat for each file of that profile")
	f.StringArrayVar(&o.failIf, "fail-if", nil, "exit with 1 where a `CONDITION` holds (see above); repeatable")
	f.Float64Var(&o.bound, "max-residual", account.DefaultBound/1e3,
		"separate waiting from transfer only if the clocks agree within `MICROSECONDS`")
	f.BoolVar(&a.json, "json", a.json, "print one JSON object")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := o.check(c, args); err != nil {
			return err
		}
		return a.trace(c.Context(), o, args)
	}
	return c
}

// check returns an error for values that are invalid or have no effect.
func (o *traceFlags) check(c *cobra.Command, paths []string) error {
	switch {
	case len(paths) == 0:
		return usagef("profiles are required: FILE…").helping("see %s --help", c.CommandPath())
	case !(o.bound > 0 && o.bound <= 1e9):
		return usagef("--max-residual is %v, but must be positive and at most 1e9", o.bound)
	case o.program != "" && o.html == "":
		return usagef("--program has no effect without --html")
	}
	for _, text := range o.failIf {
		cond, err := account.ParseCondition(text)
		if err != nil {
			return usagef("--fail-if: %w", err)
		}
		o.conditions = append(o.conditions, cond)
	}
	return checkOutputs(o.html)
}

// softLimit is the memory limit, in bytes, from which the garbage collector runs more often, so that large profiles do
// not need twice their size in memory.
const softLimit = 768 << 20

func (a *app) trace(ctx context.Context, o *traceFlags, paths []string) error {
	debug.SetMemoryLimit(softLimit)
	about := report.Run{Title: "hocket trace " + strings.Join(paths[:min(len(paths), 4)], " ")}
	if o.program != "" {
		var err error
		if _, about.Program, err = a.readProgram(ctx, o.program); err != nil {
			return err
		}
	}
	a.progress.At("reading profiles", 0, 0)
	r, old, err := account.Pair(paths, o.against, int64(o.bound*1e3))
	a.progress.End()
	if err != nil {
		f := inputf("%w", err)
		if errors.As(err, new(*profile.TwiceError)) {
			help := "if they are of two runs, give the files of one run, and --against for each file of the other"
			if len(o.against) > 0 {
				help = "--against takes one file: repeat it for each file of the older profile, as in " +
					"--against old.rank0.json --against old.rank1.json"
			}
			f = f.helping("%s", help)
		}
		return f
	}
	if o.program != "" {
		switch last, lines := report.LastLine(r), 1+strings.Count(strings.TrimRight(about.Program, "\n"), "\n"); {
		case last == 0:
			return usagef("--program has no effect: no event of %s names a line of a program", paths[0]).helping(
				"timelines that hocket run --trace writes name lines")
		case last > lines:
			return usagef("--program: an event of %s is of line %d, but %s has %d lines", paths[0], last, o.program,
				lines).helping("give the program that was run")
		}
	}
	a.out.Ranks, a.out.Report = r.Ranks, r
	if err := r.WriteText(a.text); err != nil {
		return err
	}
	if old != nil {
		a.out.Against, a.out.Unlike = r.Against(old), r.Unlike(old)
		if err := account.WriteAgainst(a.text, a.out.Against, a.out.Unlike); err != nil {
			return err
		}
		about.Against, about.Unlike = a.out.Against, a.out.Unlike
	}
	if o.html != "" {
		if err := writeOutput(o.html, func(w io.Writer) error { return report.WriteRun(w, r, about) }); err != nil {
			return err
		}
		fmt.Fprintf(a.text, "\nwritten: %s\n", o.html)
	}
	return o.judge(r)
}

// judge returns an error if one of the conditions in the flags is true for the report.
func (o *traceFlags) judge(r *account.Report) error {
	var held []string
	for _, c := range o.conditions {
		holds, words, err := c.Holds(r)
		if err != nil {
			return &failure{code: exitUndecided, kind: "trace", err: fmt.Errorf("--fail-if %w", err)}
		}
		if holds {
			held = append(held, words)
		}
	}
	if len(held) == 0 {
		return nil
	}
	return &failure{code: exitProgram, kind: "trace", err: errors.New("--fail-if " + strings.Join(held, "; "))}
}
