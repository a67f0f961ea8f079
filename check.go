package hocket

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/ir"
)

// VerdictKind says what Check found.
type VerdictKind uint8

// Verdicts.
const (
	// Unknown: nothing wrong was found, and nothing is proved.
	Unknown VerdictKind = iota
	// Refuted: the program is wrong; Verdict.Diagnostics shows where.
	Refuted
	// Proved: no run of the program, nor any two back to back, has a data race,
	// uses memory that holds something else, waits for ever, or has ranks that
	// do not match. What it computes is not part of that.
	Proved
)

// String returns "unknown", "refuted" or "proved".
func (k VerdictKind) String() string { return [...]string{"unknown", "refuted", "proved"}[k] }

// ProofMethod says by what Check came to its verdict.
type ProofMethod string

// Methods of proof.
const (
	// ByStructure: by the text, without a plan.
	ByStructure ProofMethod = "structural"
	// ByPlan: by every command of two runs, with the bytes that it touches.
	ByPlan ProofMethod = "plan"
	// ByLoops: loops too long to unroll, by shorter ones that repeat the same.
	ByLoops ProofMethod = "loops"
	// BySymmetry: by what one rank does, where all do the same; buffers have their bytes for
	// themselves.
	BySymmetry ProofMethod = "symmetry"
)

// Verdict is what Check found out about a bound program.
type Verdict struct {
	Kind VerdictKind
	// Proof says by what.
	Proof ProofMethod
	// Reason says why nothing was proved.
	Reason string
	// Diagnostics are the findings: errors when Refuted; warnings otherwise.
	Diagnostics Diagnostics
	// SerialSafe: it also ends where each rank's ops run one by one in issue
	// order, so it depends on no streams that run side by side.
	SerialSafe bool
	// ForAll names the dims, trip counts of loops, for every value of which from
	// 1 on the proof holds, not only for that in Dims.
	ForAll []string
	// Func, Ranks and Dims are what was checked; Commands how many commands of
	// all ranks a run has.
	Func     string
	Ranks    int
	Dims     map[string]int64
	Commands int
	// Certificate is evidence of what a plan's proof found, if CheckOptions asked for it: JSON, see
	// LoadOptions.Certificate.
	Certificate []byte

	shown *counterexample // of a plan that is refuted
}

// CheckOptions tune Check; the zero value is usable.
type CheckOptions struct {
	// Redundant lists the waits that others imply, as warnings.
	Redundant bool
	// Strategy checks what the program is lowered to by this one: see
	// LowerOptions, whose Machine this is too. With a machine, warnings about lost overlap and
	// waits that are not needed say what these cost.
	Strategy string
	Machine  string
	// Certificate makes the proof one of a plan, and Check return a certificate of it.
	Certificate bool
}

// Check proves a bound program, without running it, free of data races, reuse
// of memory in use, reads of what nobody wrote, mismatched collectives and
// transfers, and deadlocks, over two consecutive runs; or shows a
// counterexample. It also refutes claims that ranks hold the same where each
// holds what it computed from its own block of a parameter. The error is
// non-nil when the check itself could not be made; a wrong program is a verdict,
// and so is a binding that it cannot have.
func Check(p *Program, b Binding, opts ...CheckOptions) (Verdict, error) {
	var o CheckOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	u, err := p.build(compile.Options{Strategy: o.Strategy, Machine: o.Machine})
	if err != nil {
		return refutedOr(err)
	}
	v, err := (&prover{unit: u, strategy: o.Strategy}).check(p, b, o)
	if err != nil {
		return v, err
	}
	wrong, err := wrongClaims(u, b)
	switch {
	case len(wrong) == 0:
	case v.Kind == Refuted:
		v.Diagnostics = append(v.Diagnostics, wrong...)
	default:
		v.Kind, v.Proof, v.Reason, v.ForAll, v.Diagnostics = Refuted, ByStructure, "", nil, wrong
	}
	return v, err
}

// wrongClaims returns the claims of a program that say that ranks hold the same
// where each holds what it made of its own block of a parameter.
func wrongClaims(u *compile.Unit, b Binding) (Diagnostics, error) {
	lowered, err := u.LoweredFor(b.ir())
	if err != nil {
		return nil, err
	}
	bound, ds := ir.Bind(lowered.Info, b.ir())
	if ds.HasErrors() {
		return nil, nil // planning it reports them
	}
	return verify.Claims(bound, u.Source.Prog), nil
}

