package hocket

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/compile"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/verify"
	"hocket.example/hocket/internal/verify/repair"
	"hocket.example/hocket/internal/verify/trips"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// VerdictKind is the kind of result that Check returns.
type VerdictKind uint8

// The kinds of verdicts.
const (
	// Unknown means that no fault was found and that nothing is proved.
	Unknown VerdictKind = iota
	// Refuted means that the program is wrong. Verdict.Diagnostics shows where.
	Refuted
	// Proved means that no run of the program, and no two consecutive runs, can have a data race, use memory that already
	// holds another value, deadlock, or execute collectives or transfers that do not match between ranks. The proof says
	// nothing about the values that the program computes.
	Proved
)

// String returns "unknown", "refuted" or "proved".
func (k VerdictKind) String() string { return [...]string{"unknown", "refuted", "proved"}[k] }

// ProofMethod is the method by which Check reached its verdict.
type ProofMethod string

// The methods of proof.
const (
	// ByStructure means that the program's text was analysed, without a plan.
	ByStructure ProofMethod = "structural"
	// ByPlan means that every command of two consecutive runs was checked, with the bytes that it reads and writes.
	ByPlan ProofMethod = "plan"
	// ByLoops means that loops that are too long to unroll were proved from shorter loops that repeat the same commands.
	ByLoops ProofMethod = "loops"
	// BySymmetry means that the commands of one rank were checked, because all ranks execute the same commands. This
	// proof applies only to plans whose buffers do not share memory.
	BySymmetry ProofMethod = "symmetry"
)

// Verdict is the result of checking a program under a binding.
type Verdict struct {
	Kind VerdictKind
	// Proof is the method with which the verdict was reached.
	Proof ProofMethod
	// Reason is the reason why nothing was proved.
	Reason string
	// Diagnostics holds the findings: errors if the program is Refuted, and warnings otherwise.
	Diagnostics Diagnostics
	// SerialSafe reports that the program also terminates if each rank executes its ops one at a time in issue order. The
	// program then does not depend on streams that run concurrently.
	SerialSafe bool
	// ForAll names the dims and loop trip counts for which the proof holds at every value from 1 up, and not only at the
	// value in Dims.
	ForAll []string
	// Func, Ranks and Dims identify the function, the number of ranks and the dims that were checked. Commands is the
	// number of commands in one run, summed over all ranks.
	Func     string
	Ranks    int
	Dims     map[string]int64
	Commands int
	// Certificate is the evidence from the proof of the plan, as JSON. It is set only if CheckOptions.Certificate is; see
	// LoadOptions.Certificate.
	Certificate []byte

	shown *counterexample // of a refuted plan
}

// CheckOptions configures Check. The zero value is ready to use.
type CheckOptions struct {
	// Redundant makes Check warn of each wait that has no effect because of other waits.
	Redundant bool
	// Strategy is the overlap strategy with which the program is lowered before it is checked, as in LowerOptions, and
	// Machine is the machine for which costs are predicted. If Machine is set, warnings about lost overlap and needless
	// waits give the predicted cost.
	Strategy string
	Machine  string
	// Certificate makes Check prove the plan and return a certificate of the proof.
	Certificate bool
}

// Check proves, without running the program, that two consecutive runs have no data races, no reuse of memory that is
// still in use, no reads of memory that was never written, no mismatched collectives or transfers, and no deadlocks. If
// a run can have such a fault, Check shows a counterexample. Check also refutes a claim that all ranks hold the same
// value if each rank computed the value from its own block of a parameter.
//
// A wrong program, or a binding that the program cannot have, gives a verdict. The error is non-nil only if the check
// itself failed.
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
	p.hint(v.Diagnostics)
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

// wrongClaims returns the claims that all ranks hold the same value although each rank computed it from its own block.
func wrongClaims(u *compile.Unit, b Binding) (Diagnostics, error) {
	lowered, err := u.LoweredFor(b.ir())
	if err != nil {
		return nil, err
	}
	bound, ds := ir.Bind(lowered.Info, b.ir())
	if ds.HasErrors() {
		return nil, nil // planning returns these errors
	}
	return verify.Claims(bound, u.Source.Prog), nil
}

// prover checks the plans of one compiled unit.
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

// longProof is the number of commands, summed over all ranks, from which Check first tries a proof without a plan: a
// proof from shorter loops, or a proof of one rank that represents all ranks.
const longProof = 50_000

