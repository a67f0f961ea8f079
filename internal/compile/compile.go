// Package compile drives a program from its text to a plan: it lowers, binds
// and plans, and finds the function that a result is compared with.
package compile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/hostmem"
	"hocket.example/hocket/internal/lower"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/planner"
	"hocket.example/hocket/internal/sim"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
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
	// Machine is what auto chooses for: a name or file of internal/machine; empty for the one that fits Device
	// (see DescriptionFor), and cpu without one.
	Machine string
	// Device is the machine that will run it, of whose dispatch table the times of
	// collectives are. Without one they are of a table for GPUs like those described.
	Device device.Machine
	// Nodes is on how many nodes the ranks are predicted to be, in order and as evenly as they can be; 0 for those
	// of Device, or else one.
	Nodes int
	// Across is the tier between nodes as it was measured, instead of the description's; nil for that.
	Across *machine.Across
	// Limits bound what planning takes.
	Limits Limits
	// StopAfter names the last pass to run; empty for all.
	StopAfter string
	// CheckEach runs the structural checks after every pass.
	CheckEach bool
}

// Limits bound what a program takes of the host before it runs; 0 for no bound but the
// language's and the host's.
type Limits struct {
	Commands int64 // of a plan, over all ranks
	Memory   int64 // bytes that a plan takes of the host
	Ranks    int
	Time     time.Duration // of planning, and of proving
}

// Stop returns a function whose error says that the time is over, counted from now.
func (l Limits) Stop() func() error {
	if l.Time <= 0 {
		return func() error { return nil }
	}
	late := time.Now().Add(l.Time)
	return func() error {
		if time.Now().After(late) {
			return fmt.Errorf("it takes longer than %v, which is the limit", l.Time)
		}
		return nil
	}
}

// Limits are those that the unit was built with.
func (u *Unit) Limits() Limits { return u.opts.Limits }

// Unit is a checked program and its lowered form. It may be used by many
// goroutines.
type Unit struct {
	Source *ir.Info
	// Lowered is the lowered form. With auto it depends on the dims, and this
	// is the sequential one: see LoweredFor.
	Lowered *lower.Result

	opts   Options
	chosen autoCache
}

// Build lowers a checked program.
func Build(source *ir.Info, opts Options) (*Unit, error) {
	u := &Unit{Source: source, opts: opts}
	strategy := lower.Strategy{}
	if opts.Strategy != Auto {
		var err error
		if strategy, err = lower.ParseStrategy(opts.Strategy); err != nil {
			return nil, err
		}
	} else if opts.Machine != "" {
		if err := CheckMachine(opts.Machine); err != nil {
			return nil, err
		}
	}
	var err error
	if u.Lowered, err = u.lower(always(strategy)); err != nil {
		return nil, err
	}
	if err := applied(source.Prog, u.Lowered, strategy); err != nil {
		return nil, err
	}
	return u, nil
}

// lower runs the passes with a chooser.
func (u *Unit) lower(choose func(*lower.Pair) lower.Strategy) (*lower.Result, error) {
	lo := lower.Options{StopAfter: u.opts.StopAfter, Choose: choose}
	if u.opts.CheckEach {
		lo.CheckEach = func(p *ir.Program) error {
			_, ds := checker.Check(p)
			return ds.Err()
		}
	}
	return lower.Run(u.Source.Prog, lo)
}

// Bind binds the source, so that complaints point at what the user wrote.
func (u *Unit) Bind(b ir.Binding) (*ir.Bound, error) {
	bound, ds := ir.Bind(u.Source, b)
	if err := ds.Err(); err != nil {
		return nil, err
	}
	return bound, nil
}

// Dims gives the value that every dim has by a binding, defaults and what -n and
// definitions set included: bindings of one function with equal ones have equal plans.
func (u *Unit) Dims(b ir.Binding) (map[string]int64, error) {
	dims, ds := ir.Dims(u.Source, b)
	if err := ds.Err(); err != nil {
		return nil, err
	}
	return dims, nil
}

// Plan binds and plans the lowered program.
func (u *Unit) Plan(b ir.Binding) (*plan.Plan, error) {
	return u.PlanWithin(context.Background(), b)
}

// PlanWithin is Plan that gives up when ctx ends, and returns that.
func (u *Unit) PlanWithin(ctx context.Context, b ir.Binding) (*plan.Plan, error) {
	res, err := u.LoweredFor(b)
	if err != nil {
		return nil, err
	}
	bound, ds := ir.Bind(res.Info, b)
	if err := ds.Err(); err != nil {
		return nil, err
	}
	limits := u.opts.Limits
	if limits.Ranks > 0 && bound.Ranks > limits.Ranks {
		return nil, ir.Diagnostics{u.Source.Prog.Diag("limit", bound.Func.Pos, "%s runs on %d ranks; the limit is %d",
			bound.Func.Name, bound.Ranks, limits.Ranks)}
	}
	late := limits.Stop()
	p, ds := planner.Plan(bound, planner.Options{Room: hostmem.Available, Commands: limits.Commands, Memory: limits.Memory,
		Stop: func() error { return cmp.Or(ctx.Err(), late()) }})
	if err := ds.Err(); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("while %s was planned: %w", bound.Func.Name, ctx.Err())
		}
		if late := late(); late != nil && ds[0].Kind == "stopped" {
			return nil, ir.Diagnostics{u.Source.Prog.Diag("limit", bound.Func.Pos, "planning %s: %v", bound.Func.Name, late)}
		}
		return nil, err
	}
	// Lowering may return another name than the text does; results keep the text's.
	for i, name := range ir.OutputNames(u.Source.Prog.Func(p.Func)) {
		p.Outputs[i].Name = name
	}
	return p, nil
}

// Ranks makes the lowered program's ranks ready to be unrolled one at a time: grid is as of
// ir.Bound.Grid, and unroller makes an unroller for one goroutine, with what its ranks have in
// common.
func (u *Unit) Ranks(b ir.Binding) (grid []int64, unroller func() (*plan.Plan, func(int) (*plan.Rank, error), error), err error) {
	res, err := u.LoweredFor(b)
	if err != nil {
		return nil, nil, err
	}
	bound, ds := ir.Bind(res.Info, b)
	if err := ds.Err(); err != nil {
		return nil, nil, err
	}
	return bound.Grid(), func() (*plan.Plan, func(int) (*plan.Rank, error), error) {
		r, err := planner.NewRanks(bound, planner.Options{})
		if err != nil {
			return nil, nil, err
		}
		return r.Plan(), r.Unroll, nil
	}, nil
}

// maxTimed bounds the commands of plans whose time is predicted.
const maxTimed = 50_000

// Time predicts how long a plan takes on Options.Machine, in microseconds; 0 where it is too
// large to be predicted.
func (u *Unit) Time(p *plan.Plan) (float64, error) {
	if len(p.Cmds) > maxTimed || p.Ranks > maxSimulated {
		return 0, nil
	}
	m, _, err := u.machine(p.Ranks)
	if err != nil {
		return 0, err
	}
	t, err := sim.Plan(p, m)
	if err != nil {
		return 0, err
	}
	return t.Time, nil
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
