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
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/trace"
	"hocket.example/hocket/ir"
)

// maxCertificate is the largest size of a certificate's file in bytes.
const maxCertificate = 1 << 28

// runFlags holds the flags of run, in addition to those of every command that has a PROGRAM argument.
type runFlags struct {
	planCache
	pageFlags
	machine       string
	kind          device.Kind // the kind of machine, set by check
	in            []string
	strategy      string
	compare       bool
	rtol          float64
	noProve       bool
	certificate   string
	graph         bool
	schedules     int
	seed          int64
	repeat        int
	timeout       time.Duration
	budget        string
	save          string
	trace         string
	flight        string
	algorithm     string
	fixed         bool
	measure       bool
	checkLaunches bool
	profiled      bool

	arena int64 // the parsed value of --budget, in bytes
}

func (a *app) runCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "run PROGRAM [flags]",
		SuggestFor: []string{"exec", "execute", "start"},
		Short:      "Run a program and show where its time was spent",
		Long: `Runs a program on all its ranks and prints what it moved, the memory of its plan, how
much of its communication was hidden, and a timeline. It is proved first.

Parameters that --in does not name get random integers from {-1, 0, 1}, for which most
results have one right value, whatever the order of sums. --compare computes that value by
other means, then for random reals, and if need be layer by layer. Exit codes: 0 equal or
within rounding, 4 different, 5 undecided. On PROGRAMs in .json: docs/schedules.md.`,
		Example: `  hocket run examples/mlp.hkt --compare
  hocket run examples/mlp.hkt --strategy exchange --repeat 20
  hocket run examples/symbolic_rows.hkt --dim T=640 --in rand:1
  hocket run examples/linear_rs_push.hkt --schedules 20 --repeat 2`,
		Args: onePROGRAM,
	}
	bindings := a.addBindFlags(c)
	o := &runFlags{}
	o.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		schedule, err := a.isSchedule(c.Context(), args[0])
		if err != nil {
			return err
		}
		if schedule {
			return a.runSchedule(c, args[0], o)
		}
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
			archive: args[0], inputs: in}
		ctx, ended := a.within(c.Context(), o.timeout)
		err = ended(j.run(ctx, b))
		if err != nil && classified(err) == exitProgram && !j.judged {
			a.refuted(err)
			err = j.pageOfRefutation(err, b)
		}
		return err
	}
	return c
}

