package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/footprint"
	"hocket.example/hocket/internal/memoryplan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// memoryFlags holds the flags of memory, in addition to those of every command that has a PROGRAM argument.
type memoryFlags struct {
	pageFlags
	strategy, machine, viz, policy, budget string
	hostUS                                 float64
	most                                   int64 // the parsed value of --budget, in bytes
}

// memoryResult is the part of the --json output that only memory writes.
type memoryResult struct {
	*footprint.Report
	// The following fields are set only for a memory snapshot of PyTorch's allocator.
	ReservedPeak  *int64                   `json:"reserved_peak,omitempty"`
	AllocatedPeak *int64                   `json:"allocated_peak,omitempty"`
	Waiting       *int64                   `json:"waiting_for_streams,omitempty"`
	Devices       []*footprint.Explanation `json:"devices,omitempty"`
	// Fit is set if --budget is given.
	Fit *memoryplan.Fit `json:"fit,omitempty"`
	// Simulation is set if --policy is given.
	Simulation *footprint.Simulation `json:"simulation,omitempty"`
	// Offsets holds the offsets assigned to the buffers of a FILE.csv, in the order of its lines.
	Offsets []int64 `json:"offsets,omitempty"`
}

func (a *app) memoryCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "memory PROGRAM|SNAPSHOT.pickle|FILE.csv [flags]",
		SuggestFor: []string{"mem"},
		Short:      "Show how a program, or a snapshot of torch's allocator, uses memory",
		Long: `Plans a program, without running it, and shows its memory: the peak; the bound,
which is the most that can be live at once in any order of its streams; and the
most that is live at once in the order of the text.

A SNAPSHOT.pickle, or SNAPSHOT.pickle.gz, of torch.cuda.memory._snapshot() is read,
without executing it, and explained: its peaks, the memory that waits for other
streams, and the size of a plan. A FILE.csv with the columns id,lower,upper,size is packed.`,
		Example: `  hocket memory examples/mlp.hkt --strategy exchange
  hocket memory examples/mlp.hkt --strategy chunked --budget 200K
  hocket memory examples/layers_all_reduce.hkt --func layers --strategy all --html memory.html
  hocket memory examples/forum.hkt --dim L=8 --dim B=4096 --dim D=8192 --policy deferred-free`,
		Args: onePROGRAM,
	}
	flags := a.addBindFlags(c)
	o := &memoryFlags{}
	addStrategy(c, &o.strategy)
	addPredicted(c, &o.machine, "auto predicts, and --budget,")
	f := c.Flags()
	o.pageFlags.add(c, "write a page with a picture to `FILE`; --strategy all shows strategies side by side",
		"draw the memory of one plan to `FILE`")
	f.StringVar(&o.viz, "viz", "",
		"write a snapshot for PyTorch's memory viewer to `FILE.pickle`; with --policy, of the simulation")
	f.StringVar(&o.policy, "policy", "",
		"simulate a caching allocator as well: `POLICY` is one of "+strings.Join(footprint.Policies(), ", ")+
			"; the captured ones capture five iterations in one graph")
	f.Float64Var(&o.hostUS, "host-us", 0, "`MICROSECONDS` that the simulated host takes to issue an op (default 220)")
	f.StringVar(&o.budget, "budget", "",
		"insert waits into the plan shown until a rank takes no more than `BYTES`: 64K, 16M, 2G")
	rare(c, "host-us")
	c.RunE = func(c *cobra.Command, args []string) error {
		b, err := flags.binding(c)
		if err != nil {
			return err
		}
		file := notProgram(args[0])
		if err := o.check(c, file); err != nil {
			return err
		}
		switch {
		case strings.HasSuffix(file, ".csv"):
			return a.packCSV(file)
		case file != "":
			return a.explainSnapshot(file, o.html)
		}
		p, err := a.boundProgram(c.Context(), args[0], &b)
		if err != nil {
			return err
		}
		return a.memoryOf(c.Context(), p, b, o)
	}
	return c
}

