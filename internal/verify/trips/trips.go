// Package trips proves programs for loops with any number of iterations. It does so by proving the program for a few
// small numbers of iterations.
package trips

import (
	"fmt"
	"slices"
	"strconv"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// This file proves a program for any number of loop iterations by checking it for a few numbers of iterations.
//
// The proof applies to programs whose long loops use their variable i only in these expressions: those that repeat
// every L iterations (… mod n, or the worker of a stream loop), those that differ by a constant (block i and block i+1,
// signal i and wait i-2), and those that matter only near the loop's ends (if %i == 0). Consider an execution with N
// iterations, and remove L consecutive iterations from it. A path in the shorter execution is also a path in the longer
// one: an edge across the removed iterations leads to an iteration that occurs again L iterations later on the same
// stream, and streams are FIFOs. Therefore two accesses that are not ordered in the longer execution are not ordered in
// the shorter one. Two accesses that conflict in the longer execution also conflict in the shorter one, with two
// exceptions: the removed iterations are between two accesses with a constant distance in iterations, or near an end of
// the loop. If the loop has 3L more iterations, L of them can be removed such that neither exception applies. So a race
// with N iterations is also a race with N-L iterations, as long as N exceeds a few times L. If the program has no race
// for the lengths up to this limit, it has no race for any length.
//
// For deadlocks, no edge leads to an earlier iteration (the function align checks this in the plan). Hence a cycle
// of waits lies within one iteration, and also occurs in a shorter loop.

// Planning is a function that lowers, binds and plans a program. It returns the lowered program and its plan.
type Planning func(prog *ir.Program, b ir.Binding) (*ir.Program, *plan.Plan, error)

// Proof holds the result for loops of any length.
type Proof struct {
	Verdict verify.Verdict
	// Reason explains why nothing was decided.
	Reason string
	// At lists the trip counts for which a fault was found, as in "C=7".
	At string
	// Result is the result of checking the plan for the trip counts in At. Result is nil if the planner refused these
	// trip counts. If the program is proved, Result is the result for one of the checked plans, with its warnings.
	Result *verify.Result
	// Planned is the program whose plan was checked for Result.
	Planned *ir.Program
	// Diagnostics are the errors with which the planner refused a trip count.
	Diagnostics ir.Diagnostics
	// Checked is the number of plans that were checked. Period is the number of iterations after which the loops repeat
	// their behaviour.
	Checked int
	Period  int64
	// SerialSafe reports that all plans that were checked are serially safe.
	SerialSafe bool
}

// These constants limit the size of the programs that are unrolled.
const (
	maxPeriod = 48
	maxNear   = 24
	maxCombos = 4096
	longLoop  = 1000 // LongLoops does not unroll loops with this number of iterations or more
)

// All proves a program for all values of the given dims that are at least from. The argument from is 0 or 1; with 0,
// the proof includes loops without iterations, which do not write their buffers. All ignores the values of these dims
// in the binding. Each dim must be the trip count of loops.
func All(prog *ir.Program, b ir.Binding, dims []string, from int64, plans Planning) *Proof {
	a, err := newTrips(prog, b, plans)
	if err != nil {
		return unknown(err.Error())
	}
	for _, d := range dims {
		if _, has := a.bound.Dims[d]; !has {
			return unknown("the program has no dim " + d)
		}
		a.knobDims[d] = true
		a.knobs = append(a.knobs, &knob{dim: d, all: true, at: from})
	}
	return a.prove()
}

// LongLoops proves a program in which some loops are too long to unroll. The trip counts are those of the binding.
func LongLoops(prog *ir.Program, b ir.Binding, plans Planning) *Proof {
	a, err := newTrips(prog, b, plans)
	if err != nil {
		return unknown(err.Error())
	}
	a.findLong()
	return a.prove()
}

func unknown(why string) *Proof { return &Proof{Reason: why} }

// knob identifies a trip count that can be varied: a dim, or the literal bound of the n-th loop.
type knob struct {
	dim  string
	loop int
	at   int64 // the required value
	all  bool  // set if every greater value is also required
}

func (k *knob) name() string {
	if k.dim != "" {
		return k.dim
	}
	return "#" + strconv.Itoa(k.loop)
}

// trips analyses one function.
type trips struct {
	prog    *ir.Program
	fn      *ir.Func
	binding ir.Binding
	bound   *ir.Bound
	plans   Planning

	knobs    []*knob
	knobDims map[string]bool
	literals map[*ir.Stmt]*knob

	names  map[string]form
	kinds  map[string]ir.Op
	views  map[string]*viewOf
	parts  map[partOf][]part
	opaque map[string]bool
	types  map[string]*ir.Type
	shapes map[string]*ir.Type // types of all tensors that were visited
	scale  map[string]bool     // dims that are enlarged with the trip counts, so that no block is empty
	long   map[ir.Pos]bool     // the long loops

	every  int64 // the period
	apart  int64 // the largest constant distance, in iterations
	reason string
}

func newTrips(prog *ir.Program, b ir.Binding, plans Planning) (*trips, error) {
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		return nil, ds
	}
	bound, ds := ir.Bind(info, b)
	if ds.HasErrors() {
		return nil, ds
	}
	a := &trips{
		prog: prog, fn: bound.Func, binding: b, bound: bound, plans: plans, every: 1,
		knobDims: map[string]bool{}, literals: map[*ir.Stmt]*knob{},
		names: map[string]form{}, kinds: map[string]ir.Op{}, views: map[string]*viewOf{}, parts: map[partOf][]part{},
		opaque: map[string]bool{}, types: map[string]*ir.Type{}, shapes: map[string]*ir.Type{}, scale: map[string]bool{}, long: map[ir.Pos]bool{},
	}
	for _, p := range bound.Func.Params {
		a.types[p.Name], a.shapes[p.Name] = p.Type, p.Type
	}
	return a, nil
}

