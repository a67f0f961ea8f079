package schedule

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Verdict is the result of Check.
type Verdict string

const (
	OK        Verdict = "ok"
	Race      Verdict = "race"
	Deadlock  Verdict = "deadlock"
	Wrong     Verdict = "wrong"
	Undecided Verdict = "undecided"

	// Left is the kind of a warning about signals that remain for the next launch. It is no verdict.
	Left Verdict = "left"
)

// Finding describes one error in a plan.
type Finding struct {
	Kind    Verdict `json:"kind"`
	Message string  `json:"message"`
	Places  []Place `json:"places,omitempty"`
	// Lines describes the counterexample, one sentence or list item in each line. State holds the same counterexample
	// as fields.
	Lines []string   `json:"notes,omitempty"`
	State []Progress `json:"counterexample,omitempty"`
	// Edge reports that the finding concerns the beginning or end of a launch, where a rank's own stream writes the
	// input and reads the output.
	Edge bool `json:"edge,omitempty"`
}

// Progress is the part of a counterexample that describes one thread block. All threads of the block have executed the
// operations before index Completed. If Ended is set, the block has executed all operations of the launch.
type Progress struct {
	// Place is the operation of the finding that a thread is about to execute, if Access is set. Otherwise Place is the
	// operation after the completed ones.
	Place
	Completed int  `json:"completed"`
	Launch    int  `json:"launch"` // the launch that the block executes, from 1
	Ended     bool `json:"ended,omitempty"`
	// Access is "first" or "second" if the operation makes the first or the second access that the finding's message
	// names. If Proxy is set, the block has posted the operation, and its proxy is about to execute it.
	Access string `json:"access,omitempty"`
	Proxy  bool   `json:"proxy,omitempty"`
	// Begun is set if a barrier within the next operation has been executed; a step of MSCCL contains several barriers.
	Begun   bool `json:"begun,omitempty"`
	b, done int  // the index of the block in the plan, and the number of ticks that it has executed
}

func (f *Finding) String() string {
	return strings.Join(append([]string{string(f.Kind) + ": " + f.Message}, f.Lines...), "\n  ")
}

// Report is the result of a check. The first of the Findings determines the verdict; Warnings do not affect it.
type Report struct {
	Verdict  Verdict
	Findings []*Finding
	Warnings []*Finding
	Notes    []string
	// Awaited are the indices of the counters for which the blocks of a deadlock wait. Left are the indices of the
	// counters that get more signals than waits in each launch.
	Awaited, Left []int
	// Steps is the number of operations that were executed. This number measures the work of the check.
	Steps int
}

// Options are the parameters of a check.
type Options struct {
	// Launches is 1 for a check of one launch. With 2, the check covers any number of consecutive launches, and a
	// conflict between launches is an error.
	Launches int
}

// launches returns the number of launches that Check simulates. Two launches suffice to prove any number of launches,
// or three if launches alternate between the halves of scratch; docs/schedules.md explains why. If counters do not
// return to their initial values, afterMany covers the later launches.
func (o Options) launches(p *Plan) int {
	switch {
	case o.Launches < 2:
		return 1
	case p.Double:
		return 3
	}
	return 2
}

// Check decides whether plan p is correct. A plan is correct if every interleaving terminates, orders all conflicting
// accesses, and leaves the result of the collective in the outputs. If each wait of the plan can be satisfied by only
// one signal, the order is the same in every interleaving, so one simulation with vector clocks suffices. For other
// plans, Check either refutes the plan or returns Undecided.
func Check(p *Plan, o Options) *Report {
	launches := o.launches(p)
	if p.Fault != nil {
		return &Report{Verdict: p.Fault.Kind, Findings: []*Finding{p.Fault}, Notes: p.Notes}
	}
	s, r := decide(p, launches)
	if launches > 1 && r.Verdict == Deadlock { // a block that hangs alone may hang others, or be released, in the next launch
		if _, one := decide(p, 1); one.Verdict == Deadlock {
			one.Findings, one.Warnings = append(one.Findings, one.Warnings...), nil
			one.Steps += r.Steps
			return one
		}
	}
	if launches == 1 || r.Verdict != OK {
		return r
	}
	raised, why := s.afterMany()
	if raised == nil {
		return r
	}
	_, later := decide(raised, launches)
	r.Steps += later.Steps
	if r.Verdict = later.Verdict; r.Verdict == OK {
		return r
	}
	for _, f := range later.Findings {
		f.Lines = append([]string{why}, f.Lines...)
	}
	r.Findings = later.Findings
	return r
}

