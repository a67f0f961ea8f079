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

// Diagnostics holds the errors found in a program. Each has a position, the source line and a suggestion for a
// correction. Diagnostics implements error.
type Diagnostics = ir.Diagnostics

// Program is a parsed and checked program. It is immutable and may be used by several goroutines at the same time.
type Program struct {
	info     *ir.Info
	warnings Diagnostics
	hints    Diagnostics // notes of the importer that are added to the findings of a proof
	limits   compile.Limits
	options  []string // options of OpenExport, by which errors distinguish the programs of different processes
}

// Parse parses and checks the text of a program. Diagnostics use name as the name of the text, and the paths of kernel
// files in launch statements are relative to the directory of name. If src is a Host IR dump of nvFuser, which Parse
// recognises by its first line, Parse imports it. The error is Diagnostics.
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

// New checks a program that was constructed rather than parsed. It reads missing kernel files from the directory of
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

// IR returns the program's syntax tree, which must not be changed.
func (p *Program) IR() *ir.Program {
	if p.none() {
		return &ir.Program{}
	}
	return p.info.Prog
}

// none reports whether p is nil or the zero value, and so was not made by Parse or New.
func (p *Program) none() bool { return p == nil || p.info == nil }

// Warnings returns the diagnostics of Parse that are not errors.
func (p *Program) Warnings() Diagnostics {
	if p.none() {
		return nil
	}
	return p.warnings
}

// String returns the program in canonical text form.
func (p *Program) String() string { return p.IR().String() }

// Binding selects the function of a program and sets the number of ranks and the dims that the program leaves open.
type Binding struct {
	// Func is the name of the function. If it is empty, the last function of the program is selected.
	Func string
	// Ranks is the number of ranks; 0 means the size of the mesh. Ranks must equal that size, unless the size of exactly
	// one axis is a dim; Ranks then sets this dim.
	Ranks int
	// Dims overrides the program's default values of dims.
	Dims map[string]int64
	// Defines sets dims to expressions of other dims and size(AXIS), for example "C": "ceildiv(T, 16)".
	Defines map[string]string
}

func (b Binding) ir() ir.Binding {
	return ir.Binding{Func: b.Func, Ranks: b.Ranks, Dims: b.Dims, Defines: b.Defines}
}

// LowerOptions configures how a program is lowered, and after which pass lowering stops.
type LowerOptions struct {
	// Strategy is the overlap strategy for communication: "sequential" (the default), "chunked" or "chunked(8)",
	// "exchange" or "exchange(2)", "ahead", "delayed", or "auto". For each pair of a communication and a GEMM, "auto" selects the
	// strategy that is predicted to be the fastest.
	Strategy string
	// Machine selects the machine for which auto predicts times: "cpu" (the default), "h200x4" or the name FILE.json of a
	// machine description. The times of collectives are read from the latest tuned table for these GPUs or, if there is
	// none, from the shipped table, for the collectives that the table contains.
	Machine string
	// Nodes is the number of nodes over which the predictions of "auto" distribute ranks, evenly and in order; 0 means
	// 1.
	Nodes int
	// Binding sets the dims on which auto's choice depends.
	Binding Binding
	// StopAfter is the name of the last pass to run. If it is empty, all passes run.
	StopAfter string
}

// Stage holds a program as it is after one pass.
type Stage struct {
	Pass    string
	Text    string
	Changed bool
	// Duration is the time that the pass took, including the check of its result.
	Duration time.Duration
}

// Lowered holds an explicit program and the stages from which it was made.
type Lowered struct {
	Program *Program
	Stages  []Stage
	// Log describes each reshard with its place and its reason, one line per reshard.
	Log []string

	page report.Lowering
}

// Lower converts a sharded program to an explicit one, in which every op works on the data that its rank holds and
// every transfer is a statement.
func (p *Program) Lower(opts LowerOptions) (*Lowered, error) {
	u, err := p.build(compile.Options{Strategy: opts.Strategy, Machine: opts.Machine, Nodes: opts.Nodes,
		StopAfter: opts.StopAfter})
	if err != nil {
		return nil, err
	}
	res, err := u.LoweredFor(opts.Binding.ir())
	if err != nil && (res == nil || opts.Strategy == compile.Auto) {
		return nil, err // strategies other than auto do not need the values of dims
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

// errNoProgram is the error about a Program that is nil or the zero value.
var errNoProgram = errors.New("the Program is nil or zero: create one with Parse, New or Import")

func (p *Program) build(opts compile.Options) (*compile.Unit, error) {
	if p.none() {
		return nil, errNoProgram
	}
	opts.Limits = p.limits
	return compile.Build(p.info, opts)
}
