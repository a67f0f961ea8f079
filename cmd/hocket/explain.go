package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

// explainFlags holds the flags that opt --explain adds to opt.
type explainFlags struct {
	explain bool
	machine string
	nodes   int
}

func (o *explainFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&o.explain, "explain", false,
		"show each reshard with its reason, the predicted time of each strategy, "+
			"and which was chosen (auto, unless --strategy says otherwise)")
	addPredicted(c, &o.machine, "auto, --explain and --html predict")
	f.IntVar(&o.nodes, "nodes", 0,
		"number of nodes, with the ranks spread evenly and in order, for auto, --explain and --html (default: one)")
}

// addPredicted adds the flag that selects the machine for which times are predicted. The argument what names the
// predicted times in the flag's help.
func addPredicted(c *cobra.Command, to *string, what string) {
	c.Flags().StringVar(to, "machine", defaultMachine,
		"the `MACHINE` that "+what+" for: "+strings.Join(hocket.Machines(), ", ")+" or FILE.json")
	_ = c.RegisterFlagCompletionFunc("machine",
		cobra.FixedCompletions(hocket.Machines(), cobra.ShellCompDirectiveDefault))
}

func checkPredicted(name string) error {
	if err := compile.CheckMachine(name); err != nil {
		return usagef("--machine: %w", err)
	}
	return nil
}

// check returns an error for flags that cannot be combined.
func (o *explainFlags) check(c *cobra.Command, strategy string) error {
	set := c.Flags().Changed
	switch {
	case set("machine") && !o.explain && !set("html") && !set("svg") && strategy != "auto":
		return usagef("--machine has no effect here").helping("--machine selects the machine for the predictions of --explain, --html and --strategy auto")
	case set("nodes") && (o.nodes < 1 || !o.explain && !set("html") && strategy != "auto"):
		return usagef("--nodes must be a positive number; it applies to the predictions of --explain, --html and --strategy auto")
	case o.explain && (set("print-after") || set("output")):
		return usagef("--explain prints no program").helping("remove --print-after and -o, or remove --explain")
	}
	return checkPredicted(o.machine)
}

