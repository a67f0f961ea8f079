package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/compile"
)

type optFlags struct {
	strategy, after, out string
	explainFlags
	pageFlags
}

func (a *app) optCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "opt PROGRAM [flags]",
		SuggestFor: []string{"compile", "lower", "build", "optimize", "optimise", "print"},
		Short:      "Lower a program and print it",
		Long: `Lowers a sharded program to an explicit host program, pass by pass, and prints
what the last pass left. What is printed is a program that hocket runs.`,
		Example: `  hocket opt examples/mlp.hkt
  hocket opt examples/mlp.hkt --print-after shard
  hocket opt examples/mlp.hkt -o lowered.hkt
  hocket opt examples/mlp.hkt --strategy chunked --html mlp.html
  hocket opt examples/mlp.hkt --explain --machine h200x4 --dim T=8192 --dim H=8192 --dim F=28672`,
		Args: onePROGRAM,
	}
	flags := a.addBindFlags(c)
	o := &optFlags{}
	addStrategy(c, &o.strategy)
	f := c.Flags()
	f.StringVar(&o.after, "print-after", "",
		"print the program after `PASS`, or each: "+strings.Join(append(hocket.Passes(), "all"), ", "))
	f.StringVarP(&o.out, "output", "o", "", "write the program to `FILE`")
	o.explainFlags.add(c)
	o.pageFlags.add(c, "write a page with a column per pass to `FILE` instead; click a value to follow it",
		"draw the predicted timeline, sequential and by --strategy, to `FILE` instead")
	_ = c.RegisterFlagCompletionFunc("print-after",
		cobra.FixedCompletions(append(hocket.Passes(), "all"), cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(c *cobra.Command, args []string) error {
		b, err := flags.binding(c)
		if err != nil {
			return err
		}
		if err := cmp.Or(o.check(), o.explainFlags.check(c, o.strategy)); err != nil {
			return err
		}
		p, err := a.parseProgram(c.Context(), args[0], &b)
		if err != nil {
			return err
		}
		// Lowering does not need the values of dims. The program must declare the dims that the command line sets.
		if sig, err := bind(p, b); err == nil {
			a.out.note(sig)
		} else if flags.set(c) || o.explain || o.strategy == "auto" || o.svg != "" {
			return err
		}
		opts := hocket.LowerOptions{Strategy: o.strategy, Machine: o.machine, Nodes: o.nodes, Binding: b}
		if o.explain && !c.Flags().Changed("strategy") {
			opts.Strategy = "auto"
		}
		a.progress.At("lowering and predicting", 0, 0)
		if o.html != "" {
			if err := a.page(p, o.html, opts); err != nil {
				return err
			}
		}
		if o.svg != "" {
			if err := a.picture(p, o.svg, opts); err != nil {
				return err
			}
		}
		switch {
		case o.explain:
			return a.explain(p, opts)
		case o.alone() && !a.json:
			return nil
		}
		return a.opt(p, o, opts)
	}
	return c
}

func addStrategy(c *cobra.Command, to *string) {
	names := hocket.Strategies()
	c.Flags().StringVar(to, "strategy", names[0],
		"overlap communication with computation by this `STRATEGY`: "+strings.Join(names,
			", ")+", or with a number of parts, as 'chunked(8)'")
	_ = c.RegisterFlagCompletionFunc("strategy", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

func checkStrategy(s string) error {
	if err := compile.CheckStrategy(s); err != nil {
		return usagef("--strategy: %w", err).helping("one of: %s; chunked may carry a number of chunks, exchange one of parts of each block: 'chunked(8)', 'exchange(2)'", strings.Join(hocket.Strategies(), ", "))
	}
	return nil
}

func (o *optFlags) check() error {
	if names := append(hocket.Passes(), "all", ""); !slices.Contains(names, o.after) {
		return usagef("--print-after: unknown pass %q", o.after).helping("one of: %s",
			strings.Join(names[:len(names)-1], ", "))
	}
	return checkStrategy(o.strategy)
}

func (a *app) opt(p *hocket.Program, o *optFlags, opts hocket.LowerOptions) error {
	if o.after != "all" {
		opts.StopAfter = o.after
	}
	l, err := p.Lower(opts)
	if err != nil {
		return ofHocket(err)
	}
	text := l.Program.String()
	for _, s := range l.Stages {
		a.out.Stages = append(a.out.Stages, stage{Pass: s.Pass, Changed: s.Changed, Text: s.Text})
	}
	if o.after == "all" {
		text = allStages(p, l)
	}
	if o.out != "" {
		return writeText(o.out, text)
	}
	a.progress.End()
	_, err = io.WriteString(a.text, text)
	return err
}

// allStages returns the source text and the text after each pass. The headings between them are comments.
func allStages(p *hocket.Program, l *hocket.Lowered) string {
	var b strings.Builder
	fmt.Fprintf(&b, "// source\n%s", p)
	for _, s := range l.Stages {
		fmt.Fprintf(&b, "\n// after %s", s.Pass)
		if !s.Changed {
			fmt.Fprint(&b, ": no change\n")
			continue
		}
		fmt.Fprintf(&b, "\n%s", s.Text)
	}
	return b.String()
}
