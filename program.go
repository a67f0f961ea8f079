package hocket

import (
	"errors"
	"path/filepath"
	"time"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/kernelfile"
	"hocket.example/hocket/internal/nvfuser"
	"hocket.example/hocket/internal/report"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// Diagnostics are the errors found in a program, each with its position, source line and what to do about it. It is
// an error.
type Diagnostics = ir.Diagnostics

// Program is a parsed and checked program. It is immutable and may be used by many goroutines.
type Program struct {
	info     *ir.Info
	warnings Diagnostics
	hints    Diagnostics // of the importer, for what a proof finds
	limits   compile.Limits
}

// Parse parses and checks the text of a program. name stands for the text in diagnostics; kernel files that launches
// name are read relative to its directory. A Host IR dump of nvFuser, recognised by its first line, is imported. The
// error is Diagnostics.
func Parse(name, src string) (*Program, error) {
	if nvfuser.IsDump(src) {
		p, _, err := Import(name, src, nil)
		return p, err
	}
	info, ds := checker.Read(name, src)
	if !ds.HasErrors() {
		ds = append(ds, kernelfile.Read(info.Prog, filepath.Dir(name))...)
	}
	if ds.HasErrors() {
		return nil, ds
	}
	return &Program{info: info, warnings: ds}, nil
}

// New checks a program that was built rather than parsed. Kernel files that it lacks are read from the directory of
// p.File into p.Files.
func New(p *ir.Program) (*Program, error) {
	if p == nil {
		return nil, errNoProgram
	}
	info, ds := checker.Check(p)
	if !ds.HasErrors() {
		ds = append(ds, kernelfile.Read(p, filepath.Dir(p.File))...)
	}
	if ds.HasErrors() {
		return nil, ds
	}
	return &Program{info: info, warnings: ds}, nil
}

// IR returns the program's syntax, which must not be changed.
func (p *Program) IR() *ir.Program {
	if p.none() {
		return &ir.Program{}
	}
	return p.info.Prog
}

// none reports whether p was not parsed: it is nil or the zero value.
func (p *Program) none() bool { return p == nil || p.info == nil }

// Warnings returns the findings of Parse that are not errors.
func (p *Program) Warnings() Diagnostics {
	if p.none() {
		return nil
	}
	return p.warnings
}

// String returns the program's canonical text.
func (p *Program) String() string { return p.IR().String() }

// Binding fixes what a program leaves open: the function, the number of ranks
// and the dims.
type Binding struct {
	// Func is the function; empty for the program's last.
	Func string
	// Ranks is the number of ranks; 0 for the mesh's size. It must equal that,
	// unless exactly one axis size is a dim, which it then sets.
	Ranks int
	// Dims overrides the program's defaults.
	Dims map[string]int64
	// Defines sets dims to index expressions over other dims and size(AXIS):
	// "C": "ceildiv(T, 16)".
	Defines map[string]string
}

func (b Binding) ir() ir.Binding {
	return ir.Binding{Func: b.Func, Ranks: b.Ranks, Dims: b.Dims, Defines: b.Defines}
}

// LowerOptions choose how a program is lowered, and how far.
type LowerOptions struct {
	// Strategy is the way communication is overlapped: "sequential" (the default), "chunked" or "chunked(8)",
	// "exchange" or "exchange(2)", "ahead", or "auto", which takes for each pair of communication and GEMM the
	// strategy that is predicted to be fastest.
	Strategy string
	// Machine is the machine that auto predicts for: "cpu" (the default), "h200x4" or the FILE.json of a description.
	// Times of collectives come from the latest tuned table for such GPUs, or else from the shipped table, as far as
	// these have them.
	Machine string
	// Nodes is the number of nodes that the ranks are spread over, evenly and in order, for auto's predictions; 0
	// means one.
	Nodes int
	// Binding gives the dims that auto's choice depends on.
	Binding Binding
	// StopAfter names the last pass to run; empty for all.
	StopAfter string
}

// Stage is a program after one pass.
type Stage struct {
	Pass    string
	Text    string
	Changed bool
	// Duration is how long the pass took, its check included.
	Duration time.Duration
}

// Lowered is an explicit program and the stages that led to it.
type Lowered struct {
	Program *Program
	Stages  []Stage
	// Log describes the reshards, with place and reason, one line each.
	Log []string

	page report.Lowering
}

// Lower turns a sharded program into an explicit one, in which every op works on what its rank holds and every
// transfer is written out.
func (p *Program) Lower(opts LowerOptions) (*Lowered, error) {
	u, err := p.build(compile.Options{Strategy: opts.Strategy, Machine: opts.Machine, Nodes: opts.Nodes,
		StopAfter: opts.StopAfter})
	if err != nil {
		return nil, err
	}
	res, err := u.LoweredFor(opts.Binding.ir())
	if err != nil && (res == nil || opts.Strategy == compile.Auto) {
		return nil, err // without auto, dims need no value
	}
	l := &Lowered{Program: &Program{info: res.Info},
		page: report.Lowering{Source: p.IR(), Stages: res.Stages, Log: res.Log}}
	for _, s := range res.Stages {
		l.Stages = append(l.Stages, Stage{Pass: s.Pass, Text: s.Text, Changed: s.Changed, Duration: s.Duration})
	}
	for _, e := range res.Log {
		l.Log = append(l.Log, e.String())
	}
	return l, nil
}

// errNoProgram is the error about a nil or zero Program.
var errNoProgram = errors.New("the Program is nil or zero: make one with Parse, New or Import")

func (p *Program) build(opts compile.Options) (*compile.Unit, error) {
	if p.none() {
		return nil, errNoProgram
	}
	opts.Limits = p.limits
	return compile.Build(p.info, opts)
}
