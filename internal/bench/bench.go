// Package bench measures collectives, and layers under each strategy and whole programs next to their bound. Every
// figure is a median with its spread. Something is called faster only if the difference exceeds the spread of paired
// differences.
package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/ir"
)

// Options choose what is measured and where; the zero value is the embedded
// machine with all defaults.
type Options struct {
	// Machine is the name of one that is registered, or empty for the default.
	Machine string
	// Ranks is the number of ranks; 0 for as many as the machine has, at most 4.
	Ranks int
	// Sizes are the bytes of collectives' messages; nil for a list that suits the machine.
	Sizes []int64
	// Shapes are the products of layers; nil for a list that suits the machine.
	Shapes []Shape
	// Strategies are those of layers; nil for sequential, chunked(4), exchange.
	// Sequential is always among them: the others are compared with it.
	Strategies []string
	// Rounds is how often everything is measured; 0 for 7.
	Rounds int
	// Algorithms of collectives to measure; nil for the one that is chosen and
	// NCCL's where there are any, "all" for all.
	Algorithms []string
	// Schedules of other tools to measure, of the benchmark's collective.
	Schedules []*device.Schedule
	// DType of collectives; bf16 where it is not set.
	DType ir.DType
	// Scales, one of FP8, has layers compute with f8e4m3; empty for bf16.
	Scales string
	// Rows asks for sizes of whole rows (see RowSizes), also by default, and for
	// a type of 2 bytes: what WriteVLLM can write.
	Rows bool
	// Cold has collectives work on operands that no cache holds.
	Cold bool
	// Peers are what others measured, to be put beside ours.
	Peers []contest.Peer
	// Turns is a folder in which a program of peers answers, so that layers are
	// timed in turns with it; see turns. Empty for none.
	Turns string
	// Eager leaves out what is measured by graph, where the machine has graphs.
	Eager bool
	// Progress, where not nil, is told how many of the parts of a benchmark are done.
	Progress func(done, total int)
}

// Report is what one benchmark found; only its own part is there.
type Report struct {
	Bench   string `json:"bench"`
	Machine string `json:"machine"`
	Ranks   int    `json:"ranks"`
	// Environment says what the machine is, a line each; the caller knows it.
	Environment []string `json:"environment,omitempty"`
	// Method says how it was measured, a line each.
	Method []string `json:"method"`

	// Table is what collectives were chosen by.
	Table *TableUse `json:"table,omitempty"`

	Collectives []Collective `json:"collectives,omitempty"`
	// Peers are what others measured of layers.
	Peers []contest.Peer `json:"peers,omitempty"`

	Wire   *contest.Figure `json:"wire_gbps,omitempty"` // one copy between two ranks, for bounds
	Layers []Layer         `json:"layers,omitempty"`
	Step   *Step           `json:"step,omitempty"`
}

// job is one benchmark under way.
type job struct {
	Options
	machine device.Machine
	report  *Report
}

// bench is a row of the table of benchmarks.
type bench struct {
	name  string
	sized bool // takes Sizes
	comm  bool // takes Algorithms, Schedules, DType, Rows, Cold and Peers
	layer bool // takes Shapes, Strategies and Peers
	run   func(*job, context.Context) error
}

func benches() []bench {
	return []bench{
		{name: "ag-gemm", layer: true, run: layersOf(agGEMM)},
		{name: "gemm-rs", layer: true, run: layersOf(gemmRS)},
		{name: "gemm-ar", layer: true, run: layersOf(gemmAR)},
		{name: "gemm-ag", layer: true, run: layersOf(gemmAG)},
		{name: "allreduce", sized: true, comm: true, run: collectiveOf(ir.OpAllReduce)},
		{name: "allgather", sized: true, comm: true, run: collectiveOf(ir.OpAllGather)},
		{name: "reducescatter", sized: true, comm: true, run: collectiveOf(ir.OpReduceScatter)},
		{name: "alltoall", sized: true, comm: true, run: collectiveOf(ir.OpAllToAll)},
		{name: "broadcast", sized: true, comm: true, run: collectiveOf(ir.OpBroadcast)},
	}
}

// Names lists the benchmarks.
func Names() []string {
	var names []string
	for _, b := range benches() {
		names = append(names, b.name)
	}
	return names
}

