package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/bench"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// benchFlags holds the flags of bench.
type benchFlags struct {
	machine    string
	ranks      int
	sizes      string
	shapes     []string
	strategies []string
	rounds     int
	eager      bool
	algorithms []string
	schedules  []string
	dtype      string
	cold       bool
	peers      []string
	turns      string
	format     string

	// The following flags apply only to programs.
	in       []string
	runs     int
	describe string
	fixed    bool
	measure  bool
	memory   float64
	generate bench.GenerateOptions
}

func (a *app) benchCommand() *cobra.Command {
	o := &benchFlags{}
	c := &cobra.Command{
		Use:        "bench BENCHMARK|PROGRAM [flags]",
		SuggestFor: []string{"benchmark", "measure"},
		Short:      "Measure collectives, layers and programs on this machine, and compare them with bounds",
		Long: `Measures and prints a table: the method, the bound (the least time possible), medians with their
spread (the distance between the quartiles), and a verdict only where a paired
difference is larger than that.

  ag-gemm   all-gather + GEMM under each strategy, and the GEMM alone
  gemm-rs   GEMM + reduce-scatter
  gemm-ar   GEMM + all-reduce
  gemm-ag   GEMM + all-gather of its result

  allreduce, allgather, reducescatter, alltoall, broadcast
            for several sizes of the largest operand, with the times of NCCL and of a copy
  PROGRAM   runs of a program, back to back and one at a time, with their bound; with --prompt,
            the time to the first token and per token of a model that generates tokens`,
		Example: `  hocket bench ag-gemm -n 2 --shape 256x256x256 --strategy exchange --rounds 3
  hocket bench allreduce -n 2 --sizes 64K --rounds 3
  hocket bench examples/decode.hkt --rounds 3 --runs 2
  hocket bench examples/llama/llama.hkt --prompt T=16,32 --batch B=1,4 --dim S=48 --rounds 1`,
		Args: oneBench,
	}
	bindings := a.addBindFlags(c)
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return bench.Names(), cobra.ShellCompDirectiveDefault
	}
	f := c.Flags()
	f.Lookup("ranks").Usage = "number of `RANKS` (default: the size of a program's mesh; otherwise all ranks of the machine, at most 4)"
	f.StringVarP(&o.machine, "machine", "m", defaultMachine, "where to run: `"+strings.Join(machineNames, "|")+"`")
	f.StringVar(&o.sizes, "sizes", "", "message sizes of a collective in `BYTES`: 1K,64K,1M; or the word rows, for 1 to 4096 rows of 16 KiB")
	f.StringArrayVar(&o.shapes, "shape", nil, "the shape of a layer's GEMM, over all ranks: `MxNxK`; repeatable")
	f.StringArrayVar(&o.strategies, "strategy", nil, "a `STRATEGY` to compare with sequential; repeatable")
	f.StringArrayVar(&o.algorithms, "algorithm", nil,
		"an `ALGORITHM` to measure in addition to the selected one, or all; repeatable")
	f.StringArrayVar(&o.schedules, "schedule", nil,
		"a schedule of MSCCL++ or MSCCL to measure for the collective, on GPUs; it is proved first: `FILE`; repeatable")
	f.StringVar(&o.dtype, "dtype", "",
		"element `TYPE` of a collective, or of a layer fp8-block, or fp8-tensor or fp8-row, also with -fast appended "+
			"for fast_accum=true (default bf16)")
	f.BoolVar(&o.cold, "cold", false, "measure collectives with operands that are not in caches")
	f.StringArrayVar(&o.peers, "peers", nil,
		"measurements of other libraries to compare with, written by tools/peers or vLLM's benchmark: `FILE`; repeatable")
	f.StringVar(&o.turns, "turns", "", "measure layers alternately with tools/peers/overlap.py, which communicates through files in a `FOLDER`")
	f.StringVar(&o.format, "format", "", "print collectives in the format of `vllm`'s benchmark")
	f.IntVar(&o.rounds, "rounds", 7, "measure `K` times")
	f.BoolVar(&o.eager, "eager", false, "do not measure graphs, even if the machine supports them")
	f.StringArrayVar(&o.in, "in", nil, "an `INPUT` of a program, as of run; repeatable")
	f.IntVar(&o.runs, "runs", 20, "measure batches of `K` runs of a program, back to back")
	f.StringVar(&o.describe, "describe", "",
		"compute a program's bounds for a `MACHINE`: "+strings.Join(hocket.Machines(), ", ")+
			" or FILE.json (default: the one that fits)")
	f.Float64Var(&o.memory, "memory-rate", 0, "compute a program's bounds with a memory bandwidth of `GBPS`")
	f.StringVar(&o.generate.Prompt, "prompt", "",
		"measure generation after prompts of these lengths; T is the dim that counts tokens: `T=128,512`")
	f.StringVar(&o.generate.Batch, "batch", "", "generate for these numbers of sequences; B is their dim: `B=1,8`")
	f.IntVar(&o.generate.Tokens, "tokens", 16, "generate `K` tokens after the first")
	f.BoolVar(&o.fixed, "fixed", false, "measure a program with the algorithms of run --fixed")
	f.BoolVar(&o.measure, "measure", false, "measure a program also with the strategy that run --measure chooses")
	rare(c, "dtype", "cold", "peers", "turns", "format", "eager", "in", "describe",
		"memory-rate", "fixed", "measure", "runs", "algorithm", "schedule", "plan")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := alone(); err != nil {
			return err
		}
		o.ranks = bindings.ranks
		opts, err := o.options(c)
		if err != nil {
			return err
		}
		named := slices.Contains(bench.Names(), args[0]) || !programNamed(args[0])
		if err := o.suits(c, args[0], named); err != nil {
			return err
		}
		if opts.Schedules, err = a.schedulesFor(c.Context(), o.schedules); err != nil {
			return err
		}
		if named {
			return a.bench(c.Context(), args[0], opts, o.format)
		}
		b, err := bindings.binding(c)
		if err != nil {
			return err
		}
		return a.benchProgram(c.Context(), args[0], b, o, opts)
	}
	return c
}

