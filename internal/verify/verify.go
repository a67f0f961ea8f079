// Package verify proves plans and programs free of data races, reuse of live memory, missing joins, mismatched
// collectives and deadlocks, or reports what is wrong. It does not trust the planner: it reads only the plan, and
// derives its own order of happens-before.
//
// A plan is checked in four steps, one file each: structure (what is visible without executing: ranges, matching,
// counts), simulate (two consecutive runs executed greedily, with vector clocks), memory (each access against what the
// clocks know of earlier accesses), serial (the same with each rank's commands one by one). Explain words the
// findings.
//
// Two proofs need no plan of the whole program: trips proves loops of any length by plans of short ones, and symmetry
// proves any number of ranks by one, if it finds that all do the same. Lone finds errors of a few ranks among many.
// Repair and reorder edit programs until they are proved. Claims finds values that the text claims to be the same on
// ranks that hold different values.
package verify

import (
	"cmp"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Verdict is what was found out.
type Verdict uint8

// Verdicts.
const (
	// Unknown: nothing wrong was found, and nothing is proved.
	Unknown Verdict = iota
	// Proved: no execution of back-to-back runs has any of the faults.
	Proved
	// Refuted: some execution has; the findings show it.
	Refuted
)

// String returns "unknown", "proved" or "refuted".
func (v Verdict) String() string { return [...]string{"unknown", "proved", "refuted"}[v] }

// Kinds of findings: stable words for programs that read them.
const (
	KindRace      = "race"      // conflicting accesses that nothing orders
	KindReuse     = "reuse"     // the same between two buffers on the same bytes
	KindUnwritten = "unwritten" // bytes read that were never written
	KindClobbered = "clobbered" // bytes read that another buffer has overwritten
	KindMatch     = "match"     // collectives, transfers or signals that do not fit
	KindDeadlock  = "deadlock"  // streams that wait for each other
	KindBounds    = "bounds"    // memory outside its buffer or arena
	KindIssue     = "issue"     // host issue order: a wait before its record
	KindClaim     = "claim"     // called the same on ranks that hold what differs
	KindSerial    = "serial"    // warning: safe only where streams really run side by side
	KindOverlap   = "overlap"   // warning: iterations on different streams, in order nevertheless
	KindRedundant = "redundant" // warning: a wait that other waits imply
)

// Finding is one fault, or with Warning one thing worth knowing.
type Finding struct {
	Warning bool
	Kind    string
	Message string
	// Acts are the commands concerned, the earlier in issue order first.
	Acts []Act
	// Why says why nothing orders the first two acts.
	Why string
	// Help names the smallest edge that would, and where to write it.
	Help string
	// Picture shows the streams of the first two acts side by side, one row a
	// line; empty where there is nothing to see.
	Picture string
	// Count is the number of places of the plan that show the same finding.
	Count int
	// Unsure: the overlap of the tensors was over-approximated, so the fault may
	// not be real.
	Unsure bool
}

// Act is one execution of a command.
type Act struct {
	Cmd int32 // index in Plan.Cmds
	Run int   // 0 or 1, of the two consecutive runs
	// What the command does to the memory in question: "writes %y", or "".
	What string
}

// Result is what checking a plan gave.
type Result struct {
	Verdict Verdict
	// Reason says why nothing was decided.
	Reason string
	// Findings: faults first, in order of issue; then warnings.
	Findings []Finding
	// SerialSafe: the plan also ends when each rank's commands run one by one in
	// issue order.
	SerialSafe bool
	// Stats says how much work it was.
	Stats Stats

	Plan     *plan.Plan // that was judged
	Unlisted int        // places of findings that are not listed
}

// Stats counts the operations that decide how long checking takes.
type Stats struct {
	Steps    int64 // commands executed, both runs
	Joins    int64 // vector clocks joined
	Accesses int64 // pieces of memory looked at
	Atoms    int   // pieces the memory falls into
}

// Options choose what is looked for beyond faults. The zero value looks for
// faults, serial safety and lost overlap.
type Options struct {
	// Redundant lists the waits that others imply, and those without which the
	// plan is proved as well.
	Redundant bool
	// FaultsOnly leaves the warnings out: what is wanted before a run.
	FaultsOnly bool
	// Stop, when set, is asked now and then: where it returns an error nothing is decided.
	Stop func() error
	// Prog is the program that was planned: it tells which loop a command is
	// in. Without it no lost overlap is found.
	Prog *ir.Program
}

// maxFindings bounds how many different faults are listed.
const maxFindings = 20

// Plan checks a plan over two consecutive runs.
func Plan(p *plan.Plan, opts Options) *Result {
	r := &Result{Plan: p}
	ix, faults := newIndex(p)
	if len(faults) > 0 {
		return r.close(faults)
	}
	mem, fault := newMemory(ix)
	if fault != nil {
		return r.close([]Finding{*fault})
	}
	s := newSim(ix, mem)
	watch, redundant := s.observe(opts)
	s.stop = opts.Stop
	s.run()
	r.Stats = s.stats
	r.Stats.Atoms = mem.atoms
	if s.stopped != nil {
		r.Reason = "proving it: " + s.stopped.Error()
		return r
	}
	if f := s.deadlock(); f != nil {
		return r.close([]Finding{*f})
	}
	found, untold := mem.findings()
	faults, r.Unlisted = append(s.ambiguous(), found...), untold
	if opts.FaultsOnly {
		return r.close(faults)
	}
	warnings := []Finding{}
	if f := serialHang(ix); f != nil {
		warnings = append(warnings, *f)
	}
	r.SerialSafe = len(warnings) == 0
	if len(faults) == 0 && watch != nil {
		warnings = append(warnings, watch.findings()...)
	}
	if len(faults) == 0 && redundant != nil {
		implied := redundant.findings()
		warnings = append(warnings, implied...)
		warnings = append(warnings, unneeded(ix, implied)...)
	}
	faults = append(faults, warnings...)
	return r.close(faults)
}

// observe lets those look on that the options ask for; either may be nil.
func (s *sim) observe(opts Options) (*overlapWatch, *redundancy) {
	var watch *overlapWatch
	var redundant *redundancy
	if opts.FaultsOnly {
		return nil, nil
	}
	if opts.Prog != nil {
		watch = newOverlapWatch(s.ix, s.mem, opts.Prog)
	}
	if opts.Redundant {
		redundant = newRedundancy(s.ix)
		s.heard = redundant.wait
	}
	s.passed = func(lane, cmd int32, run int) {
		if watch != nil && run == 0 {
			watch.start(&s.views[lane], cmd)
		}
		if redundant != nil {
			redundant.other(lane)
		}
	}
	return watch, redundant
}

// close sorts the findings and draws the conclusion.
func (r *Result) close(fs []Finding) *Result {
	slices.SortStableFunc(fs, func(a, b Finding) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(firstCmd(a), firstCmd(b)))
	})
	r.Findings = fs
	r.Verdict = Proved
	for i := range fs {
		switch {
		case fs[i].Warning:
		case fs[i].Unsure:
			if r.Verdict == Proved {
				r.Verdict, r.Reason = Unknown, "the bytes of views are too irregular to be compared: "+fs[i].Message
			}
		default:
			r.Verdict, r.Reason = Refuted, ""
		}
	}
	return r
}

func rank(f Finding) int {
	switch {
	case f.Warning:
		return 2
	case f.Unsure:
		return 1
	}
	return 0
}

func firstCmd(f Finding) int32 {
	if len(f.Acts) == 0 {
		return -1
	}
	return f.Acts[0].Cmd
}

// Diagnostics tells the findings in terms of the source: prog is the program
// that was planned. The findings of a Refuted result are errors.
func (r *Result) Diagnostics(prog *ir.Program) ir.Diagnostics {
	var ds ir.Diagnostics
	for i := range r.Findings {
		ds = append(ds, r.diagnostic(prog, &r.Findings[i]))
	}
	return ds
}