// Run runs the benchmark of that name.
func Run(ctx context.Context, name string, opts Options) (*Report, error) {
	all := benches()
	i := slices.IndexFunc(all, func(b bench) bool { return b.name == name })
	if i < 0 {
		if op, ok := contest.OpNamed(name); ok {
			return nil, contest.Usagef("there is no benchmark %q; %s's is %s", name, op, strings.ReplaceAll(op.String(), "_", ""))
		}
		return nil, contest.Usagef("there is no benchmark %q; there are %s", name, strings.Join(Names(), ", "))
	}
	if err := opts.check(&all[i]); err != nil {
		return nil, err
	}
	m, err := contest.Open(opts.Machine)
	if err != nil {
		return nil, err
	}
	j := &job{Options: opts, machine: m}
	if err := j.complete(&all[i]); err != nil {
		return nil, err
	}
	j.report = &Report{Bench: name, Machine: m.Name(), Ranks: j.Ranks}
	if all[i].layer {
		j.report.Peers = layerPeers(opts.Peers, name, j.Ranks)
		j.lackPeers(name, nil)
	}
	if err := all[i].run(j, ctx); err != nil {
		return nil, fmt.Errorf("bench %s: %w", name, err)
	}
	return j.report, nil
}

// done tells how far the benchmark is.
func (j *job) done(parts, total int) {
	if j.Progress != nil {
		j.Progress(parts, total)
	}
}

// Check refuses options that the benchmark does not take.
func (o *Options) check(b *bench) error {
	switch {
	case o.Sizes != nil && !b.sized:
		return contest.Usagef("%s takes no sizes", b.name)
	case o.Shapes != nil && !b.layer:
		return contest.Usagef("%s takes no shapes", b.name)
	case o.Strategies != nil && !b.layer:
		return contest.Usagef("%s takes no strategies", b.name)
	case o.Algorithms != nil && !b.comm:
		return contest.Usagef("%s takes no algorithms", b.name)
	case o.Schedules != nil && !b.comm:
		return contest.Usagef("%s takes no schedules", b.name)
	case o.Scales != "" && !b.layer:
		return contest.Usagef("%s has no products of 8-bit types with scales", b.name)
	case o.DType != ir.InvalidDType && !b.comm:
		return contest.Usagef("%s takes no element type", b.name)
	case o.Cold && !b.comm:
		return contest.Usagef("%s takes no cold operands", b.name)
	case o.Rows && !b.comm:
		return contest.Usagef("%s has no rows, and no form of vLLM", b.name)
	case o.Turns != "" && !b.layer:
		return contest.Usagef("%s takes no turns with peers", b.name)
	case o.Rows && o.DType != ir.InvalidDType && o.DType.Size() != 2:
		return contest.Usagef("rows are of bf16 or f16, not %s", o.DType)
	case o.Rounds < 0:
		return contest.Usagef("%d rounds", o.Rounds)
	}
	for _, n := range o.Sizes {
		if o.Rows && n%rowBytes != 0 {
			return contest.Usagef("%s are no whole rows of 8192 elements of 2 bytes", contest.BytesText(n))
		}
		if err := contest.CheckSize(n); err != nil {
			return err
		}
	}
	return nil
}

// complete fills in what was left to the machine.
func (j *job) complete(b *bench) error {
	most := j.machine.Caps().MaxRanks
	if j.Ranks == 0 {
		j.Ranks = min(most, 4)
	}
	if j.Ranks < 2 {
		return contest.Usagef("%s needs 2 ranks or more, not %d", b.name, j.Ranks)
	}
	if j.Ranks > most {
		return contest.ErrTooMany(j.machine, j.Ranks)
	}
	if j.Rounds == 0 {
		j.Rounds = 7
	}
	return nil
}

// graphs reports whether to measure by graph too.
func (j *job) graphs() bool { return j.machine.Caps().Graphs && !j.Eager }

// embedded reports whether the machine is on the host: then defaults are small.
func (j *job) embedded() bool { return j.machine.Caps().OnHost }

func (j *job) method(format string, args ...any) {
	j.report.Method = append(j.report.Method, fmt.Sprintf(format, args...))
}