// prover checks what a unit plans.
type prover struct {
	unit     *compile.Unit
	strategy string
}

func (pr *prover) check(p *Program, b Binding, o CheckOptions) (Verdict, error) {
	bound, err := pr.unit.Bind(b.ir())
	if err != nil {
		return refutedOr(err)
	}
	v := Verdict{Func: bound.Func.Name, Ranks: bound.Ranks, Dims: bound.Dims, Proof: ByStructure}
	if done, err := pr.short(&v, b, o); done || err != nil {
		if v.Kind != Refuted {
			v.Diagnostics = append(v.Diagnostics, p.warnings...)
		}
		return v, err
	}
	plan, err := pr.unit.Plan(b.ir())
	switch {
	case err == nil:
		err = pr.plan(&v, b, plan, o)
	case compile.IsLimit(err):
		err = pr.loops(&v, b, err)
	default:
		var refuted Verdict
		if refuted, err = refutedOr(err); err == nil {
			v.Kind, v.Diagnostics = Refuted, refuted.Diagnostics
		}
	}
	if v.Kind != Refuted {
		v.Diagnostics = append(v.Diagnostics, p.warnings...)
	}
	return v, err
}

// longProof is the number of commands of all ranks from which a proof without a plan is
// tried first: one of shorter loops, or of one rank that stands for all.
const longProof = 50_000

// short tries the proofs that need no plan; it reports whether one decided.
func (pr *prover) short(v *Verdict, b Binding, o CheckOptions) (done bool, err error) {
	if o.Redundant || o.Certificate {
		return false, nil // these are about a plan
	}
	lowered, err := pr.unit.LoweredFor(b.ir())
	if err != nil {
		return false, err
	}
	if longest(lowered.Info.Prog.Func(v.Func), v.Dims)*int64(v.Ranks) >= longProof/4 {
		if err := pr.loops(v, b, nil); err != nil || v.Kind != Unknown {
			return true, err
		}
		*v = Verdict{Func: v.Func, Ranks: v.Ranks, Dims: v.Dims, Proof: ByStructure}
	}
	if v.Ranks < 2 {
		return false, nil
	}
	grid, unroller, err := pr.unit.Ranks(b.ir())
	if err != nil {
		return false, nil // Plan says so again, and better
	}
	s, err := verify.Symmetric(verify.Symmetry{Grid: grid, Unroller: unroller, MinCommands: longProof,
		Prog: lowered.Info.Prog})
	if err != nil || s.Verdict == verify.Unknown {
		return false, nil
	}
	v.Kind, v.Proof, v.SerialSafe, v.Commands = verdictKind(s.Verdict), BySymmetry, s.SerialSafe, s.Commands
	v.Diagnostics = s.Diagnostics(pr.unit.Source.Prog)
	return true, nil
}

// longest returns the most trips that a loop of the text has, as far as dims alone tell.
func longest(f *ir.Func, dims map[string]int64) int64 {
	most := int64(0)
	f.Body.Walk(func(s *ir.Stmt) {
		if s.Op != ir.OpFor {
			return
		}
		if n, err := s.Exprs[1].Eval(dimsOnly(dims)); err == nil {
			most = max(most, min(n, 1<<40))
		}
	})
	return most
}

// plan checks a plan, and whether what holds of it holds for other trip counts.
func (pr *prover) plan(v *Verdict, b Binding, p *plan.Plan, o CheckOptions) error {
	lowered, err := pr.unit.LoweredFor(b.ir())
	if err != nil {
		return err
	}
	r := verify.Plan(p, verify.Options{Prog: lowered.Info.Prog, Redundant: o.Redundant, Stop: pr.unit.Limits().Stop()})
	v.Kind, v.Proof, v.Reason, v.SerialSafe, v.Commands = verdictKind(r.Verdict), ByPlan, r.Reason, r.SerialSafe,
		len(p.Cmds)
	if o.Machine != "" {
		if err := pr.costs(p, r, o.Machine); err != nil {
			return err
		}
	}
	v.Diagnostics = r.Diagnostics(pr.unit.Source.Prog)
	if v.Kind == Refuted {
		v.shown = show(p, r.Findings)
	}
	if v.Kind == Proved && o.Certificate {
		if v.Certificate, err = certificate(p); err != nil {
			return err
		}
	}
	if v.Kind != Proved || len(p.Cmds) > maxGeneral {
		return nil
	}
	prog := lowered.Info.Prog
	for _, d := range loopDims(prog.Func(v.Func)) {
		if verify.AllTrips(prog, b.ir(), []string{d}, 1, pr.planning).Verdict == verify.Proved {
			v.ForAll = append(v.ForAll, d)
		}
	}
	return nil
}