func oneBench(c *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return usagef("one benchmark is required: %s", strings.Join(bench.Names(), ", ")).helping("see hocket bench --help")
}

// programNamed reports whether an argument that is not the name of a benchmark names a program.
func programNamed(arg string) bool {
	if arg == "-" || strings.HasSuffix(arg, ".hkt") || strings.ContainsRune(arg, filepath.Separator) {
		return true
	}
	_, err := os.Stat(arg)
	return err == nil
}

// suits returns an error for flags that apply only to programs if no program is named, and for flags that do not apply
// to programs otherwise.
func (o *benchFlags) suits(c *cobra.Command, arg string, named bool) error {
	flags, what := "sizes shape algorithm schedule dtype cold turns format ", "a program"
	switch {
	case named:
		what, flags = "a benchmark without a program", "in runs describe memory-rate fixed measure dim define func "+
			"max-commands max-time plan shard quantize prompt batch tokens"
	case o.generate.Prompt != "":
		flags, what = flags+"runs", "a program whose generation is measured"
	default:
		flags, what = flags+"batch tokens", "a program without --prompt"
	}
	return notFlags(c, arg, what, strings.Fields(flags)...)
}

// measurements implements the commands that benchmark, tune and measure memory.
type measurements struct {
	schedules
}

// benchProgram benchmarks a program.
func (a *measurements) benchProgram(ctx context.Context, arg string, b hocket.Binding, o *benchFlags,
	opts bench.Options) error {
	p, err := a.parseProgram(ctx, arg, &b)
	if err != nil {
		return err
	}
	if err := o.generate.Bind(p, b.Dims); err != nil {
		return a.benched(nil, err, opts, o.format)
	}
	in, err := parseInputs(o.in, 1)
	if err != nil {
		return err
	}
	defer in.closeFiles()
	if in.fixed && o.generate.Prompt != "" {
		return usagef("--in %s: with --prompt only single parameters have values, as in --in NAME=%[1]s", in.rest)
	}
	fn := funcOf(p, b)
	if fn == nil {
		_, err := bind(p, b) // the error lists the functions
		return err
	}
	got, surplus, err := a.find(in, fn)
	if err != nil {
		return err
	}
	if len(surplus) > 0 {
		a.warnings = append(a.warnings, ofSurplus(fn, surplus))
	}
	if err := inferDims(fn, headers(got), b); err != nil {
		return err
	}
	sig, err := bind(p, b)
	if err != nil {
		return err
	}
	if err := checkInputs(sig, headers(got)); err != nil {
		return err
	}
	tensors, err := loadAll(got)
	if err != nil {
		return err
	}
	sig.In = slices.DeleteFunc(sig.In, func(p hocket.Port) bool { // bench generates other inputs itself
		_, said := in.specs[p.Name]
		return !said && !in.fixed && tensors[p.Name] == nil
	})
	args, err := in.make(sig, tensors, 0)
	if err != nil {
		return err
	}
	rep, err := bench.RunStep(ctx, p, bench.StepOptions{Options: opts, Binding: b, Inputs: args.In, Runs: o.runs,
		Describe: o.describe, Memory: o.memory, Fixed: o.fixed, Measure: o.measure, Generate: o.generate})
	return a.benched(rep, err, opts, o.format)
}

