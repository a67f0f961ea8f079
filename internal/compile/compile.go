// Package compile turns the text of a program into a plan: it lowers, binds and plans the program. It also finds the
// reference function, with whose results the results of a run are compared.
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

// Passes returns the values that Options.StopAfter accepts, in the order in which the passes run.
func Passes() []string {
	var names []string
	for _, p := range lower.Passes() {
		names = append(names, p.Name)
	}
	return names
}

// Options select how a program is lowered.
type Options struct {
	// Strategy is the name of the strategy with which pairs of communication and GEMM are overlapped (see Strategies).
	// If Strategy is empty, pairs are sequential, which is the meaning of the text itself (S3).
	Strategy string
	// Machine is the machine for which auto chooses strategies: a name of a built-in description or the path of a file.
	// If Machine is empty, the description that fits Device is used (see DescriptionFor), or cpu if Device is nil.
	Machine string
	// Device is the machine that will run the program. The predicted times of collectives come from the dispatch table
	// of Device. If Device is nil, the predicted times of collectives come from a shipped table for the GPUs of the
	// machine description.
	Device device.Machine
	// Nodes is the number of nodes over which the ranks are assumed to be distributed, in order and as evenly as
	// possible. 0 selects the nodes of Device, or one node if Device is nil.
	Nodes int
	// Across is the measured speed of the network between nodes (the tier). If Across is not nil, it replaces the tier
	// in the machine description.
	Across *machine.Across
	// Limits are limits on the time and memory of planning.
	Limits Limits
	// StopAfter is the name of the last pass to run. If StopAfter is empty, all passes run.
	StopAfter string
	// CheckEach runs the structural checks after every pass.
	CheckEach bool
}

// Limits holds limits on the resources of the host that a program may use before it runs. For a limit of 0, only the
// limits of the language and of the host apply.
type Limits struct {
	Commands int64 // maximum number of commands of a plan, over all ranks
	Memory   int64 // maximum bytes of host memory for a plan
	Ranks    int
	Time     time.Duration // maximum time for planning, and maximum time for proving
}

// Stop returns a function that returns an error once Time has passed, counted from the call of Stop.
func (l Limits) Stop() func() error {
	if l.Time <= 0 {
		return func() error { return nil }
	}
	late := time.Now().Add(l.Time)
	return func() error {
		if time.Now().After(late) {
			return fmt.Errorf("the time limit of %v is exceeded", l.Time)
		}
		return nil
	}
}

// Limits returns the limits with which the unit was built.
func (u *Unit) Limits() Limits { return u.opts.Limits }

// Unit is a checked program with its lowered form. Multiple goroutines may use a Unit at the same time.
type Unit struct {
	Source *ir.Info
	// Lowered is the lowered form. With auto, the lowered form depends on the dims (see LoweredFor), and Lowered is the
	// sequential form.
	Lowered *lower.Result

	opts   Options
	chosen autoCache
}

// Of checks and lowers the program p. If a program is checked already, Build lowers it.
func Of(p *ir.Program, opts Options) (*Unit, error) {
	info, ds := checker.Check(p)
	if ds.HasErrors() {
		return nil, ds
	}
	return Build(info, opts)
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
	var delays *lower.Buckets
	if strategy.Delayed {
		bound, ds := ir.Bind(source, ir.Binding{})
		if ds.HasErrors() {
			bound = nil // dims have no values yet
		}
		delays = buckets(bound)
	}
	if u.Lowered, err = u.lower(always(strategy), delays); err != nil {
		return nil, err
	}
	if err := applied(source.Prog, u.Lowered, strategy); err != nil {
		return nil, err
	}
	return u, nil
}

// bucketBytes is the largest size of a collective that reduces several tensors. Collectives of this size take little
// more time for each byte than larger ones, and they can start earlier.
const bucketBytes = 16 << 20

// buckets returns the size limits of the collectives that reduce several tensors. Sizes in bytes are computed with the
// dims of bound, which is nil if the dims are not known.
func buckets(bound *ir.Bound) *lower.Buckets {
	if bound == nil {
		return &lower.Buckets{}
	}
	return &lower.Buckets{Bytes: bucketBytes, Sizes: bound.Env(0, nil)}
}

// lower runs the passes with the given chooser and the given size limits of buckets.
func (u *Unit) lower(choose func(*lower.Pair) lower.Strategy, buckets *lower.Buckets) (*lower.Result, error) {
	lo := lower.Options{StopAfter: u.opts.StopAfter, Choose: choose, Buckets: buckets}
	if u.opts.CheckEach {
		lo.CheckEach = func(p *ir.Program) error {
			_, ds := checker.Check(p)
			return ds.Err()
		}
	}
	return lower.Run(u.Source.Prog, lo)
}

// Bind binds the source program, so that errors point into the user's text.
func (u *Unit) Bind(b ir.Binding) (*ir.Bound, error) {
	bound, ds := ir.Bind(u.Source, b)
	if err := ds.Err(); err != nil {
		return nil, err
	}
	return bound, nil
}

// Dims returns the value that every dim has under a binding, including values from defaults, from -n and from
// definitions. Two bindings of one function with equal dims have equal plans.
func (u *Unit) Dims(b ir.Binding) (map[string]int64, error) {
	dims, ds := ir.Dims(u.Source, b)
	if err := ds.Err(); err != nil {
		return nil, err
	}
	return dims, nil
}

// Plan sets the dims and ranks of the lowered program to the values of b, and returns its plan.
func (u *Unit) Plan(b ir.Binding) (*plan.Plan, error) {
	return u.PlanWithin(context.Background(), b)
}

// PlanWithin is the same as Plan, but stops when ctx ends and then returns ctx's error.
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
	// Lowering may change the name of a returned value. Outputs keep the names of the source program.
	for i, name := range ir.OutputNames(u.Source.Prog.Func(p.Func)) {
		p.Outputs[i].Name = name
	}
	return p, nil
}

// Ranks prepares the unrolling of the lowered program, one rank at a time. The first result, grid, has the meaning of
// ir.Bound.Grid. The second result, unroller, is a function that each goroutine must call once. The function returns a
// function that unrolls one rank, and a plan that contains the tables that all ranks share.
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

// maxTimed is the maximum number of commands of a plan whose time is predicted.
const maxTimed = 50_000

// Time returns the predicted time of a plan on Options.Machine in microseconds, or 0 if the plan has more than maxTimed
// commands.
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

// Reference binds the reference function, with whose results the results of a run are compared. The reference function
// is the last function of the chain of refines clauses that starts at the bound function. If the bound function has no
// refines clause, the reference function is the bound function itself.
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

// IsLimit reports whether err means only that a program is too large to unroll (S21). A program that is too large to
// unroll may be correct.
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