// CheckOne checks one launch of a plan. It also returns a warning if one launch, or any number of launches, is not
// proved, and otherwise nil.
func CheckOne(p *Plan) (r *Report, doubt *Finding) {
	if r = Check(p, Options{}); r.Verdict != OK {
		return r, &Finding{Kind: r.Verdict, Message: "the schedule itself is not proved: " + r.Findings[0].Message}
	}
	if many := Check(p, Options{Launches: 2}); many.Verdict != OK {
		return r, &Finding{Kind: many.Verdict, Message: fmt.Sprintf(
			"one launch is proved, but launches after each other are not: %s: %s", many.Verdict,
			many.Findings[0].Message)}
	}
	return r, nil
}

// decide checks a number of launches. It also returns the simulation of the first interleaving.
func decide(p *Plan, launches int) (*sim, *Report) {
	s := simulate(p, launches, 0)
	r := s.report()
	for seed := uint64(1); s.ambiguous != "" && r.Verdict == OK && seed <= 64 && r.Steps < maxOps; seed++ {
		t := simulate(p, launches, seed)
		if other := t.report(); other.Verdict != OK {
			other.Steps += r.Steps
			return s, other
		}
		r.Steps += t.steps
	}
	if r.Verdict == OK && s.ambiguous != "" {
		r.Verdict = Undecided
		r.Findings = []*Finding{{Kind: Undecided, Message: s.ambiguous}}
	}
	return s, r
}

// mostThreads limits, for one launch and for several, the cells that a plan moves: if there are more, the order that
// packets establish is not computed for each thread separately.
var mostThreads = [...]int{1: 1 << 22, 2: 1 << 18}

// simulate executes a plan in one interleaving. Seed 0 selects the first interleaving. It first uses the cheapest
// analysis of packets, in which a packet carries only the knowledge that its block had at the last meeting of its
// threads. The cheapest analysis suffices for most correct plans.
func simulate(p *Plan, launches int, seed uint64) *sim {
	run := func(packets packetOrder) *sim {
		s := newSim(p, launches, nil)
		if s.follow = packets; seed > 0 {
			s.rng = newRand(seed)
		}
		s.run()
		return s
	}
	raced := func(s *sim) bool {
		return slices.ContainsFunc(s.findings, func(f *Finding) bool { return f.Kind == Race })
	}
	s := run(byJoins)
	if !p.packets || !raced(s) && s.ambiguous == "" {
		return s
	}
	if p.moved <= mostThreads[min(launches, 2)] {
		if s = run(byThreads); s.follow == byThreads {
			return s
		}
	}
	if s = run(byBlocks); !raced(s) {
		s.ambiguous = "it is correct if all threads of a block see the packets that one has read; " +
			"it is too large to check each thread"
	}
	return s
}

func (s *sim) report() *Report {
	r := &Report{Verdict: OK, Notes: s.p.Notes, Steps: s.steps}
	for _, f := range s.findings {
		if f.Edge && s.launches == 1 {
			r.Warnings = append(r.Warnings, f)
		} else {
			r.Findings = append(r.Findings, f)
		}
	}
	slices.SortStableFunc(r.Findings, func(f, g *Finding) int { // others may follow from conflicts within a launch
		switch {
		case f.Edge == g.Edge:
			return 0
		case g.Edge:
			return -1
		}
		return 1
	})
	for _, kind := range []Verdict{Deadlock, Race, Wrong} {
		for i, f := range r.Findings {
			if f.Kind == kind && r.Verdict == OK {
				r.Verdict = kind
				copy(r.Findings[1:i+1], r.Findings[:i])
				r.Findings[0] = f
			}
		}
	}
	if r.Verdict == Deadlock {
		r.Awaited = s.awaited
		return r
	}
	for i := range s.counters {
		c := &s.p.Counters[i]
		switch n := s.counters[i].rest(s.launches); {
		case n > 0:
			r.Left = append(r.Left, i)
			r.Warnings = append(r.Warnings, &Finding{Kind: Left, Edge: true, Message: fmt.Sprintf(
				"%s has %d more %s than waits in each launch: waits of later launches end before their own signals",
				c.Name, n, c.unit(n))})
		case n < 0:
			f := &Finding{Kind: Left, Edge: true, Message: fmt.Sprintf(
				"%s ends %d below its initial value in each launch: later launches wait for ever", c.Name, -n)}
			if s.launches == 1 || r.Verdict != OK {
				r.Warnings = append(r.Warnings, f)
				continue
			}
			f.Kind, r.Verdict, r.Findings = Deadlock, Deadlock, []*Finding{f}
		}
	}
	return r
}