// fail records a reason why nothing can be decided, unless there is one already.
func (a *trips) fail(format string, args ...any) {
	if a.reason == "" {
		a.reason = fmt.Sprintf(format, args...)
	}
}

// findLong makes a knob, a trip count that can be varied, for each loop that is too long to unroll.
func (a *trips) findLong() {
	n := 0
	a.fn.Body.Walk(func(s *ir.Stmt) {
		if s.Op != ir.OpFor {
			return
		}
		n++
		trips, err := s.Exprs[1].Eval(a.bound.Env(0, nil))
		if err != nil || trips < longLoop {
			return // the loop is short, or the planner reports the error
		}
		if s.Exprs[1].Kind == ir.ExprInt {
			k := &knob{loop: n, at: trips}
			a.knobs, a.literals[s] = append(a.knobs, k), k
			return
		}
		s.Exprs[1].Walk(func(e *ir.Expr) {
			if e.Kind == ir.ExprName && !a.knobDims[e.Name] {
				a.knobDims[e.Name] = true
				a.knobs = append(a.knobs, &knob{dim: e.Name, at: a.bound.Dims[e.Name]})
			}
		})
	})
	if len(a.knobs) == 0 {
		a.fail("the program has no loop that is too long to unroll")
	}
}

// prove checks one plan for each combination of trip counts.
func (a *trips) prove() *Proof {
	if a.reason == "" {
		a.block(a.fn.Body)
		a.settle()
	}
	if a.reason != "" {
		return unknown(a.reason)
	}
	base := 3*a.every + 4*a.apart + 2
	out := &Proof{Verdict: verify.Proved, Period: a.every, SerialSafe: true}
	values := make([][]int64, len(a.knobs))
	combos := 1
	for i, k := range a.knobs {
		switch {
		case k.all:
			for v := k.at; v < max(base, k.at)+a.every; v++ {
				values[i] = append(values[i], v)
			}
		case k.at < base:
			values[i] = []int64{k.at}
		default:
			values[i] = []int64{base + (k.at-base)%a.every}
		}
		if combos *= len(values[i]); combos > maxCombos {
			return unknown("there are too many combinations of trip counts to check")
		}
	}
	for n := range combos {
		at := make([]int64, len(a.knobs))
		for i := range at {
			at[i] = values[i][n%len(values[i])]
			n /= len(values[i])
		}
		if a.try(out, at, base); out.Verdict != verify.Proved {
			break
		}
	}
	if out.Verdict == verify.Proved && out.Checked == 0 {
		return unknown("no trip counts were found with which the dims of the program are valid")
	}
	return out
}

