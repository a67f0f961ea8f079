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
)

// Diagnostics is what is wrong with a program: every finding with its
// position, source line and what to do. It is an error.
type Diagnostics = ir.Diagnostics

// Program is a parsed and checked program. It is never changed, and may be
// used by many goroutines.
type Program struct {
	info     *ir.Info
	warnings Diagnostics
	limits   compile.Limits
}

// Parse parses and checks the text of a program; name stands for it in
// diagnostics, and files of kernels that launches name are read from the directory it is in. A
// Host IR dump of nvFuser, which its first line tells, is imported. Its error is Diagnostics.
func Parse(name, src string) (*Program, error) {
	if nvfuser.IsDump(src) {
		p, _, err := Import(name, src, nil)
		return p, err
	}
	info, ds := ir.Read(name, src)
	if !ds.HasErrors() {
		ds = append(ds, kernelfile.Read(info.Prog, filepath.Dir(name))...)
	}
	if ds.HasErrors() {
		return nil, ds
	}
	return &Program{info: info, warnings: ds}, nil
}

// New checks a program that was built rather than parsed. Files of kernels that it lacks are read
// from the directory of p.File, into p.Files.
func New(p *ir.Program) (*Program, error) {
	if p == nil {
		return nil, errNoProgram
	}
	info, ds := ir.Check(p)
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

// none reports whether nobody parsed p: nil, or the zero value.
func (p *Program) none() bool { return p == nil || p.info == nil }

// Warnings returns what Parse found that is no error.
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

// LowerOptions choose how far and how a program is lowered.
type LowerOptions struct {
	// Strategy is how communication is overlapped: "sequential" (the default),
	// "chunked" or "chunked(8)", "exchange" or "exchange(2)", "ahead", or "auto", which takes for each
	// pair of communication and GEMM what is predicted to be fastest.
	Strategy string
	// Machine is what auto predicts for: "cpu" (the default), "h200x4" or a
	// description's FILE.json. What collectives take is from the tuned table for such
	// GPUs that was written last, or the shipped one, where these have it.
	Machine string
	// Nodes is on how many nodes the ranks are, in order and evenly, as auto predicts; 0 for one.
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

// Lowered is an explicit program and how it came to be.
type Lowered struct {
	Program *Program
	Stages  []Stage
	// Log says what was resharded, where and why, one line each.
	Log []string

	page report.Lowering
}

// Lower turns a sharded program into an explicit one: every op works on what
// its rank holds, every transfer is written out.
func (p *Program) Lower(opts LowerOptions) (*Lowered, error) {
	u, err := p.build(compile.Options{Strategy: opts.Strategy, Machine: opts.Machine, Nodes: opts.Nodes,
		StopAfter: opts.StopAfter})
	if err != nil {
		return nil, err
	}
	res, err := u.LoweredFor(opts.Binding.ir())
	if err != nil && opts.Strategy == compile.Auto {
		return nil, err // the others lower what has dims without a value, too
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

// errNoProgram is what is made of a nil *Program, or a zero one.
var errNoProgram = errors.New("there is no program: Parse, New and Import make them")

func (p *Program) build(opts compile.Options) (*compile.Unit, error) {
	if p.none() {
		return nil, errNoProgram
	}
	opts.Limits = p.limits
	return compile.Build(p.info, opts)
}