func (o *runFlags) add(c *cobra.Command) {
	names := machineNames
	f := c.Flags()
	f.StringVarP(&o.machine, "machine", "m", defaultMachine, "where to run: `"+strings.Join(names, "|")+"`")
	f.StringArrayVar(&o.in, "in", nil, "an `INPUT`, as x=rand:1 (see hocket help inputs); repeatable")
	addStrategy(c, &o.strategy)
	f.BoolVar(&o.compare, "compare", false, "compare with the program's text, or the function it refines")
	f.Float64Var(&o.rtol, "rtol", 0,
		"with --compare, the exit code depends only on `R`: 0 if no error exceeds R times the largest value, else 1")
	f.BoolVar(&o.graph, "graph", false, "replay the program as one graph ("+needs(recordsGraphs)+")")
	f.StringVar(&o.algorithm, "algorithm", "",
		"run collectives with `ALGORITHM` (see hocket help algorithms), if it supports them and the program names no other")
	f.BoolVar(&o.fixed, "fixed", false,
		"use only algorithms whose results do not depend, in any bit, on the batch size or on measurements")
	f.BoolVar(&o.measure, "measure", false, "make --strategy auto choose by measurement, once for these dims")
	f.BoolVar(&o.checkLaunches, "check-launches", false,
		"look for undeclared reads and writes of launched kernels ("+needs(isProfiled)+")")
	f.BoolVar(&o.noProve, "no-prove", false, "run the program without proving it first")
	f.StringVar(&o.certificate, "certificate", "", "run only if the certificate `FILE`, written by check --certificate, proves the plan")
	f.IntVar(&o.schedules, "schedules", 0, "run `K` different schedules of the streams, and compare each result")
	f.Int64Var(&o.seed, "seed", 0, "seed `N` of the inputs and of the first schedule")
	f.IntVar(&o.repeat, "repeat", 1, "run `K` times, with fresh inputs; print the median time")
	f.DurationVar(&o.timeout, "timeout", 0,
		"stop if the whole command takes longer than this time: `30s`; by default, stop if the runs together take 30s")
	f.StringVar(&o.budget, "budget", "",
		"memory that a rank may use, including staging of collectives, in `BYTES`: 64K, 16M, 2G")
	o.planCache.add(f)
	f.StringVar(&o.save, "save", "", "write the results to `DIR`/outputs.safetensors")
	f.StringVar(&o.trace, "trace", "", "write the timeline to `FILE`, for Perfetto and hocket trace")
	o.pageFlags.add(c, "write a page to `FILE`: where the time went, or a refutation", "draw the timeline to `FILE`")
	f.BoolVar(&o.profiled, "profile-range", false,
		"make the measured run the range that a profiler captures, "+
			"and name statements by NVTX where its library is ("+needs(isProfiled)+")")
	f.StringVar(&o.flight, "flight", "",
		"when the run fails write each rank's state to `FILE` (default: in the cache folder)")
	rare(c, "rtol", "algorithm", "fixed", "measure", "check-launches", "no-prove", "certificate", "seed", "budget",
		"cache", "hard-cache", "bucket", "flight", "profile-range")
	_ = c.RegisterFlagCompletionFunc("machine", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// check returns an error for values that are invalid for every program.
func (o *runFlags) check(c *cobra.Command) error {
	set := c.Flags().Changed
	if err := o.checkMachine(); err != nil {
		return err
	}
	if err := checkStrategy(o.strategy); err != nil {
		return err
	}
	switch {
	case set("rtol") && !(o.rtol > 0):
		return usagef("--rtol is %g, but must be positive", o.rtol)
	case set("rtol") && !o.compare:
		return usagef("--rtol requires --compare")
	case o.measure && o.strategy != "auto":
		return usagef("--measure requires --strategy auto, whose choice it makes")
	case o.noProve && o.certificate != "":
		return usagef("--no-prove and --certificate exclude each other: a certificate proves the plan")
	case set("schedules") && o.schedules < 1:
		return usagef("--schedules is %d, but must be at least 1", o.schedules)
	case o.graph && !o.kind.Graphs:
		return usagef("--graph needs %s: machine %s cannot record graphs", needs(recordsGraphs), o.machine)
	case o.profiled && !o.kind.Profiles:
		return usagef("--profile-range needs %s: GPU profilers cannot observe machine %s", needs(isProfiled),
			o.machine)
	case o.schedules > 0 && o.kind.OpenScheduled == nil:
		return usagef("--schedules needs %s: machine %s cannot explore schedules", needs(drawsOrder), o.machine)
	case o.repeat < 1:
		return usagef("--repeat is %d, but must be at least 1", o.repeat)
	case o.seed < 0:
		return usagef("--seed is %d, but must not be negative", o.seed)
	case o.seed > math.MaxInt64-int64(max(o.schedules-1, 0)):
		return usagef("--seed is %d, which is too large for %d consecutive seeds", o.seed, o.schedules)
	case o.timeout < 0 || set("timeout") && o.timeout == 0:
		return usagef("--timeout is %v, but must be positive", o.timeout)
	}
	for _, name := range []string{"trace", "html", "svg"} {
		if o.schedules > 0 && set(name) {
			return usagef("--%s and --schedules cannot be combined: a run with an explored schedule has no times", name)
		}
	}
	if err := o.planCache.check(); err != nil {
		return err
	}
	if set("budget") {
		n, err := tensor.ParseSize(o.budget)
		if err != nil {
			return usagef("--budget: %w", err)
		}
		o.arena = n
	}
	return nil
}

func (o *runFlags) checkMachine() error {
	var err error
	if o.kind, err = device.KindNamed(o.machine); err != nil || o.machine == "" {
		var names []string
		for _, k := range device.Kinds() {
			names = append(names, k.Name)
		}
		return usagef("-m: unknown machine %q; the machines are %s", o.machine, strings.Join(names, ", ")).helping("see hocket doctor")
	}
	if m := machineNamed(o.machine, false); !m.OK {
		return &failure{code: exitMachine, kind: "machine", err: fmt.Errorf("machine %s: %s", m.Name, m.Missing),
			help: m.Help + "; see hocket doctor"}
	}
	return nil
}

// job holds the state of running one program.
type job struct {
	app     *app
	flags   *runFlags
	again   []string // the words of this command line without --schedules, --seed and the flags of output files
	program *hocket.Program
	archive string // file name of the program
	inputs  *inputs
	// processes is the number of processes that run the program together. first reports that this process is the first of
	// them, or the only one.
	processes int
	first     bool

	sig     *hocket.Signature
	files   map[string]*hocket.Tensor // the tensors from input files
	arena   int64                     // memory limit of a rank in bytes; 0 if the device determines it
	machine *hocket.Machine
	model   *hocket.Model
	// judged is set after the plan has been made and, if required, proved. Errors after that do not refute the program.
	judged      bool
	batch       []hocket.Args              // arguments, one element for each repetition
	refs        []*hocket.Reference        // references of the repetitions, evaluated when needed
	layers      [][]hocket.LayerComparison // layer comparisons of the repetitions, computed when needed
	verdict     hocket.Comparison          // the weakest verdict so far
	unquantized map[string]*hocket.Tensor  // results of the last repetition with original weights, with --quantize
	took        []time.Duration            // sorted durations of the runs; empty if the machine records no times
}

// runLimit returns the time limit of one run.
func (o *runFlags) runLimit() time.Duration {
	if o.timeout > 0 {
		return o.timeout
	}
	return stuck
}

// times returns the sorted durations of several runs. The duration of a run begins at the start of the run, or at the
// end of the preceding run if that is later. The function times returns nil if the machine does not record times.
func times(reports []*hocket.Report) []time.Duration {
	var list []time.Duration
	last := time.Duration(math.MinInt64)
	for _, r := range reports {
		begin, end := r.Span()
		if end == 0 {
			return nil
		}
		list = append(list, end-max(begin, last))
		last = end
	}
	slices.Sort(list)
	return list
}

// median returns the median of a sorted list.
func median(list []time.Duration) time.Duration {
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// run executes the job. Generating the inputs may take long, so run performs all other steps that can fail before that.
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
	files, err := j.bind(b, w)
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
	defer func() { err = failed.keep(ctx, j.app, j.flags.flight, err) }()
	if err := j.runUnquantized(ctx, m, w, b); err != nil {
		return err
	}
	j.app.progress.At("planning, proving and loading the program", 0, 0)
	if err := j.load(ctx, m); err != nil {
		return err
	}
	if err := j.inputs.alike(ctx, w, j.sig, files); err != nil {
		return err
	}
	j.app.progress.At("making inputs", j.flags.repeat, 0)
	for i := range j.flags.repeat {
		if err := ctx.Err(); err != nil {
			return err
		}
		args, err := j.args(i)
		if err != nil {
			return err
		}
		j.batch = append(j.batch, args)
		j.app.progress.Step()
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
	j.quantizationErrors(rep)
	j.app.progress.End()
	if err := j.print(rep); err != nil {
		return err
	}
	if err := j.tolerated(); err != nil {
		return err
	}
	return j.undecided()
}

// args returns the arguments of a run.
func (j *job) args(i int) (hocket.Args, error) {
	args, err := j.inputs.make(j.sig, j.files, i)
	_, args.Dims = j.flags.splitDims(j.sig.Dims)
	return args, err
}

// bind binds the program, with the dims that follow from input files, and returns the headers of the tensors in these
// files.
func (j *job) bind(b hocket.Binding, w *hocket.World) (map[string]*hocket.Tensor, error) {
	var got map[string]found
	defer j.inputs.closeFiles()
	var err error
	if fn := funcOf(j.program, b); fn != nil { // without fn, bind returns an error that lists the functions
		var surplus []string
		if got, surplus, err = j.app.find(j.inputs, fn); err != nil {
			return nil, err
		}
		if len(surplus) > 0 {
			j.app.warnings = append(j.app.warnings, ofSurplus(fn, surplus))
		}
		if unset := j.inputs.unset(fn, got); unset != nil && j.app.export == nil {
			j.app.warnings = append(j.app.warnings, unset)
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
	if w != nil && w.Size() == j.sig.Ranks && !j.flags.compare { // each process reads only its rank's part of an archive's weights
		j.inputs.rank, j.inputs.ranks, j.inputs.sums = w.Rank(), w.Size(), map[string]string{}
	}
	return loadAll(got)
}

// load loads the program. The default memory budget is the free memory minus the size of the inputs, so that a program
// that is too large returns an error instead of being killed.
func (j *job) load(ctx context.Context, m *hocket.Machine) error {
	free, err := affordInputs(j.sig, j.batches()*j.processes)
	if err != nil {
		return err
	}
	j.arena = j.flags.arena
	if j.arena == 0 && free > 0 && j.flags.kind.OnHost { // on other machines the devices report their free memory
		j.arena = max(free/int64(j.sig.Ranks), 1)
	}
	if err := j.flags.known(j.sig.Dims); err != nil {
		return err
	}
	fixed, rounded := j.flags.splitDims(j.sig.Dims)
	resolved := hocket.Binding{Func: j.sig.Func, Ranks: j.sig.Ranks, Dims: fixed}
	var certificate []byte
	if j.flags.certificate != "" {
		if certificate, err = files.Read(j.flags.certificate, maxCertificate); err != nil {
			return inputf("%w", err)
		}
	}
	j.machine = m
	j.model, err = m.Load(j.program, resolved,
		hocket.LoadOptions{Strategy: j.flags.strategy, Arena: j.arena, NoProve: j.flags.noProve, Grace: -1,
			Certificate: certificate, Graph: j.flags.graph, Trace: true,
			Algorithm: j.flags.algorithm, FixedAlgorithms: j.flags.fixed, Measure: j.flags.measure,
			CheckLaunches: j.flags.checkLaunches, Gather: true, ProfileRange: j.flags.profiled,
			Cache: j.flags.bytes, HardCache: j.flags.hard, Buckets: j.flags.buckets})
	if errors.Is(err, hocket.ErrAlgorithm) {
		return usagef("--algorithm: %w", errors.Unwrap(err))
	}
	if err != nil {
		return ofHocket(err)
	}
	if j.flags.schedules > 0 {
		return nil // explore loads the program on a separate machine for each schedule
	}
	err = j.model.Prepare(ctx, rounded)
	j.judged = err == nil
	return j.ofLoad(err)
}

// ofLoad classifies an error that loading the plan has returned.
func (j *job) ofLoad(err error) error {
	if errors.Is(err, hocket.ErrAlgorithm) {
		return usagef("--algorithm: %w", err)
	}
	err = ofMachine(err)
	var f *failure
	if short := errors.Is(err, hocket.ErrBudget) || errors.Is(err, hocket.ErrOutOfMemory); short &&
		errors.As(err, &f) && f.help == "" {
		dims := ""
		if j.program.IR().Func(j.sig.Func).HasDims() {
			dims = ", or reduce dims with --dim"
		}
		if c := &j.flags.planCache; c.hard && (j.arena <= 0 || c.bytes < j.arena) {
			return f.helping("raise --cache, or omit --hard-cache%s", dims)
		}
		return f.helping("a rank may use %s: raise --budget%s", tensor.Size(j.arena), dims)
	}
	return err
}

// measure runs the batch twice. The first execution is a warm-up, because the first access to memory pages would
// dominate the timeline. The report describes the second.
func (j *job) measure(ctx context.Context) (*hocket.Report, error) {
	guarded, dog := watch(ctx, j.flags.runLimit())
	defer dog.stop()
	j.app.progress.At("running the program", 2, 0)
	if _, err := j.model.RunBatch(guarded, j.batch); err != nil {
		return nil, dog.explain(guarded, err)
	}
	dog.alive()
	j.app.progress.Step()
	reports, err := j.model.RunBatch(guarded, j.batch)
	if err != nil {
		return nil, dog.explain(guarded, err)
	}
	dog.stop()
	j.app.progress.Step()
	j.took = times(reports)
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
	_, rounded := o.splitDims(j.sig.Dims)
	overlapped, err := j.model.Overlapped(rounded)
	if err != nil {
		return ofHocket(err)
	}
	a.out.report(rep, overlapped)
	fmt.Fprintf(a.text, "%s on %d %s%s, %s\n", rep.Func, rep.Ranks, plural(rep.Ranks, "rank"), j.dimsText(), o.machine)
	fmt.Fprintln(a.text, j.inputs.sources(j.program.IR().Func(j.sig.Func), j.files))
	if rep.Proof != hocket.Proved {
		fmt.Fprintf(a.text, "not proved: %s\n", rep.Unproved)
	}
	for _, l := range overlapped {
		fmt.Fprintf(a.text, "overlapped   %s\n", l)
	}
	if err := rep.WriteTable(a.text); err != nil {
		return err
	}
	if n := len(j.took); n > 1 {
		mid := median(j.took)
		a.out.Time = &runTime{Runs: n, MedianUS: micro(mid), LeastUS: micro(j.took[0]), MostUS: micro(j.took[n-1])}
		fmt.Fprintf(a.text, "time  median %s a run, %s to %s, of %d back to back\n", trace.Microseconds(micro(mid)),
			trace.Microseconds(micro(j.took[0])), trace.Microseconds(micro(j.took[n-1])), n)
	}
	if j.unquantized != nil {
		fmt.Fprint(a.text, a.export.QuantizedText(a.plan.quantize, a.out.Quantized))
	}
	if o.planCache.given() {
		s := j.machine.Stats().Plans
		fmt.Fprintf(a.text, "plan cache  %d %s of %s, at most %s; %d hits, %d misses, %d reloads, %d evictions\n", s.Plans,
			plural(s.Plans, "plan"), tensor.Size(s.Bytes), tensor.Size(s.MostBytes), s.Hits, s.Misses, s.Reloads, s.Evictions)
	}
	if j.verdict.Against != "" {
		fmt.Fprintf(a.text, "%s%s\n", j.tried(), j.verdict)
		j.writeErrors()
	}
	var timeline bytes.Buffer
	if err := rep.WriteTimeline(&timeline, a.columns); err != nil {
		return err
	}
	if timeline.Len() > 0 { // there is no timeline under a scheduled machine
		fmt.Fprintf(a.text, "\n%s", &timeline)
	}
	return nil
}

// tried describes the runs on which the verdict is based.
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

func micro(d time.Duration) float64 { return float64(d) / 1e3 }

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// dimsText lists the dims that the program declares, in the order of their declarations.
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

// report adds the costs of a run to the JSON output.
func (r *result) report(rep *hocket.Report, overlapped []hocket.Overlapped) {
	r.Proof = &proof{Verdict: hocket.Unknown.String(), Kind: "plan"}
	if rep.Proof == hocket.Proved {
		r.Proof.Verdict = rep.Proof.String()
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

// strategyOf returns the strategy that overlaps the communication of a statement. A statement belongs to an overlapped
// pair under three conditions: it has the line of the pair, the names of its values begin with the name of the pair's
// value, and it is the pair's collective or one of the exchanges that replace the collective.
func strategyOf(o hocket.Overlap, all []hocket.Overlapped) string {
	for _, pair := range all {
		if pair.Line == o.Line && strings.Contains(o.Statement, "%"+pair.Value+".") &&
			(strings.Contains(pair.Pair, o.Op) || o.Op == ir.OpPut.String() || o.Op == ir.OpGet.String()) {
			return pair.Strategy
		}
	}
	return "sequential"
}