// short tries the proofs that need no plan, and reports whether one of them reached a verdict.
func (pr *prover) short(v *Verdict, b Binding, o CheckOptions) (done bool, err error) {
	if o.Redundant || o.Certificate {
		return false, nil // these options concern a plan
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
		return false, nil // the analysis of the plan reports the same fault more precisely
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

// longest returns the largest trip count of a loop in the text, among the loops whose trip counts the dims alone
// determine.
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

// plan checks a plan, and determines whether the verdict also holds for other trip counts of loops.
func (pr *prover) plan(v *Verdict, b Binding, p *plan.Plan, o CheckOptions) error {
	lowered, err := pr.unit.LoweredFor(b.ir())
	if err != nil {
		return err
	}
	r := verify.Plan(p, verify.Options{Prog: lowered.Info.Prog, Source: pr.unit.Source.Prog, Redundant: o.Redundant,
		Stop: pr.unit.Limits().Stop()})
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
		if pr.unit.SameForAll(lowered, d) && trips.All(prog, b.ir(), []string{d}, 1, pr.planning).Verdict == verify.Proved {
			v.ForAll = append(v.ForAll, d)
		}
	}
	return nil
}

// leastCost is the smallest cost of a lost overlap, as a fraction of a run's predicted time, that warnings mention.
const leastCost = 0.005

// costs adds the predicted cost to warnings about lost overlap and needless waits. The cost is the difference between
// the predicted times of the run with and without them.
func (pr *prover) costs(p *plan.Plan, r *verify.Result, machine string) error {
	whole := 0.0
	for i := range r.Findings {
		f := &r.Findings[i]
		var edges []int32
		switch {
		case f.Kind == verify.KindOverlap && len(f.Acts) > 2:
			for _, a := range f.Acts[2:] { // the first two notes name the unordered operations
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
			continue // no time is predicted for a program that deadlocks
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
	for _, l := range verify.LaterWaits(p, pr.unit.Source.Prog) {
		if t, err := pr.unit.Time(l.Plan); err == nil && cost(whole, t, machine) != "" {
			l.Finding.Message += cost(whole, t, machine)
			r.Findings = append(r.Findings, l.Finding)
		}
	}
	return nil
}

// cost describes the predicted cost of an ordering. It returns "" if the cost is negligible.
func cost(whole, without float64, machine string) string {
	if lost := whole - without; lost > leastCost*whole {
		return fmt.Sprintf("; this costs %.0f of the %.0f µs that are predicted for a run on %s", lost, whole, machine)
	}
	return ""
}

// maxGeneral is the largest number of commands for which Check tries to extend a proof to all trip counts. The
// extension checks about twelve more plans of similar size.
const maxGeneral = 5000

// loopDims returns the dims that occur in the trip counts of loops.
func loopDims(f *ir.Func) []string {
	var out []string
	f.Body.Walk(func(s *ir.Stmt) {
		if s.Op == ir.OpFor && s.Exprs[1].Kind == ir.ExprName && !slices.Contains(out, s.Exprs[1].Name) {
			out = append(out, s.Exprs[1].Name)
		}
	})
	return out
}

// loops checks a program that has long loops. If limit is not nil, it reports that the program is too large to unroll.
func (pr *prover) loops(v *Verdict, b Binding, limit error) error {
	lowered, err := pr.unit.LoweredFor(b.ir())
	if err != nil {
		return err
	}
	t := trips.LongLoops(lowered.Info.Prog, b.ir(), pr.planning)
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

// planning plans a program that is already explicit.
func (pr *prover) planning(prog *ir.Program, b ir.Binding) (*ir.Program, *plan.Plan, error) {
	info, ds := checker.Check(prog)
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

// String returns one line with the verdict and, if there is a proof, its method and scope.
func (v Verdict) String() string {
	var b strings.Builder
	switch {
	case v.Kind == Unknown:
		return "not proved: " + v.Reason
	case v.Kind == Refuted:
		return "refuted"
	case v.Proof == ByLoops:
		b.WriteString("proved from shorter loops that execute the same pattern")
	case v.Proof == BySymmetry:
		fmt.Fprintf(&b, "proved: %d commands on %s, from one rank that represents all, two runs back to back", v.Commands,
			ranks(v.Ranks))
	default:
		fmt.Fprintf(&b, "proved: %d commands on %s, two runs back to back", v.Commands, ranks(v.Ranks))
	}
	for _, d := range v.ForAll {
		fmt.Fprintf(&b, "; for every %s >= 1", d)
	}
	if v.SerialSafe {
		b.WriteString("; needs no concurrent streams")
	}
	return b.String()
}

func ranks(n int) string {
	if n == 1 {
		return "1 rank"
	}
	return fmt.Sprintf("%d ranks", n)
}

// Fixed is the result of a successful repair with Fix.
type Fixed struct {
	Program *Program
	// Edits describes each insertion and its place in one line.
	Edits []string
	// Verdict is the verdict for the repaired program.
	Verdict Verdict
}

// Fix repairs a program so that it can be proved. It inserts as few waits and barriers as possible, and reorders
// statements if the program deadlocks. It returns nil if the program is already proved, or if none of the repairs that
// it tries leads to a proof.
func Fix(p *Program, b Binding) (*Fixed, error) {
	u, err := p.build(compile.Options{})
	if err != nil {
		return nil, err
	}
	pr := &prover{unit: u}
	source, ds := ir.Parse(p.info.Prog.File, p.String()) // Fix needs positions in the printed text
	if ds.HasErrors() {
		return nil, ds
	}
	source.Files = p.info.Prog.Files
	fixed := repair.Repair(source, b.Func, func(prog *ir.Program) (*ir.Program, *plan.Plan, error) {
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

// refutedOr returns a Refuted verdict if err consists of diagnostics, and returns other errors unchanged.
func refutedOr(err error) (Verdict, error) {
	var ds Diagnostics
	if errors.As(err, &ds) {
		return Verdict{Kind: Refuted, Proof: ByStructure, Diagnostics: ds}, nil
	}
	return Verdict{}, err
}

// proofOf is the result of proving a plan, and the reason if nothing was proved.
type proofOf struct {
	kind   VerdictKind
	reason string
}

// ofProved sets MismatchError.Proved in an error about ranks whose copies of a value differ.
func ofProved(err error, proof proofOf) error {
	if differ := (*MismatchError)(nil); errors.As(err, &differ) {
		differ.Proved = proof.kind == Proved
	}
	return err
}

// dimsOnly evaluates expressions that contain dims but no other variables.
type dimsOnly map[string]int64

func (d dimsOnly) Dim(name string) (int64, bool)  { v, ok := d[name]; return v, ok }
func (dimsOnly) Var(string) (int64, bool)         { return 0, false }
func (dimsOnly) Rank(string) (int64, bool)        { return 0, false }
func (dimsOnly) Size(string) (int64, bool)        { return 0, false }
func (dimsOnly) Extent(string, int) (int64, bool) { return 0, false }