// leastCost is the part of a run that a lost overlap must cost to be told what it costs.
const leastCost = 0.005

// costs adds to what loses overlap, and to waits that are not needed, what they cost: the
// time that is predicted without them.
func (pr *prover) costs(p *plan.Plan, r *verify.Result, machine string) error {
	whole := 0.0
	for i := range r.Findings {
		f := &r.Findings[i]
		var edges []int32
		switch {
		case f.Kind == verify.KindOverlap && len(f.Acts) > 2:
			for _, a := range f.Acts[2:] { // the first two are what is ordered
				edges = append(edges, a.Cmd)
			}
		case f.Kind == verify.KindRedundant && len(f.Acts) > 0:
			edges = []int32{f.Acts[0].Cmd}
		default:
			continue
		}
		if whole == 0 {
			var err error
			if whole, err = pr.unit.Time(p); err != nil || whole == 0 {
				return err
			}
		}
		without, err := pr.unit.Time(verify.LeftOut(p, edges...))
		if err != nil {
			continue // nothing is predicted of what gets stuck
		}
		f.Message += cost(whole, without, machine)
	}
	if r.Verdict != verify.Proved {
		return nil
	}
	whole, err := pr.unit.Time(p)
	if err != nil || whole == 0 {
		return err
	}
	for _, l := range verify.LaterWaits(p) {
		if t, err := pr.unit.Time(l.Plan); err == nil && cost(whole, t, machine) != "" {
			l.Finding.Message += cost(whole, t, machine)
			r.Findings = append(r.Findings, l.Finding)
		}
	}
	return nil
}

// cost says what is lost with an order; nothing where that is next to nothing.
func cost(whole, without float64, machine string) string {
	if lost := whole - without; lost > leastCost*whole {
		return fmt.Sprintf("; it costs %.0f µs of %.0f that are predicted for %s", lost, whole, machine)
	}
	return ""
}

// maxGeneral is the number of commands up to which a proof is tried to be made
// one for all trip counts: that takes a dozen plans of about the same size.
const maxGeneral = 5000

// loopDims returns the dims that are the bound of a loop.
func loopDims(f *ir.Func) []string {
	var out []string
	f.Body.Walk(func(s *ir.Stmt) {
		if s.Op == ir.OpFor && s.Exprs[1].Kind == ir.ExprName && !slices.Contains(out, s.Exprs[1].Name) {
			out = append(out, s.Exprs[1].Name)
		}
	})
	return out
}

// loops checks a program whose loops are long; limit says, if it does, that it is too large to unroll.
func (pr *prover) loops(v *Verdict, b Binding, limit error) error {
	lowered, err := pr.unit.LoweredFor(b.ir())
	if err != nil {
		return err
	}
	t := verify.LongLoops(lowered.Info.Prog, b.ir(), pr.planning)
	v.Kind = verdictKind(t.Verdict)
	switch v.Kind {
	case Proved:
		v.Proof, v.SerialSafe = ByLoops, t.SerialSafe
		for _, d := range t.Result.Diagnostics(t.Planned) {
			if d.Kind == verify.KindOverlap {
				v.Diagnostics = append(v.Diagnostics, d)
			}
		}
	case Refuted:
		v.Proof, v.Diagnostics = ByLoops, t.Diagnostics
		if t.Result != nil {
			v.Diagnostics = t.Result.Diagnostics(t.Planned)
		}
		for _, d := range v.Diagnostics {
			d.Notes = append(d.Notes, ir.Note{Message: "shown with " + t.At})
		}
	default:
		v.Reason = t.Reason
		if limit != nil {
			v.Reason = fmt.Sprintf("%v; and %s", limit, t.Reason)
		}
	}
	return nil
}