// notProgram returns the name of the file if it contains a memory snapshot or an instance of the packing problem
// instead of a program.
func notProgram(arg string) string {
	for _, end := range []string{".csv", ".pickle", ".pickle.gz", ".pkl", ".pkl.gz"} {
		if strings.HasSuffix(arg, end) {
			return arg
		}
	}
	if begin := files.Begin(arg, 2); pickled(string(begin)) || len(begin) > 0 && begin[0] == '{' {
		return arg
	}
	return ""
}

func (o *memoryFlags) check(c *cobra.Command, file string) error {
	switch {
	case strings.HasSuffix(file, ".csv"):
		return onlyFlags(c, file, "a list of buffers", "json")
	case file != "":
		return cmp.Or(onlyFlags(c, file, "a snapshot of torch's allocator", "json", "html"), checkOutputs(o.html))
	}
	if o.policy != "" {
		if _, _, err := footprint.ParsePolicy(o.policy); err != nil {
			return usagef("--policy: %w",
				err).helping("one of: %s; then settings of torch's allocator, as expandable_segments:True",
				strings.Join(footprint.Policies(), ", "))
		}
	}
	switch {
	case c.Flags().Changed("host-us") && o.policy == "":
		return usagef("--host-us has no effect without --policy").helping("--host-us sets the speed of the host in the simulation of --policy")
	case c.Flags().Changed("host-us") && !(o.hostUS > 0 && o.hostUS < 1e9):
		return usagef("--host-us is %v, but must be more than 0", o.hostUS)
	case o.strategy == "all" && o.budget != "":
		return usagef("--budget applies to one plan, but --strategy all makes several")
	case o.strategy == "all" && o.svg != "":
		return usagef("--svg draws one plan, but --strategy all makes several").helping("use --html, which draws several plans")
	case o.strategy == "all" && o.viz != "":
		return usagef("--viz writes one plan, but --strategy all makes several")
	}
	if c.Flags().Changed("budget") {
		var err error
		if o.most, err = tensor.ParseSize(o.budget); err != nil {
			return usagef("--budget: %w", err)
		}
	}
	if err := cmp.Or(checkOutputs(o.html, o.svg, o.viz), checkPredicted(o.machine)); err != nil || o.strategy == "all" {
		return err
	}
	return checkStrategy(o.strategy)
}

// memoryOf plans the program with each requested strategy and prints its memory.
func (a *measurements) memoryOf(ctx context.Context, p *hocket.Program, b hocket.Binding, o *memoryFlags) error {
	strategies := []string{o.strategy}
	if o.strategy == "all" {
		strategies = []string{"sequential", "chunked(4)", "exchange"}
	}
	a.progress.At("planning", len(strategies), time.Duration(len(strategies))*a.limits.Time)
	var plans []*memoryplan.Plan
	for _, s := range strategies {
		m, err := memoryplan.Of(p.IR(), compile.Options{Strategy: s, Machine: o.machine, Limits: compile.Limits(a.limits)},
			ir.Binding(b))
		if ds := findings(err); o.strategy == "all" && len(ds) == 1 && ds[0].Kind == "strategy" {
			fmt.Fprintln(a.text, ds[0].Message)
			a.progress.Step()
			continue
		}
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return ofHocket(err)
		}
		plans = append(plans, m)
		a.progress.Step()
		var fit *memoryplan.Fit
		if o.most > 0 {
			if fit, err = m.Fit(ctx, o.most); fit == nil {
				return ofHocket(err)
			}
		}
		a.progress.End()
		if o.strategy == "all" {
			fmt.Fprintf(a.text, "%s\n", s)
		}
		m.Report.WriteText(a.text, "per rank: ")
		a.out.memoryResult = &memoryResult{Report: m.Report, Fit: fit}
		if fit != nil {
			fmt.Fprintf(a.text, "%d waits inserted: a run is predicted to take %.1f µs with them, %.1f without\n",
				len(fit.Waits), fit.After, fit.Before)
			for _, w := range fit.Waits {
				fmt.Fprintf(a.text, "  %s waits until %s is free: %.1f µs\n", w.Behind, w.Before, w.MicroSec)
			}
		}
		if err != nil {
			return &failure{code: exitProgram, kind: "memory", err: err,
				help: "look at the buffers that are live at the bound above; use a smaller batch or another strategy"}
		}
	}
	viz := plans[0].WriteViz
	if o.policy != "" {
		s, err := plans[0].Simulate(o.policy, footprint.Speed{HostSec: o.hostUS * 1e-6})
		if err != nil {
			return err
		}
		a.out.Simulation = s
		viz = func(w io.Writer) error { return footprint.WriteSnapshot(w, s.Snapshot) }
		a.simulated(s)
	}
	title := "memory of " + a.out.Func
	return cmp.Or(
		writeOutput(o.html, func(w io.Writer) error { return memoryplan.WriteHTML(w, title, plans...) }),
		writeOutput(o.svg, plans[0].WriteSVG),
		writeOutput(o.viz, viz))
}

