// Package planner turns a bound program into a plan. It executes the program text once for each rank, and emits the
// commands of the rank. It then matches the commands that ranks execute together, and merges the commands of all ranks
// into one list. It computes the happens-before order of the commands over two consecutive runs. Finally the planner
// assigns memory to buffers, so that two buffers share bytes only if the order allows it. References such as S5 are to
// sections of docs/language.md.
//
// The files contain these steps: unroll.go (control flow); tensor.go, view.go, order.go and comm.go (the commands
// of statements); match.go; merge.go; broadcast.go and forward.go (removal of copies); simulate.go (happens-before); layout.go. All
// steps after unroll.go use only plan.Plan.
package planner

import (
	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// Options sets limits of planning and receives statistics. The zero value selects the defaults.
type Options struct {
	// Stats, if not nil, receives the numbers of operations that planning performed.
	Stats *Stats
	// Room returns the number of bytes of free host memory, or 0 if it is unknown. Room is called once, when a plan
	// becomes long. If the plan needs more memory, planning fails with an error of kind "limit".
	Room func() int64
	// Commands is the maximum number of commands over all ranks, and Memory is the maximum number of bytes of host
	// memory that a plan may need. 0 sets no limit.
	Commands, Memory int64
	// Stop, if not nil, is called every few milliseconds. If Stop returns an error, planning ends and returns it as a
	// diagnostic of kind "stopped".
	Stop func() error
}

// Stats counts the operations whose numbers determine the time that planning takes, and the commands that it removes.
type Stats struct {
	Statements int64 // statements executed, over all ranks
	Exprs      int64 // index expressions evaluated
	Joins      int64 // vector clocks joined
	Compares   int64 // pairs of buffers compared for happens-before
	Probes     int64 // free ranges examined by the online layout
	Removed    int64 // copies and broadcasts that were removed from the plan
}

// Plan returns the plan for a bound function. The function and all functions that it calls must be explicit: every
// op works on local shards (see ir.Info.Explicit). Errors have a position, and name the rank and the iteration.
func Plan(b *ir.Bound, opts Options) (*plan.Plan, ir.Diagnostics) {
	if opts.Stats == nil {
		opts.Stats = new(Stats)
	}
	p, err := build(b, opts)
	if err == nil {
		return p, nil
	}
	if ds, ok := err.(ir.Diagnostics); ok {
		return nil, ds
	}
	d, ok := err.(*ir.Diagnostic)
	if !ok {
		d = internalError(b, "%v", err)
	}
	return nil, ir.Diagnostics{d}
}

func build(b *ir.Bound, opts Options) (*plan.Plan, error) {
	if err := requireExplicit(b); err != nil {
		return nil, err
	}
	w := newWorld(b, opts.Stats)
	w.room, w.stop = opts.Room, opts.Stop
	if opts.Commands > 0 {
		w.mostCommands = min(w.mostCommands, opts.Commands)
	}
	if opts.Memory > 0 {
		w.mostCommands = min(w.mostCommands, max(opts.Memory/commandBytes, 1))
	}
	for rank := range b.Ranks {
		if err := w.unroll(rank); err != nil {
			return nil, err
		}
	}
	if err := w.match(); err != nil {
		return nil, err
	}
	if err := w.merge(); err != nil {
		return nil, err
	}
	before := len(w.p.Cmds)
	readThrough(w.p)
	forward(w.p)
	opts.Stats.Removed += int64(before - len(w.p.Cmds))
	o, err := simulate(w, w.p, opts.Stats)
	if err != nil {
		return nil, err
	}
	if over := layOut(w.p, o, opts.Stats); over != nil {
		return nil, b.Info.Prog.Diag("limit", w.p.Sites[over.Site].Pos,
			"memory for %s would end beyond %d bytes, the limit of a plan", over.Name, int64(maxArena))
	}
	return w.p, nil
}

// requireExplicit returns an error if the function still needs lowering.
func requireExplicit(b *ir.Bound) error {
	seen := map[*ir.Func]bool{}
	var implicit *ir.Stmt
	var visit func(f *ir.Func)
	visit = func(f *ir.Func) {
		if f == nil || seen[f] {
			return
		}
		seen[f] = true
		f.Body.Walk(func(s *ir.Stmt) {
			if needsLowering(b.Info, s) && implicit == nil {
				implicit = s
			}
			if s.Op == ir.OpCall {
				visit(b.Info.Prog.Func(s.Callee.Text))
			}
		})
	}
	visit(b.Func)
	if implicit == nil {
		return nil
	}
	d := internalError(b, "%s still needs a reshard: lower the program first", implicit.Op)
	d.Pos = implicit.Pos
	return d
}

func needsLowering(in *ir.Info, s *ir.Stmt) bool {
	for _, t := range in.Needs[s] {
		if t != nil {
			return true
		}
	}
	return in.Natural[s] != nil || s.Op == ir.OpReshard
}

func internalError(b *ir.Bound, format string, args ...any) *ir.Diagnostic {
	return b.Info.Prog.Diag("internal", ir.Pos{}, format, args...)
}