// planning plans a program that is explicit already.
func (pr *prover) planning(prog *ir.Program, b ir.Binding) (*ir.Program, *plan.Plan, error) {
	info, ds := ir.Check(prog)
	if ds.HasErrors() {
		return nil, nil, ds
	}
	u, err := compile.Build(info, compile.Options{Limits: pr.unit.Limits()})
	if err != nil {
		return nil, nil, err
	}
	p, err := u.Plan(b)
	return u.Lowered.Info.Prog, p, err
}

func verdictKind(v verify.Verdict) VerdictKind {
	return map[verify.Verdict]VerdictKind{verify.Unknown: Unknown, verify.Proved: Proved, verify.Refuted: Refuted}[v]
}

// String returns one line: what was found, and of a proof by what and for what.
func (v Verdict) String() string {
	var b strings.Builder
	switch {
	case v.Kind == Unknown:
		return "not proved: " + v.Reason
	case v.Kind == Refuted:
		return "refuted"
	case v.Proof == ByLoops:
		b.WriteString("proved, by shorter loops that repeat the same")
	case v.Proof == BySymmetry:
		fmt.Fprintf(&b, "proved: %d commands on %s, by one rank that stands for all, two runs back to back", v.Commands,
			ranks(v.Ranks))
	default:
		fmt.Fprintf(&b, "proved: %d commands on %s, two runs back to back", v.Commands, ranks(v.Ranks))
	}
	for _, d := range v.ForAll {
		fmt.Fprintf(&b, "; for every %s >= 1", d)
	}
	if v.SerialSafe {
		b.WriteString("; needs no streams that run side by side")
	}
	return b.String()
}

func ranks(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", n)
}

// Fixed is a program that Fix repaired.
type Fixed struct {
	Program *Program
	// Edits says what was written where, one line each.
	Edits []string
	// Verdict is that of the repaired program.
	Verdict Verdict
}

// Fix inserts the smallest waits and barriers, or where the program gets stuck puts it in
// another order, so that it is proved.
// It returns nil when the program is proved as it is, or when none of what it
// tries helps.
func Fix(p *Program, b Binding) (*Fixed, error) {
	u, err := p.build(compile.Options{})
	if err != nil {
		return nil, err
	}
	pr := &prover{unit: u}
	source, ds := ir.Parse(p.info.Prog.File, p.String()) // positions of the text that is printed
	if ds.HasErrors() {
		return nil, ds
	}
	source.Files = p.info.Prog.Files
	fixed := verify.Repair(source, b.Func, func(prog *ir.Program) (*ir.Program, *plan.Plan, error) {
		return pr.planning(prog, b.ir())
	})
	if fixed == nil || len(fixed.Edits) == 0 {
		return nil, nil
	}
	repaired, err := New(fixed.Program)
	if err != nil {
		return nil, err
	}
	v, err := Check(repaired, b)
	return &Fixed{Program: repaired, Edits: fixed.Edits, Verdict: v}, err
}

// refutedOr makes a verdict of diagnostics and passes other errors on.
func refutedOr(err error) (Verdict, error) {
	var ds Diagnostics
	if errors.As(err, &ds) {
		return Verdict{Kind: Refuted, Proof: ByStructure, Diagnostics: ds}, nil
	}
	return Verdict{}, err
}

// proofOf is what was proved of a plan, and why nothing was.
type proofOf struct {
	kind   VerdictKind
	reason string
}

// ofProved says of ranks whose copies differ whether the plan that they ran was proved.
func ofProved(err error, proof proofOf) error {
	var differ *MismatchError
	if errors.As(err, &differ) {
		differ.Proved = proof.kind == Proved
	}
	return err
}

// dimsOnly evaluates expressions of dims alone.
type dimsOnly map[string]int64

func (d dimsOnly) Dim(name string) (int64, bool)  { v, ok := d[name]; return v, ok }
func (dimsOnly) Var(string) (int64, bool)         { return 0, false }
func (dimsOnly) Rank(string) (int64, bool)        { return 0, false }
func (dimsOnly) Size(string) (int64, bool)        { return 0, false }
func (dimsOnly) Extent(string, int) (int64, bool) { return 0, false }
