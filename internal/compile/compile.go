// Package compile drives a program from its text to a plan: it lowers, binds
// and plans, and finds the function that a result is compared with.
package compile

import (
	"errors"

	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/planner"
	"hocket.example/hocket/ir"
)

// Passes lists what Options.StopAfter accepts, in the order passes run.
func Passes() []string {
	var names []string
	for _, p := range lower.Passes() {
		names = append(names, p.Name)
	}
	return names
}

// Options choose how a program is lowered.
type Options struct {
	// Strategy names how pairs of communication and GEMM are overlapped: see
	// Strategies. Empty means sequential: the text's own meaning (S3).
	Strategy string
	// StopAfter names the last pass to run; empty for all.
	StopAfter string
	// CheckEach runs the structural checks after every pass.
	CheckEach bool
}

// Unit is a checked program and its lowered form.
type Unit struct {
	Source  *ir.Info
	Lowered *lower.Result
}

// Build lowers a checked program.
func Build(source *ir.Info, opts Options) (*Unit, error) {
	strategy, err := lower.ParseStrategy(opts.Strategy)
	if err != nil {
		return nil, err
	}
	lo := lower.Options{StopAfter: opts.StopAfter, Choose: always(strategy)}
	if opts.CheckEach {
		lo.CheckEach = func(p *ir.Program) error {
			_, ds := ir.Check(p)
			return ds.Err()
		}
	}
	res, err := lower.Run(source.Prog, lo)
	if err != nil {
		return nil, err
	}
	if err := applied(source.Prog, res, strategy); err != nil {
		return nil, err
	}
	return &Unit{Source: source, Lowered: res}, nil
}

// Bind binds the source, so that complaints point at what the user wrote.
func (u *Unit) Bind(b ir.Binding) (*ir.Bound, error) {
	bound, ds := ir.Bind(u.Source, b)
	if err := ds.Err(); err != nil {
		return nil, err
	}
	return bound, nil
}

// Plan binds and plans the lowered program.
func (u *Unit) Plan(b ir.Binding) (*plan.Plan, error) {
	if _, err := u.Bind(b); err != nil {
		return nil, err
	}
	bound, ds := ir.Bind(u.Lowered.Info, b)
	if err := ds.Err(); err != nil {
		return nil, err
	}
	p, ds := planner.Plan(bound, planner.Options{})
	if err := ds.Err(); err != nil {
		return nil, err
	}
	// Lowering may return another name than the text does; results keep the text's.
	for i, name := range ir.OutputNames(u.Source.Prog.Func(p.Func)) {
		p.Outputs[i].Name = name
	}
	return p, nil
}

// Reference binds what a run is compared with: the function that the bound one
// refines, through to the last, or the function itself.
func (u *Unit) Reference(b ir.Binding) (*ir.Bound, error) {
	bound, err := u.Bind(b)
	if err != nil {
		return nil, err
	}
	f := bound.Func
	for f.Refines.Text != "" {
		f = u.Source.Prog.Func(f.Refines.Text)
	}
	b.Func = f.Name
	return u.Bind(b)
}

// IsLimit reports whether err only says that a program is too large to unroll
// (S21): then it may still be right.
func IsLimit(err error) bool {
	var ds ir.Diagnostics
	if !errors.As(err, &ds) {
		return false
	}
	for _, d := range ds {
		if d.Severity == ir.Error && d.Kind != "limit" {
			return false
		}
	}
	return true
}
