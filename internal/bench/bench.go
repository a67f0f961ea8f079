// Package bench measures collectives, layers under each strategy, and whole programs, and compares layers and programs
// with their bounds. Every reported number is the median of several measurements, with its spread. An algorithm or
// strategy is reported as faster than another only if the median of the paired differences exceeds their spread.
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

// Options select what is measured and on which machine. The zero value is the embedded machine with
// all defaults.
type Options struct {
	// Machine is the name of a registered machine; empty for the default.
	Machine string
	// Ranks is the number of ranks; 0 for as many as the machine has, but at most 4.
	Ranks int
	// Sizes are message sizes of collectives in bytes; nil for a list that suits the machine.
	Sizes []int64
	// Shapes are the GEMMs of layers; nil for a list that suits the machine.
	Shapes []Shape
	// Strategies are the strategies of layers to measure. nil means sequential, chunked(4) and exchange. Sequential
	// is always included, because the others are compared with it.
	Strategies []string
	// Rounds is the number of times that everything is measured; 0 for 7.
	Rounds int
	// Algorithms are the algorithms to measure in addition to the one that hocket chooses. nil means those of the
	// vendor's library, and "all" means all.
	Algorithms []string
	// Schedules are collective schedules of other tools to measure. The schedules must be for the benchmark's
	// collective.
	Schedules []*device.Schedule
	// DType is the element type of collectives; bf16 if unset.
	DType ir.DType
	// Scales makes layers compute with elements of type f8e4m3. Scales is an element of FP8. If it is empty, layers
	// compute with bf16.
	Scales string
	// Rows makes sizes of whole rows (see RowSizes) the default, and requires such sizes and a 2-byte element type.
	// WriteVLLM needs this.
	Rows bool
	// Cold makes each call of a collective use operands that are not in the GPU's cache.
	Cold bool
	// Peers are measurements of other programs for comparison.
	Peers []contest.Peer
	// Turns is a folder for communication with another program, which times the same layers alternately with this one
	// (see the type turns). Turns is empty if there is no other program.
	Turns string
	// Eager omits measurements of graphs.
	Eager bool
	// Progress, if not nil, is called when a part of a benchmark is finished, with the numbers of finished parts
	// and of all parts.
	Progress func(done, total int)
}

// Report is the result of a benchmark. Only the fields of the benchmark that was run are set.
type Report struct {
	Bench   string `json:"bench"`
	Machine string `json:"machine"`
	Ranks   int    `json:"ranks"`
	// Environment describes the machine, one line each. The caller sets it.
	Environment []string `json:"environment,omitempty"`
	// Method describes the method of measurement, one line each.
	Method []string `json:"method"`

	// Table is the table from which the algorithms of collectives were chosen.
	Table *TableUse `json:"table,omitempty"`

	Collectives []Collective `json:"collectives,omitempty"`
	// Peers are measurements of layers by other programs.
	Peers []contest.Peer `json:"peers,omitempty"`

	Wire   *contest.Figure `json:"wire_gbps,omitempty"` // rate of one copy between two ranks, from which bounds are computed
	Layers []Layer         `json:"layers,omitempty"`
	Step   *Step           `json:"step,omitempty"`
	// Generation is set by RunStep if the options have a prompt.
	Generation *Generation `json:"generation,omitempty"`
}

// job is a benchmark in progress.
type job struct {
	Options
	machine device.Machine
	report  *Report
}

// bench describes one benchmark.
type bench struct {
	name  string
	sized bool // the benchmark uses Sizes
	comm  bool // the benchmark uses Algorithms, Schedules, DType, Rows, Cold and Peers
	layer bool // the benchmark uses Shapes, Strategies and Peers
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

// Run runs the benchmark with the given name.
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
		j.report.Peers = layerPeers(opts.Peers, name, layerDType(j.Scales), j.Ranks)
		j.lackPeers(name, nil)
	}
	if err := all[i].run(j, ctx); err != nil {
		return nil, fmt.Errorf("bench %s: %w", name, err)
	}
	return j.report, nil
}

// done reports the progress of the benchmark.
func (j *job) done(parts, total int) {
	if j.Progress != nil {
		j.Progress(parts, total)
	}
}

// check returns an error for options that the benchmark does not use.
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
		return contest.Usagef("%s does not measure GEMMs of 8-bit types, so it takes no scales", b.name)
	case o.DType != ir.InvalidDType && !b.comm:
		return contest.Usagef("%s takes no element type", b.name)
	case o.Cold && !b.comm:
		return contest.Usagef("%s takes no cold operands", b.name)
	case o.Rows && !b.comm:
		return contest.Usagef("%s has no sizes in rows, which the output format of vLLM needs", b.name)
	case o.Turns != "" && !b.layer:
		return contest.Usagef("%s cannot be measured alternately with a program of peers", b.name)
	case o.Rows && o.DType != ir.InvalidDType && o.DType.Size() != 2:
		return contest.Usagef("sizes in rows are for elements of type bf16 or f16, not %s", o.DType)
	case o.Rounds < 0:
		return contest.Usagef("%d rounds", o.Rounds)
	}
	for _, n := range o.Sizes {
		if o.Rows && n%rowBytes != 0 {
			return contest.Usagef("the size %s is not a multiple of a row, which has 8192 elements of 2 bytes",
				contest.BytesText(n))
		}
		if err := contest.CheckSize(n); err != nil {
			return err
		}
	}
	return nil
}

// complete sets unset options to their defaults.
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

// graphs reports whether graphs are measured too.
func (j *job) graphs() bool { return j.machine.Caps().Graphs && !j.Eager }

// embedded reports whether the devices of the machine are the host's CPU. The default sizes are then small.
func (j *job) embedded() bool { return j.machine.Caps().OnHost }

func (j *job) method(format string, args ...any) {
	j.report.Method = append(j.report.Method, fmt.Sprintf(format, args...))
}
