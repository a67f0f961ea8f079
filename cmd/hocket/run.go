package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// runFlags are the flags of run beside those of every command on a PROGRAM.
type runFlags struct {
	machine       string
	in            []string
	strategy      string
	compare       bool
	noProve       bool
	graph         bool
	schedules     int
	seed          int64
	repeat        int
	timeout       time.Duration
	budget        string
	save          string
	trace         string
	report        string
	flight        string
	algorithm     string
	fixed         bool
	checkLaunches bool
	profiled      bool

	arena int64 // budget, read
}

func (a *app) runCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "run PROGRAM [flags]",
		Short: "Run a program and show where its time went",
		Long: `Runs a program on all its ranks and prints what it moved, the memory of its plan
(collectives stage beside it: see --budget), how much of its communication was
hidden, and a timeline.

Parameters that --in does not name get random integers from {-1, 0, 1}, for which
most results have one right value, whatever the order of sums. A comparison then
runs the program once more, with random reals for these parameters (rand:SEED), to
find what integers do not show.

With --compare it exits with 0 where results are equal or within rounding, 4 where
one differs, and 5 where that cannot be told: where a part of a result has no error
bound, where bounds are as large as the values, or where a program that is not
proved has no refines and its text order does not say what it computes.

An input is one of
  NAME=ints:SEED   NAME=rand:SEED   NAME=zeros   NAME=arange
  NAME=FILE.npy    NAME=FILE.safetensors#TENSOR
  FILE.safetensors       every tensor in it, by name
  DIR                    a checkpoint's tensors that have the name of a parameter
  rand:SEED, zeros, …    all parameters that nothing else names`,
		Example: `  hocket run examples/row_parallel_chunked.hkt --compare
  hocket run examples/symbolic_rows.hkt --dim T=640 --in rand:1
  hocket run examples/linear_rs_push.hkt --schedules 200 --repeat 2
  hocket run layer.hkt --in weights.safetensors --save out`,
		Args: onePROGRAM,
	}
	bindings := a.addBindFlags(c)
	o := &runFlags{}
	o.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		b, err := bindings.binding(c)
		if err != nil {
			return err
		}
		if err := o.check(c); err != nil {
			return err
		}
		in, err := parseInputs(o.in, uint64(o.seed))
		if err != nil {
			return err
		}
		p, err := a.parseProgram(c.Context(), args[0], &b)
		if err != nil {
			return err
		}
		j := &job{app: a, flags: o, first: true, processes: 1, again: sameRun(c, args[0], bindings, o), program: p,
			inputs: in}
		err = j.run(c.Context(), b)
		if err != nil && classified(err) == exitProgram && !j.judged {
			a.refuted(err)
			err = j.reportRefuted(err, b)
		}
		return err
	}
	return c
}