// try checks the program with the given trip counts.
func (a *trips) try(out *Proof, at []int64, base int64) {
	prog, b, words := a.turned(at, true)
	planned, p, err := a.plans(prog, b)
	if err != nil {
		a.refused(out, err, words)
		return
	}
	out.Checked++
	r := verify.Plan(p, verify.Options{Prog: planned})
	out.SerialSafe = out.SerialSafe && r.SerialSafe
	switch r.Verdict {
	case verify.Unknown:
		*out = Proof{Reason: r.Reason, Checked: out.Checked}
		return
	case verify.Refuted:
		a.confirm(out, at, r, planned, words)
		return
	}
	if out.Result == nil || len(r.Plan.Cmds) > len(out.Result.Plan.Cmds) {
		out.Result, out.Planned = r, planned
	}
	if slices.Max(at) >= base {
		if why := align(p, planned, a); why != "" {
			*out = Proof{Reason: why, Checked: out.Checked}
		}
	}
}

// refused handles an error of the planner for some trip counts. If the trip counts do not fit the program's shapes, the
// error is not a fault of the program. Every other error is a fault.
func (a *trips) refused(out *Proof, err error, words string) {
	ds, ok := err.(ir.Diagnostics)
	if !ok {
		*out = Proof{Reason: err.Error(), Checked: out.Checked}
		return
	}
	for _, d := range ds {
		switch d.Kind {
		case "bind", "layout", "type":
			if slices.ContainsFunc(a.knobs, func(k *knob) bool { return !k.all }) {
				*out = Proof{Reason: "with " + words + ": " + d.Message, Checked: out.Checked}
			}
			return
		case "limit", "internal":
			*out = Proof{Reason: d.Message, Checked: out.Checked}
			return
		}
	}
	*out = Proof{Verdict: verify.Refuted, At: words, Diagnostics: ds, Checked: out.Checked}
}

// confirm checks that a fault also occurs with the given dims, which the proof has enlarged.
func (a *trips) confirm(out *Proof, at []int64, r *verify.Result, planned *ir.Program, words string) {
	if len(a.scale) > 0 {
		prog, b, w := a.turned(at, false)
		pl, p, err := a.plans(prog, b)
		if err != nil {
			*out = Proof{Reason: "with " + words + " the program is refuted, but with the given dims it is too " +
				"large to plan", Checked: out.Checked}
			return
		}
		if r2 := verify.Plan(p, verify.Options{}); r2.Verdict == verify.Refuted {
			r, planned, words = r2, pl, w
		} else {
			*out = Proof{Reason: "with " + words + " the program is refuted, but with the given dims blocks are " +
				"empty, which hides the fault", Checked: out.Checked}
			return
		}
	}
	*out = Proof{Verdict: verify.Refuted, At: words, Result: r, Planned: planned, Checked: out.Checked}
}

// turned returns the program and binding in which the knobs (trip counts) have the given values. If grown is set, the
// dims in the field scale are multiplied by these values.
func (a *trips) turned(at []int64, grown bool) (*ir.Program, ir.Binding, string) {
	b := a.binding
	b.Dims, b.Defines = map[string]int64{}, nil
	for name, v := range a.bound.Dims {
		if a.bound.Info.Dims[name] != nil {
			b.Dims[name] = v
		}
	}
	prog, words := a.prog, ""
	literal := map[int]int64{}
	factor := int64(1)
	for i, k := range a.knobs {
		if words != "" {
			words += ", "
		}
		factor *= max(at[i], 1)
		if k.dim != "" {
			b.Dims[k.dim] = at[i]
			words += fmt.Sprintf("%s=%d", k.dim, at[i])
		} else {
			literal[k.loop] = at[i]
			words += fmt.Sprintf("%d trips of the loop", at[i])
		}
	}
	if grown {
		for d := range a.scale {
			b.Dims[d] = max(b.Dims[d], 1) * factor
		}
	}
	if len(literal) > 0 {
		prog = a.prog.Clone()
		n := 0
		prog.Func(a.fn.Name).Body.Walk(func(s *ir.Stmt) {
			if s.Op != ir.OpFor {
				return
			}
			n++
			if v, ok := literal[n]; ok {
				s.Exprs[1] = ir.Int(v)
			}
		})
	}
	b.Func = a.fn.Name
	return prog, b, words
}
