// Package verify checks plans and programs for data races, reuse of live memory, missing joins, mismatched
// collectives and deadlocks. It either proves that they have none of these faults or reports the faults. It does
// not trust the planner: it reads only the plan, and derives its own happens-before order. References such as S5
// are to sections of docs/language.md.
//
// A plan is checked in four steps, with one file or type for each. The step structure checks what needs no execution:
// ranges, matching and counts. The step simulate executes two consecutive runs greedily, with vector clocks. The step
// memory compares each access with the clocks of earlier accesses. The step serial simulates the plan again, with the
// commands of each rank executed one by one. The file explain.go writes the text of the findings.
//
// Two kinds of proof need no plan of the whole program. Package trips proves loops of any length, by plans of short
// loops. The file symmetry.go proves any number of ranks by examining one rank, after it has checked that all ranks
// do the same. Package repair edits programs until they are proved. The function Claims finds values that the
// program's text claims to be equal on all ranks although the ranks hold different data.
package verify

import (
	"cmp"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Verdict is the outcome of a check.
type Verdict uint8

// Verdicts.
const (
	// Unknown means that no fault was found, but the plan is not proved.
	Unknown Verdict = iota
	// Proved means that no execution of back-to-back runs has any of the faults.
	Proved
	// Refuted means that some execution has a fault. The findings describe it.
	Refuted
)

// String returns "unknown", "proved" or "refuted".
func (v Verdict) String() string { return [...]string{"unknown", "proved", "refuted"}[v] }

// These constants are the kinds of findings. Programs that read findings can rely on these names.
const (
	KindRace      = "race"      // conflicting accesses that nothing orders
	KindReuse     = "reuse"     // conflicting uses of two buffers on the same bytes
	KindUnwritten = "unwritten" // a read of bytes that were never written
	KindClobbered = "clobbered" // a read of bytes that another buffer has overwritten
	KindMatch     = "match"     // collectives, transfers or signals that do not match
	KindDeadlock  = "deadlock"  // streams that wait for each other
	KindBounds    = "bounds"    // memory outside its buffer or arena
	KindIssue     = "issue"     // host issue order: a wait before its record
	KindClaim     = "claim"     // a claim of equal data on ranks that hold different data
	KindSerial    = "serial"    // warning: free of deadlocks only if streams run concurrently
	KindOverlap   = "overlap"   // warning: iterations on different streams that are nevertheless ordered
	KindRedundant = "redundant" // warning: a wait that other waits imply
)

// Finding describes one fault or, if Warning is set, another property of the plan that the user should know.
type Finding struct {
	Warning bool
	Kind    string
	Message string
	// Acts are the commands that the finding concerns, in the order of issue.
	Acts []Act
	// Why explains why the first two commands of Acts are not ordered.
	Why string
	// Help describes the statement that would order the first two commands of Acts, and the position at which it must
	// be inserted.
	Help string
	// Picture shows the streams of the first two commands of Acts in adjacent columns, with one row in each line.
	// Picture is empty if it would show nothing more than the text.
	Picture string
	// Count is the number of places in the plan that have the same fault.
	Count int
	// Unsure reports that the overlap of the tensors was over-approximated, so that the fault may not be real.
	Unsure bool
}

// Act is one execution of a command.
type Act struct {
	Cmd int32 // index in Plan.Cmds
	Run int   // 0 or 1, of the two consecutive runs
	// What describes the command's access to the memory in question, for example "writes %y". It may be "".
	What string
}

// Result holds the outcome of checking a plan.
type Result struct {
	Verdict Verdict
	// Reason explains why nothing was decided.
	Reason string
	// Findings lists first the faults, in order of issue, and then the warnings.
	Findings []Finding
	// SerialSafe reports that the plan does not deadlock even if each rank's commands are executed one by one in issue
	// order.
	SerialSafe bool
	// Stats describes the amount of work.
	Stats Stats

	Plan     *plan.Plan // the plan that was checked
	Unlisted int        // number of faulty places whose findings are not listed
}

// Stats counts the operations that determine the duration of a check.
type Stats struct {
	Steps    int64 // commands executed, both runs
	Joins    int64 // vector clocks joined
	Accesses int64 // atoms of memory examined
	Atoms    int   // number of atoms into which the memory is divided
}

// Options select checks in addition to the search for faults. The zero value selects faults, serial safety and lost
// overlap.
type Options struct {
	// Redundant selects a list of the waits that other waits imply, and of the waits without which the plan is still
	// proved.
	Redundant bool
	// Source is the program that the author wrote, before strategies inserted waits. If Source is set, Redundant lists
	// only its waits and barriers, because the author cannot remove the inserted ones.
	Source *ir.Program
	// FaultsOnly omits the warnings. This option is used for the check before a run.
	FaultsOnly bool
	// Stop, if not nil, is called repeatedly during the check. If it returns an error, the check ends without a
	// decision.
	Stop func() error
	// Prog is the program that was planned. Prog is used to find the loop that contains a command. If it is nil, the
	// check finds no lost overlap.
	Prog *ir.Program
}

// maxFindings limits the number of different faults that are listed.
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
		w := writtenIn(opts.Source)
		implied := redundant.findings(w)
		warnings = append(warnings, implied...)
		warnings = append(warnings, unneeded(ix, implied, w)...)
	}
	faults = append(faults, warnings...)
	return r.close(faults)
}

// observe registers the observers that the options select. Either result may be nil.
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

// close sorts the findings and determines the verdict.
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
				r.Verdict, r.Reason = Unknown, "the views' bytes are too irregular to compare: "+fs[i].Message
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

// Diagnostics returns the findings as diagnostics that refer to the source. The argument prog is the program that was
// planned. The findings of a Refuted result are errors.
func (r *Result) Diagnostics(prog *ir.Program) ir.Diagnostics {
	var ds ir.Diagnostics
	for i := range r.Findings {
		ds = append(ds, r.diagnostic(prog, &r.Findings[i]))
	}
	return ds
}