func (o *runFlags) add(c *cobra.Command) {
	names := machineNames
	f := c.Flags()
	f.StringVarP(&o.machine, "machine", "m", "cpu", "where to run: `"+strings.Join(names, "|")+"`")
	f.StringArrayVar(&o.in, "in", nil, "an `INPUT` (see above); repeatable")
	addStrategy(c, &o.strategy)
	f.BoolVar(&o.compare, "compare", false, "compare with the function it refines, or else its reference")
	f.BoolVar(&o.graph, "graph", false, "replay the program as one graph (-m cuda)")
	f.StringVar(&o.algorithm, "algorithm", "", "run collectives by `ALGORITHM`, where it can and the text pins none")
	f.BoolVar(&o.fixed, "fixed", false, "run a collective by one algorithm, whatever its size, and products by none that was picked by measurement")
	f.BoolVar(&o.checkLaunches, "check-launches", false, "look for what launched kernels read and write without saying so (-m cuda)")
	f.BoolVar(&o.noProve, "no-prove", false, "run without proving first that it is right")
	f.IntVar(&o.schedules, "schedules", 0, "try `K` schedules and compare each")
	f.Int64Var(&o.seed, "seed", 0, "seed `N` of the inputs and of the first schedule")
	f.IntVar(&o.repeat, "repeat", 1, "run `K` times back to back, with fresh inputs; what is shown and written is of the last")
	f.DurationVar(&o.timeout, "timeout", 30*time.Second, "give up when a run takes longer: `30s`")
	f.StringVar(&o.budget, "budget", "",
		"memory a rank may use, staging of collectives included and pinned memory of the host not, in `BYTES`: 64K, 16M, 2G; on cpu its share of what is free where nobody says")
	f.StringVar(&o.save, "save", "", "write the results to `DIR`/outputs.safetensors")
	f.StringVar(&o.trace, "trace", "", "write the timeline to `FILE`, for Perfetto and hocket trace")
	f.StringVar(&o.report, "report", "",
		"write an HTML page to `FILE` about where the time went, or of what refutes the program")
	f.BoolVar(&o.profiled, "profile-range", false,
		"make the measured run the range that a profiler captures, and name statements by NVTX where its library is (-m cuda)")
	f.StringVar(&o.flight, "flight", "",
		"write what each rank was in to `FILE`, as JSON, when the run fails; else it is in the user's cache folder")
	_ = c.RegisterFlagCompletionFunc("machine", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// check refuses values that no program could be run with.
func (o *runFlags) check(c *cobra.Command) error {
	set := c.Flags().Changed
	if err := o.checkMachine(); err != nil {
		return err
	}
	if err := checkStrategy(o.strategy); err != nil {
		return err
	}
	switch {
	case set("schedules") && o.schedules < 1:
		return usagef("--schedules is %d; at least 1", o.schedules)
	case o.graph && o.machine == "cpu":
		return usagef("--graph needs -m cuda: the CPU machine records no graphs")
	case o.profiled && o.machine == "cpu":
		return usagef("--profile-range needs -m cuda: profilers of GPUs see nothing of the CPU machine")
	case o.schedules > 0 && o.machine != "cpu":
		return usagef("--schedules needs -m cpu: only that machine draws its order")
	case o.repeat < 1:
		return usagef("--repeat is %d; at least 1", o.repeat)
	case o.seed < 0:
		return usagef("--seed is %d; seeds are not negative", o.seed)
	case o.seed > math.MaxInt64-int64(max(o.schedules-1, 0)):
		return usagef("--seed is %d; there are no %d seeds from there on", o.seed, o.schedules)
	case o.timeout <= 0:
		return usagef("--timeout is %v; it must be positive", o.timeout)
	case o.trace != "" && o.schedules > 0:
		return usagef("--trace and --schedules exclude each other: a schedule has no times")
	case o.report != "" && o.schedules > 0:
		return usagef("--report and --schedules exclude each other: a schedule has no times")
	case set("report") && o.report == "":
		return usagef("--report names no file")
	case set("save") && o.save == "":
		return usagef("--save names no directory")
	case set("flight") && o.flight == "":
		return usagef("--flight names no file")
	case set("trace") && o.trace == "":
		return usagef("--trace names no file")
	}
	if set("budget") {
		n, err := parseBytes(o.budget)
		if err != nil {
			return usagef("--budget: %w", err)
		}
		o.arena = n
	}
	return nil
}

func (o *runFlags) checkMachine() error {
	if !slices.Contains(machineNames, o.machine) {
		return usagef("-m: there is no machine %q", o.machine).helping("see hocket doctor")
	}
	if m := machineNamed(o.machine, false); !m.OK {
		return &failure{code: exitMachine, kind: "machine", err: fmt.Errorf("machine %s: %s", m.Name, m.Missing),
			help: m.Help + "; see hocket doctor"}
	}
	return nil
}

// job is one program to run.
type job struct {
	app     *app
	flags   *runFlags
	again   []string // the command line, but for --schedules, --seed and outputs
	program *hocket.Program
	inputs  *inputs
	// processes run the program together, and first is the first of them, or the only one.
	processes int
	first     bool

	sig     *hocket.Signature
	files   map[string]*hocket.Tensor // what input files hold
	arena   int64                     // what a rank may use, 0 where the device says it
	model   *hocket.Model
	judged  bool                // the plan was made, and proved if it was to be: what is found later refutes nothing
	batch   []hocket.Args       // one for each repetition
	refs    []*hocket.Reference // of each, once they are wanted
	verdict hocket.Comparison   // the weakest so far
}

// run does everything that can fail for reasons of its own before it makes the
// inputs, which may take long.
func (j *job) run(ctx context.Context, b hocket.Binding) (err error) {
	w, err := j.join(ctx)
	if err != nil {
		return err
	}
	if w != nil {
		var leave func(err error) error
		ctx, leave = within(ctx, w)
		defer func() { err = leave(err) }()
	}
	files, err := j.bind(b)
	if err != nil {
		return err
	}
	j.files = files
	if err := j.writable(); err != nil {
		return err
	}
	var failed flights
	m, err := hocket.Open(ctx, hocket.MachineOptions{Name: j.flags.machine, World: w, Failed: failed.failed})
	if err != nil {
		return ofMachine(err)
	}
	defer m.Close()
	defer dumpOnQuit(m, j.app.stderr)()
	defer func() { err = failed.keep(j.app, j.flags.flight, err) }()
	if err := j.load(ctx, m); err != nil {
		return err
	}
	for i := range j.flags.repeat {
		if err := ctx.Err(); err != nil {
			return err
		}
		args, err := j.inputs.make(j.sig, files, i)
		if err != nil {
			return err
		}
		j.batch = append(j.batch, args)
	}
	var rep *hocket.Report
	if j.flags.schedules > 0 {
		rep, err = j.explore(ctx)
	} else {
		rep, err = j.measure(ctx)
	}
	if err != nil {
		return err
	}
	if err := j.write(rep); err != nil {
		return err
	}
	if err := j.print(rep); err != nil {
		return err
	}
	return j.undecided()
}

// bind binds the program, with what input files say about its dims, and
// returns what the files hold.
func (j *job) bind(b hocket.Binding) (map[string]*hocket.Tensor, error) {
	var got map[string]found
	defer j.inputs.closeFiles()
	var err error
	if fn := funcOf(j.program, b); fn != nil { // else bind says which there are
		var surplus []string
		if got, surplus, err = j.inputs.find(fn); err != nil {
			return nil, err
		}
		if len(surplus) > 0 {
			j.app.warnings = append(j.app.warnings, ofSurplus(fn, surplus))
		}
		if err := inferDims(fn, headers(got), b); err != nil {
			return nil, err
		}
	}
	if j.sig, err = bind(j.program, b); err != nil {
		return nil, err
	}
	j.app.out.note(j.sig)
	j.app.out.Machine = j.flags.machine
	if err := checkInputs(j.sig, headers(got)); err != nil {
		return nil, err
	}
	if _, err := affordInputs(j.sig, 1); err != nil {
		return nil, err
	}
	return loadAll(got)
}

// load loads the program. Where nobody set a budget it is what the inputs leave
// of the free memory, so that a program that is too large is an error and not
// the end of the process.
func (j *job) load(ctx context.Context, m *hocket.Machine) error {
	free, err := affordInputs(j.sig, j.batches()*j.processes)
	if err != nil {
		return err
	}
	j.arena = j.flags.arena
	if j.arena == 0 && free > 0 && j.flags.machine == "cpu" { // else the device says itself what it has
		j.arena = max(free/int64(j.sig.Ranks), 1)
	}
	resolved := hocket.Binding{Func: j.sig.Func, Ranks: j.sig.Ranks, Dims: j.sig.Dims}
	j.model, err = m.Load(j.program, resolved,
		hocket.LoadOptions{Strategy: j.flags.strategy, Arena: j.arena, NoProve: j.flags.noProve, Grace: -1,
			Graph: j.flags.graph, Trace: true,
			Algorithm: j.flags.algorithm, FixedAlgorithms: j.flags.fixed, CheckLaunches: j.flags.checkLaunches, Gather: true,
			ProfileRange: j.flags.profiled})
	if err != nil {
		return ofHocket(err)
	}
	if j.flags.schedules > 0 {
		return nil // every schedule loads anew, on a machine of its own
	}
	err = j.model.Prepare(ctx, nil)
	j.judged = err == nil
	return j.ofLoad(err)
}

// ofLoad classifies what loading the plan returned.
func (j *job) ofLoad(err error) error {
	var unknown *hocket.UnknownAlgorithm
	if errors.As(err, &unknown) {
		return usagef("--algorithm: %w", unknown)
	}
	err = ofMachine(err)
	var f *failure
	if short := errors.Is(err, hocket.ErrBudget) || errors.Is(err, hocket.ErrOutOfMemory); short &&
		errors.As(err, &f) && f.help == "" {
		return f.helping("a rank may use %s; --dim and --budget change what it needs and may use",
			hocket.Bytes(j.arena))
	}
	return err
}

// measure runs the batch once to warm up (the first run touches memory for the
// first time, which would be most of its timeline) and once for the report.
func (j *job) measure(ctx context.Context) (*hocket.Report, error) {
	guarded, dog := watch(ctx, j.flags.timeout)
	defer dog.stop()
	if _, err := j.model.RunBatch(guarded, j.batch); err != nil {
		return nil, dog.explain(guarded, err)
	}
	dog.alive()
	reports, err := j.model.RunBatch(guarded, j.batch)
	if err != nil {
		return nil, dog.explain(guarded, err)
	}
	dog.stop()
	if j.flags.compare {
		if err := j.compare(ctx, reports); err != nil {
			return nil, err
		}
		if err := j.confirm(ctx, j.model.RunBatch); err != nil {
			return nil, err
		}
	}
	return reports[len(reports)-1], nil
}

// print prints the report.
func (j *job) print(rep *hocket.Report) error {
	a, o := j.app, j.flags
	overlapped, err := j.model.Overlapped(nil)
	if err != nil {
		return ofHocket(err)
	}
	a.out.report(rep, overlapped)
	fmt.Fprintf(a.text, "%s on %d %s%s, %s\n", rep.Func, rep.Ranks, plural(rep.Ranks, "rank"), j.dimsText(), o.machine)
	if rep.Proof != "proved" {
		fmt.Fprintln(a.text, rep.Proof)
	}
	for _, l := range overlapped {
		fmt.Fprintf(a.text, "overlapped   %s\n", l)
	}
	if err := rep.WriteTable(a.text); err != nil {
		return err
	}
	if j.verdict.Against != "" {
		fmt.Fprintf(a.text, "%s%s\n", j.tried(), j.verdict)
	}
	var timeline bytes.Buffer
	if err := rep.WriteTimeline(&timeline, a.columns); err != nil {
		return err
	}
	if timeline.Len() > 0 { // a schedule has no times
		fmt.Fprintf(a.text, "\n%s", &timeline)
	}
	return nil
}

// tried says of how many runs the verdict is.
func (j *job) tried() string {
	o, each, all := j.flags, "", "all "
	if j.verdict.Verdict != hocket.Exact {
		all = "in all "
	}
	if o.repeat > 1 {
		each = fmt.Sprintf("%d runs back to back, ", o.repeat)
	}
	switch {
	case o.schedules == 1:
		return fmt.Sprintf("1 schedule (seed %d), %s", o.seed, each)
	case o.schedules > 1:
		if each != "" {
			each = "each " + each
		}
		return fmt.Sprintf("%d schedules (seeds %d..%d), %s%s", o.schedules, o.seed, o.seed+int64(o.schedules)-1, each,
			all)
	case each != "":
		return each + all
	}
	return "result: "
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// dimsText lists the dims that the text declares, in its order.
func (j *job) dimsText() string { return dimsText(j.program, j.sig.Dims) }

func dimsText(p *hocket.Program, dims map[string]int64) string {
	var b strings.Builder
	for _, d := range p.IR().Dims {
		if v, ok := dims[d.Name]; ok {
			sep := " "
			if b.Len() == 0 {
				sep = ", "
			}
			fmt.Fprintf(&b, "%s%s=%d", sep, d.Name, v)
		}
	}
	return b.String()
}

// report tells JSON what a run took.
func (r *result) report(rep *hocket.Report, overlapped []hocket.Overlapped) {
	r.Proof = &proof{Verdict: hocket.Unknown.String(), Kind: "plan"}
	if rep.Proof == hocket.Proved.String() {
		r.Proof.Verdict = rep.Proof
	}
	r.OutputsSHA256 = rep.OutputsSHA256()
	r.Memory = &memory{Peak: rep.Memory.Peak, Bound: rep.Memory.Bound, Host: rep.Memory.Host}
	r.Detours, r.Guesses, r.PassedOver = rep.Detours, rep.Guesses, rep.PassedOver
	for _, o := range rep.Overlap {
		x := overlap{Op: o.Op, Line: o.Line, Strategy: strategyOf(o, overlapped), Bytes: o.Bytes,
			Algorithm: o.Algorithm}
		if o.BusyNS > 0 {
			busy, exposed := float64(o.BusyNS)/1e3, float64(o.ExposedNS)/1e3
			x.BusyUS, x.ExposedUS = &busy, &exposed
		}
		r.Overlap = append(r.Overlap, x)
	}
}

// strategyOf says how communication was overlapped. What lowering made of a pair has its line
// and names after its value, which tells it from others that the line asks for, and is its
// collective, or what exchanges blocks in place of that.
func strategyOf(o hocket.Overlap, all []hocket.Overlapped) string {
	for _, pair := range all {
		if pair.Line == o.Line && strings.Contains(o.Statement, "%"+pair.Value+".") &&
			(strings.Contains(pair.Pair, o.Op) || o.Op == ir.OpPut.String() || o.Op == ir.OpGet.String()) {
			return pair.Strategy
		}
	}
	return "sequential"
}