// explain prints an explanation of the lowering of a program.
func (a *app) explain(p *hocket.Program, opts hocket.LowerOptions) error {
	e, err := compile.Explain(p.IR(), compile.Options{Strategy: opts.Strategy, Machine: opts.Machine, Nodes: opts.Nodes,
		Limits: compile.Limits(a.limits)}, ir.Binding(opts.Binding))
	if err != nil {
		return ofHocket(err)
	}
	a.progress.End()
	a.out.Machine, a.out.Explain = e.Machine, e
	fmt.Fprintf(a.text, "%s on %d %s%s, predicted for %s (%s)\n", e.Func, e.Ranks, plural(e.Ranks, "rank"),
		dimsText(p, e.Dims), e.Machine, e.Source)
	if t := e.Measured(); t != "" {
		fmt.Fprintf(a.text, "times of collectives from %s, unless it lacks them\n", t)
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

// showExplanation prints an explanation as text.
func showExplanation(w io.Writer, e *compile.Explanation, columns int) {
	showReshards(w, e)
	for _, g := range grouped(e.Pairs, samePair) {
		showPair(w, g, e.By(g[0].Tabled, g[0].Across))
	}
	for _, n := range e.Alone {
		fmt.Fprintf(w, "\nline %d: %s\n", n.Line, n.Text)
	}
	switch {
	case e.Time > 0:
	case slices.ContainsFunc(e.Pairs, refused):
		fmt.Fprintf(w, "\nNo time is predicted, because the strategy cannot be applied with these dims.\n")
		return
	default:
		fmt.Fprintf(w, "\nNo time is predicted, because the program orders streams explicitly and has too many ranks to plan.\n")
		return
	}
	fmt.Fprintf(w, "\npredicted    %s", trace.Microseconds(e.Time))
	if e.Sequential > 0 && e.Sequential != e.Time {
		fmt.Fprintf(w, ", sequential %s (%+.0f %%)", trace.Microseconds(e.Sequential), 100*(e.Time/e.Sequential-1))
	}
	fmt.Fprintf(w, "\nexposed      %s of communication that no computation overlaps", trace.Microseconds(e.Exposed))
	if e.SequentialExposed != e.Exposed {
		fmt.Fprintf(w, ", sequential %s", trace.Microseconds(e.SequentialExposed))
	}
	if e.FLOPs > 0 {
		fmt.Fprintf(w, "\nGEMMs        %s a rank", tflops(e.FLOPs, e.Time))
		if e.Sequential > 0 && e.Sequential != e.Time {
			fmt.Fprintf(w, ", sequential %s", tflops(e.FLOPs, e.Sequential))
		}
	}
	fmt.Fprint(w, "\n\n")
	_ = e.WriteTimeline(w, columns) // the writer w records the error
	if e.Cut {
		fmt.Fprintln(w, "The timeline is cut off: the remaining part repeats the same pattern.")
	}
}

// tflops formats the rate of n operations in us microseconds.
func tflops(n, us float64) string { return fmt.Sprintf("%.3g TFLOP/s", n/us/1e6) }

func showReshards(w io.Writer, e *compile.Explanation) {
	if len(e.Reshards) == 0 {
		fmt.Fprint(w, "\nNothing is resharded.\n")
		return
	}
	fmt.Fprint(w, "\nResharded (bytes that each rank receives):\n")
	for _, g := range grouped(e.Reshards, sameReshard) {
		r := &g[0]
		fmt.Fprintf(w, "  %s: %s → %s\n", places(g, func(r compile.Reshard) (int32, string) { return r.Line, r.Value }),
			r.From, r.To)
		why := "as written"
		if r.Why != "" {
			why = "for " + r.Why
		}
		fmt.Fprintf(w, "    %s: %s, %s, %s%s%s\n", why, r.How, tensor.Size(r.Bytes), trace.Microseconds(r.Time),
			e.By(r.Tabled, r.Across), each(len(g)))
	}
}

// grouped groups elements that differ only in their lines and values. The groups are in the order of their first
// elements.
func grouped[T any](list []T, same func(a, b *T) bool) [][]T {
	var out [][]T
	for i := range list {
		k := slices.IndexFunc(out, func(g []T) bool { return same(&g[0], &list[i]) })
		if k < 0 {
			out = append(out, []T{list[i]})
		} else {
			out[k] = append(out[k], list[i])
		}
	}
	return out
}

func sameReshard(a, b *compile.Reshard) bool {
	x := *b
	x.Line, x.Value = a.Line, a.Value
	return x == *a
}

func samePair(a, b *compile.PairReport) bool {
	return a.Pair == b.Pair && a.Bytes == b.Bytes && a.Chosen == b.Chosen && a.Tabled == b.Tabled &&
		a.Across == b.Across && a.Why == b.Why &&
		slices.EqualFunc(a.Strategies, b.Strategies, func(x, y compile.Estimate) bool {
			return x.Strategy == y.Strategy && x.Time == y.Time && x.Refused == y.Refused
		})
}

// places lists the lines and values of a group: "line 8: %y", "lines 8 and 31: %y, %z".
func places[T any](g []T, at func(T) (line int32, value string)) string {
	const most = 4
	var lines, values []string
	for _, x := range g[:min(len(g), most)] {
		line, value := at(x)
		lines, values = append(lines, fmt.Sprint(line)), append(values, "%"+value)
	}
	switch more := len(g) - most; {
	case len(g) == 1:
		return "line " + lines[0] + ": " + values[0]
	case more > 0:
		return fmt.Sprintf("lines %s and %d more: %s, …", strings.Join(lines, ", "), more, strings.Join(values, ", "))
	}
	last := len(lines) - 1
	return "lines " + strings.Join(lines[:last], ", ") + " and " + lines[last] + ": " + strings.Join(values, ", ")
}

// each returns a remark that a number applies to each of n elements and is not their sum.
func each(n int) string {
	if n == 1 {
		return ""
	}
	return " each"
}

// refused reports whether the strategy of a pair cannot be used with the pair's dims.
func refused(p compile.PairReport) bool {
	for _, s := range p.Strategies {
		if s.Strategy == p.Chosen && s.Refused != "" {
			return true
		}
	}
	return false
}

// showPair prints a group of similar pairs. by names the source of the time of their collectives.
func showPair(w io.Writer, g []compile.PairReport, by string) {
	p := &g[0]
	fmt.Fprintf(w, "\n%s: %s, %s%s", places(g, func(p compile.PairReport) (int32, string) { return p.Line, p.Value }),
		p.Pair, tensor.Size(p.Bytes), each(len(g)))
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
