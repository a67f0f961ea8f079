package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/trace"
)

// explainFlags are what opt --explain adds.
type explainFlags struct {
	explain bool
	machine string
	nodes   int
}

func (o *explainFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&o.explain, "explain", false, "say what was resharded and why, what each strategy is predicted to take, and which was chosen (auto, unless --strategy says otherwise)")
	addPredicted(c, &o.machine, "auto, --explain and --html predict")
	f.IntVar(&o.nodes, "nodes", 0, "on how many nodes the ranks are, in order and evenly, as auto, --explain and --html predict (default: one)")
}

// addPredicted adds the machine that what predicts for.
func addPredicted(c *cobra.Command, to *string, what string) {
	c.Flags().StringVar(to, "machine", "cpu", "the `MACHINE` that "+what+" for: "+strings.Join(hocket.Machines(), ", ")+" or FILE.json")
	_ = c.RegisterFlagCompletionFunc("machine", cobra.FixedCompletions(hocket.Machines(), cobra.ShellCompDirectiveDefault))
}

func checkPredicted(name string) error {
	if err := hocket.CheckMachine(name); err != nil {
		return usagef("--machine: %w", err)
	}
	return nil
}

// check refuses flags that do not go together.
func (o *explainFlags) check(c *cobra.Command, strategy string) error {
	set := c.Flags().Changed
	switch {
	case set("machine") && !o.explain && !set("html") && strategy != "auto":
		return usagef("--machine changes nothing here").helping("it says what --explain, --html and --strategy auto predict for")
	case set("nodes") && (o.nodes < 1 || !o.explain && !set("html") && strategy != "auto"):
		return usagef("--nodes is a positive number, for what --explain, --html and --strategy auto predict")
	case o.explain && (set("print-after") || set("output")):
		return usagef("--explain prints no program").helping("leave --print-after and -o out, or --explain")
	}
	return checkPredicted(o.machine)
}

// explain prints what lowering does to a program.
func (a *app) explain(p *hocket.Program, opts hocket.LowerOptions) error {
	e, err := p.Explain(opts)
	if err != nil {
		return ofHocket(err)
	}
	a.out.Machine, a.out.Explain = e.Machine, e
	fmt.Fprintf(a.text, "%s on %d %s%s, predicted for %s (%s)\n", e.Func, e.Ranks, plural(e.Ranks, "rank"), dimsText(p, e.Dims), e.Machine, e.Source)
	if t := e.Measured(); t != "" {
		fmt.Fprintf(a.text, "collectives by %s, where it has them\n", t)
	}
	if b := e.Band(); b != "" {
		fmt.Fprintln(a.text, b)
	}
	if e.Nodes > 1 {
		fmt.Fprintf(a.text, "on %d nodes; between them: %s\n", e.Nodes, e.Across)
	}
	showExplanation(a.text, e, a.columns)
	return nil
}

// showExplanation prints an explanation for people.
func showExplanation(w io.Writer, e *hocket.Explanation, columns int) {
	showReshards(w, e)
	for i := range e.Pairs {
		showPair(w, &e.Pairs[i], e.By(e.Pairs[i].Tabled, e.Pairs[i].Across))
	}
	for _, n := range e.Alone {
		fmt.Fprintf(w, "\nline %d: %s\n", n.Line, n.Text)
	}
	switch {
	case e.Time > 0:
	case slices.ContainsFunc(e.Pairs, refused):
		fmt.Fprintf(w, "\nNo time is predicted: with these dims the strategy is refused.\n")
		return
	default:
		fmt.Fprintf(w, "\nNo time is predicted: it orders streams itself and has too many ranks to be planned here.\n")
		return
	}
	fmt.Fprintf(w, "\npredicted    %s", trace.Microseconds(e.Time))
	if e.Sequential > 0 && e.Sequential != e.Time {
		fmt.Fprintf(w, ", sequential %s (%+.0f %%)", trace.Microseconds(e.Sequential), 100*(e.Time/e.Sequential-1))
	}
	fmt.Fprint(w, "\n\n")
	_ = e.WriteTimeline(w, columns) // w remembers the error
	if e.Cut {
		fmt.Fprintln(w, "The timeline ends early: the rest is more of the same.")
	}
}

func showReshards(w io.Writer, e *hocket.Explanation) {
	if len(e.Reshards) == 0 {
		fmt.Fprint(w, "\nNothing is resharded.\n")
		return
	}
	fmt.Fprint(w, "\nResharded (bytes that each rank receives):\n")
	for _, r := range e.Reshards {
		fmt.Fprintf(w, "  line %d: %%%s: %s → %s\n", r.Line, r.Value, r.From, r.To)
		why := "as written"
		if r.Why != "" {
			why = "for " + r.Why
		}
		fmt.Fprintf(w, "    %s: %s, %s, %s%s\n", why, r.How, hocket.Bytes(r.Bytes), trace.Microseconds(r.Time), e.By(r.Tabled, r.Across))
	}
}

// refused reports whether a pair's strategy does not fit its dims.
func refused(p hocket.PairReport) bool {
	for _, s := range p.Strategies {
		if s.Strategy == p.Chosen && s.Refused != "" {
			return true
		}
	}
	return false
}

// showPair prints a pair; by is where its collective's time is from.
func showPair(w io.Writer, p *hocket.PairReport, by string) {
	fmt.Fprintf(w, "\nline %d: %%%s: %s, %s", p.Line, p.Value, p.Pair, hocket.Bytes(p.Bytes))
	if by != "" {
		fmt.Fprintf(w, ", its collective%s", by)
	}
	fmt.Fprintln(w)
	found := false
	for _, s := range p.Strategies {
		mark := "  "
		if s.Strategy == p.Chosen {
			mark, found = "→ ", true
		}
		text := trace.Microseconds(s.Time)
		if s.Refused != "" {
			text = "does not apply: " + s.Refused
		}
		fmt.Fprintf(w, "  %s%-12s %s\n", mark, s.Strategy, text)
	}
	if !found {
		fmt.Fprintf(w, "  → %s\n", p.Chosen)
	}
	if p.Why != "" {
		fmt.Fprintf(w, "    %s\n", p.Why)
	}
}