// options converts the flags to benchmark options.
func (o *benchFlags) options(c *cobra.Command) (bench.Options, error) {
	set := c.Flags().Changed
	opts := bench.Options{Machine: o.machine, Ranks: o.ranks, Rounds: o.rounds, Strategies: o.strategies,
		Eager: o.eager, Turns: o.turns, Algorithms: o.algorithms, Cold: o.cold,
		Rows: o.format == "vllm" || o.sizes == "rows"}
	if err := (&runFlags{machine: o.machine}).checkMachine(); err != nil {
		return opts, err
	}
	switch {
	case set("ranks") && o.ranks < 1:
		return opts, usagef("-n is %d, but must be at least 1", o.ranks)
	case o.runs < 2:
		return opts, usagef("--runs: a batch of %d runs is too short: at least 2 are needed", o.runs)
	case o.rounds < 1:
		return opts, usagef("--rounds is %d, but must be at least 1", o.rounds)
	}
	if o.format != "" && o.format != "vllm" {
		return opts, usagef("--format: unknown format %q; the only format is vllm", o.format)
	}
	if form, is := strings.CutPrefix(o.dtype, "fp8-"); is && slices.Contains(bench.FP8, form) {
		opts.Scales = form
	} else if o.dtype != "" {
		if opts.DType = dtypeNamed(o.dtype); opts.DType == ir.InvalidDType {
			return opts, usagef("--dtype: unknown element type %q", o.dtype)
		}
	}
	var err error
	if opts.Peers, err = readPeers(o.peers); err != nil {
		return opts, err
	}
	if err := oneMachine(o.peers, opts.Peers); err != nil {
		return opts, err
	}
	if set("sizes") && o.sizes != "rows" {
		if opts.Sizes, err = sizesOf(o.sizes); err != nil {
			return opts, err
		}
	}
	for _, s := range o.strategies {
		if err := checkStrategy(s); err != nil {
			return opts, err
		}
	}
	for _, s := range o.shapes {
		shape, err := bench.ParseShape(s)
		if err != nil {
			return opts, usagef("--shape: %w", err)
		}
		opts.Shapes = append(opts.Shapes, shape)
	}
	return opts, nil
}

func (a *measurements) bench(ctx context.Context, name string, opts bench.Options, format string) error {
	a.progress.At("measuring "+name, 0, 0)
	opts.Progress = a.progress.Of
	rep, err := bench.Run(ctx, name, opts)
	a.progress.End()
	return a.benched(rep, err, opts, format)
}

// benched prints the report of a benchmark.
func (a *measurements) benched(rep *bench.Report, err error, opts bench.Options, format string) error {
	switch {
	case errors.Is(err, contest.ErrUsage):
		return usagef("%w", err).helping("see hocket bench --help")
	case errors.Is(err, bench.ErrDiffers):
		return &failure{code: exitHocket, kind: "differs", err: err}
	case errors.Is(err, hocket.ErrOutOfMemory):
		return (&failure{code: exitMachine, kind: "machine", err: err}).helping("reduce --sizes, --shape or -n")
	case err != nil:
		return ofMachine(err)
	}
	rep.Environment = environment(opts.Machine)
	a.out.Machine, a.out.Ranks, a.out.Bench = rep.Machine, rep.Ranks, rep
	if format == "vllm" {
		return rep.WriteVLLM(a.text)
	}
	return rep.WriteText(a.text)
}

// sizesOf parses a comma-separated list of numbers of bytes.
func sizesOf(list string) ([]int64, error) {
	var sizes []int64
	for _, s := range strings.Split(list, ",") {
		n, err := tensor.ParseSize(strings.TrimSpace(s))
		if err != nil {
			return nil, usagef("--sizes: %w", err)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// dtypeNamed returns the element type with the given name, or the invalid type if there is none.
func dtypeNamed(name string) ir.DType {
	for _, d := range ir.DTypes() {
		if d.String() == name {
			return d
		}
	}
	return ir.InvalidDType
}

// environment describes the components of a machine, one per line.
func environment(name string) []string {
	lines := []string{"hocket " + version()}
	m := machineNamed(name, false)
	if m.CUDA == nil {
		return append(lines, fmt.Sprintf("%s/%s, %d CPUs, of which Go uses %d", runtime.GOOS, runtime.GOARCH,
			runtime.NumCPU(), runtime.GOMAXPROCS(0)))
	}
	for _, l := range m.CUDA.Lines() {
		lines = append(lines, l[0]+"  "+l[1])
	}
	return lines
}