// afterMany returns the plan of launches that follow many others, or nil if it is the same, and describes the
// difference. If a launch gives a counter more signals than it has waits, the waits of later launches get signals of
// ever earlier launches. After many launches, these waits order no accesses of successive launches.
func (s *sim) afterMany() (*Plan, string) {
	p, why := *s.p, ""
	p.Counters = slices.Clone(p.Counters)
	for i := range p.Counters {
		c := &p.Counters[i]
		n := s.counters[i].rest(s.launches)
		if n <= 0 {
			continue
		}
		c.Init += s.counters[i].count()
		if why == "" {
			why = fmt.Sprintf("it happens after many launches; launch 1 here is one of the last: in each, %s has %d "+
				"more %s than waits, so that after many launches its waits return immediately", c.Name, n, c.unit(n))
		}
	}
	if why == "" {
		return nil, ""
	}
	return &p, why
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// Told returns a line of text that names the schedule, the collective and the verdict.
func (r *Report) Told(name string, c Collective, ranks, launches int) string {
	what := "no result is defined for it, and no two accesses race"
	switch {
	case r.Verdict == Undecided:
		what = "neither proved nor refuted"
	case r.Verdict != OK:
		what = "refuted"
	case c != Undefined:
		what = string(c) + " in every interleaving"
	}
	number := "one launch"
	if launches > 1 {
		number = "any number of launches"
	}
	if r.Verdict == OK && slices.ContainsFunc(r.Warnings, func(f *Finding) bool { return f.Kind == Race }) {
		what += " that begins and ends on all ranks at once"
	}
	return fmt.Sprintf("%s on %d ranks, %s: %s", name, ranks, number, what)
}

// These constants limit the errors and warnings that Diagnostics returns if it is asked for few.
const (
	fewErrors   = 3
	fewWarnings = 4
)

// Diagnostics returns the findings, the warnings and then the notes of a report about the named file. If few is set, it
// returns the first of each kind and says how many it omits.
func (r *Report) Diagnostics(file string, few bool) ir.Diagnostics {
	var ds, warnings ir.Diagnostics
	of := func(f *Finding, severity ir.Severity) *ir.Diagnostic {
		d := &ir.Diagnostic{Severity: severity, File: file, Kind: string(f.Kind), Message: f.Message}
		for _, line := range f.Lines {
			d.Notes = append(d.Notes, ir.Note{Message: line})
		}
		return d
	}
	for _, f := range r.Findings {
		severity := ir.Error
		if f.Kind == Undecided {
			severity = ir.Warning
		}
		ds = append(ds, of(f, severity))
	}
	for _, w := range r.Warnings {
		d := of(w, ir.Warning)
		if w.Kind == Race {
			d.Kind = "edge"
		}
		warnings = append(warnings, d)
	}
	for _, n := range r.Notes {
		warnings = append(warnings, &ir.Diagnostic{Severity: ir.Warning, File: file, Kind: "loader", Message: n})
	}
	cut := func(ds ir.Diagnostics, most int, what string) ir.Diagnostics {
		if !few || len(ds) <= most {
			return ds
		}
		last := &ir.Diagnostic{Severity: ds[0].Severity, File: file, Kind: "more",
			Message: fmt.Sprintf("and %d more %s: --json lists all", len(ds)-most, what)}
		return append(ds[:most:most], last)
	}
	return append(cut(ds, fewErrors, "errors"), cut(warnings, fewWarnings, "warnings")...)
}