func (a *measurements) simulated(s *footprint.Simulation) {
	policy, segments := s.Policy, strings.Trim(fmt.Sprint(s.ByRun), "[]")
	if strings.HasPrefix(policy, "captured") {
		policy += ", five iterations in one capture"
	}
	if _, set, err := footprint.ParsePolicy(s.Policy); err == nil && set.Expandable() {
		segments = "does not apply: expandable segments grow instead"
	}
	fmt.Fprintf(a.text,
		"simulated: torch's caching allocator, %s: reserves %s, holds %s; at most %s wait for other streams\n"+
			"segments reserved in each of five runs: %s\n"+
			"(a model, no measurement: the host %.1f ms ahead of the device at the end)\n",
		policy, tensor.Size(s.ReservedPeak), tensor.Size(s.AllocatedPeak), tensor.Size(s.Waiting), segments, s.HostAhead)
}

func openMemory(name string) (*os.File, error) {
	f, _, err := files.Open(name)
	if err != nil {
		return nil, inputf("%w", err)
	}
	return f, nil
}

func (a *measurements) packCSV(name string) error {
	f, err := openMemory(name)
	if err != nil {
		return err
	}
	defer f.Close()
	in, err := footprint.ReadCSV(f)
	if err != nil {
		return inputf("%s: %w", name, err)
	}
	r, off := in.Pack()
	a.out.memoryResult = &memoryResult{Report: r, Offsets: off}
	r.WriteText(a.text, "")
	return nil
}

func (a *measurements) explainSnapshot(name, page string) error {
	debug.SetMemoryLimit(softLimit)
	f, err := openMemory(name)
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := footprint.ReadSnapshot(f)
	if err != nil {
		var ds hocket.Diagnostics
		if errors.As(err, &ds) {
			return err
		}
		f := inputf("%s: %w", name, err)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			f = f.helping("the file is truncated: copy the whole snapshot")
		}
		return f
	}
	fp := &memoryResult{}
	for _, s := range all {
		x := s.Explain()
		fp.Devices = append(fp.Devices, x)
		if fp.ReservedPeak == nil || x.ReservedPeak > *fp.ReservedPeak {
			fp.ReservedPeak, fp.AllocatedPeak, fp.Waiting = &x.ReservedPeak, &x.AllocatedPeak, &x.Waiting
			fp.Report = x.Report()
		}
		x.WriteText(a.text)
	}
	if waits := slices.ContainsFunc(fp.Devices, func(x *footprint.Explanation) bool { return x.Waiting > 0 }); waits {
		fmt.Fprint(a.text, footprint.WaitingAdvice)
	}
	a.out.memoryResult = fp
	return writeOutput(page, func(w io.Writer) error {
		return footprint.WriteSnapshotHTML(w, "memory of "+name,
			fp.Devices)
	})
}
