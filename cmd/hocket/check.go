package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// checkFlags holds the flags of check, in addition to those of every command that has a PROGRAM argument.
type checkFlags struct {
	redundant, fix         bool
	strategy, machine, out string
	certificate            string
	launches               int // 1 for one launch of a collective schedule, and 2 for any number
}

func (a *app) checkCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "check PROGRAM [flags]",
		SuggestFor: []string{"verify", "prove", "lint", "vet", "validate"},
		Short:      "Prove that a program has no races or deadlocks, without running it",
		Long: `Proves a program free of data races, reuse of memory in use, reads of unwritten
memory, mismatched collectives and transfers, and deadlocks, over runs back to
back; or shows two conflicting ops, why nothing orders them, and the smallest
edge that would. Exit 0: proved. 1: refuted. 5: could not decide, and why.

Judges the Host IR of nvFuser within the log of a job (NVFUSER_DUMP=host_ir), too, and
collective schedules: execution plans of MSCCL++ (.json) and algorithms of
MSCCL (.xml). Of these it also proves the result.

The proof does not cover the values that a program computes: see run --compare.`,
		Example: `  hocket check examples/mlp.hkt
  hocket check examples/mlp.hkt --dim T=4096 --json
  hocket check examples/mlp.hkt --strategy auto --machine h200x4
  hocket check examples/row_parallel_chunked.hkt --redundant
  hocket check examples/schedules/exchange.json --launches 1`,
		Args: onePROGRAM,
	}
	flags := a.addBindFlags(c)
	o := &checkFlags{}
	f := c.Flags()
	addStrategy(c, &o.strategy)
	addPredicted(c, &o.machine, "auto predicts, and the cost of lost overlap is shown,")
	f.BoolVar(&o.redundant, "redundant", false, "list waits and barriers that can be removed")
	f.BoolVar(&o.fix, "fix", false, "repair the program: print it with the missing waits and barriers")
	f.StringVarP(&o.out, "output", "o", "", "write the repaired program to `FILE` instead")
	f.StringVar(&o.certificate, "certificate", "", "write a certificate of the proof, for run --certificate, to `FILE`")
	f.IntVar(&o.launches, "launches", 2,
		"launches of a collective schedule to prove: 2 for any number after each other, 1 for only one")
	c.RunE = func(c *cobra.Command, args []string) error {
		schedule, err := a.isSchedule(c.Context(), args[0])
		if err != nil {
			return err
		}
		if schedule {
			return a.checkSchedule(c, args[0], o)
		}
		if err := notFlags(c, args[0], "a program: only collective schedules have launches", "launches"); err != nil {
			return err
		}
		b, err := flags.binding(c)
		if err != nil {
			return err
		}
		if !c.Flags().Changed("machine") && o.strategy != "auto" {
			o.machine = ""
		}
		if err := o.check(); err != nil {
			return err
		}
		p, err := a.parseProgram(c.Context(), args[0], &b)
		if err != nil {
			a.refuted(err)
			return err
		}
		return a.check(p, b, o)
	}
	return c
}

func (o *checkFlags) check() error {
	switch {
	case o.out != "" && !o.fix:
		return usagef("-o is the output of --fix, but --fix is not given")
	case o.fix && o.redundant:
		return usagef("--redundant needs the unchanged program: run --fix first, then --redundant on its output")
	case o.certificate != "" && o.fix:
		return usagef("--certificate needs the unchanged program: remove --fix")
	case o.fix && o.strategy != "" && o.strategy != "sequential":
		return usagef("--fix repairs the program before lowering: remove --strategy")
	}
	if o.machine != "" {
		if err := checkPredicted(o.machine); err != nil {
			return err
		}
	}
	return checkStrategy(o.strategy)
}

// refuted adds to the JSON output that the program is refuted, if err is a refutation. The error about a program that
// is too large to unroll is none.
func (a *session) refuted(err error) {
	var ds hocket.Diagnostics
	limit := func(d *ir.Diagnostic) bool { return d.Kind == "limit" || ofInput(d) }
	if errors.As(err, &ds) && !slices.ContainsFunc(ds, limit) {
		a.out.Proof = &proof{Verdict: hocket.Refuted.String(), Kind: "structural"}
		if slices.ContainsFunc(ds, func(d *ir.Diagnostic) bool { return slices.Contains(ofPlans, d.Kind) }) {
			a.out.Proof.Kind = "plan"
		}
	}
}

// ofPlans lists the kinds of diagnostics that only the analysis of a plan can find.
var ofPlans = []string{"race", "reuse", "unwritten", "clobbered", "bounds", "issue"}

func (a *app) check(p *hocket.Program, b hocket.Binding, o *checkFlags) error {
	sig, err := bind(p, b)
	if err != nil {
		if classified(err) == exitProgram {
			a.refuted(err)
		}
		return err
	}
	a.out.note(sig)
	a.progress.At("planning and proving", 0, 2*a.limits.Time)
	v, err := hocket.Check(p, b, hocket.CheckOptions{Redundant: o.redundant, Strategy: o.strategy, Machine: o.machine,
		Certificate: o.certificate != ""})
	if err != nil {
		return ofHocket(err)
	}
	a.progress.End()
	if o.certificate != "" && v.Kind == hocket.Proved && v.Certificate == nil {
		return ofHocket(fmt.Errorf("no certificate was written: the program was proved without a plan"))
	}
	if v.Certificate != nil {
		if err := writeText(o.certificate, string(v.Certificate)+"\n"); err != nil {
			return err
		}
	}
	a.out.Proof = &proof{Verdict: v.Kind.String(), Kind: string(v.Proof)}
	if o.fix {
		return a.fix(p, b, v, o)
	}
	return a.conclude(v)
}

// conclude prints a verdict. conclude returns a failure unless the program is proved.
func (a *session) conclude(v hocket.Verdict) error {
	if v.Kind == hocket.Refuted {
		return ofDiagnostics(v.Diagnostics)
	}
	a.warnings = slices.Concat(a.ofPlan, v.Diagnostics)
	fmt.Fprintln(a.text, v)
	if v.Kind == hocket.Proved {
		return nil
	}
	if !a.json {
		a.showDiagnostics(a.warnings)
	}
	return &failure{code: exitUndecided, kind: "proof", severity: ir.Warning, said: true,
		err: fmt.Errorf("not proved: %s", v.Reason)}
}

// fix repairs a refuted program and proves the repaired program.
func (a *app) fix(p *hocket.Program, b hocket.Binding, v hocket.Verdict, o *checkFlags) error {
	text := p.String()
	if v.Kind == hocket.Refuted {
		fixed, err := hocket.Fix(p, b)
		if err != nil {
			return ofHocket(err)
		}
		if fixed == nil {
			return ofDiagnostics(append(v.Diagnostics, &ir.Diagnostic{Severity: ir.Warning, Kind: "fixed",
				Message: "--fix found no repair: no added wait or barrier and no other order of statements leads to a proof"}))
		}
		text, v = fixed.Program.String(), fixed.Verdict
		v.Diagnostics = append(v.Diagnostics, p.Warnings()...)
		for _, e := range fixed.Edits {
			v.Diagnostics = append(v.Diagnostics,
				&ir.Diagnostic{Severity: ir.Warning, Kind: "fixed", Message: "repaired: " + e})
		}
		a.out.Proof = &proof{Verdict: v.Kind.String(), Kind: string(v.Proof)}
	}
	switch {
	case o.out != "":
		if err := writeText(o.out, text); err != nil {
			return err
		}
	case !a.json:
		fmt.Fprint(a.text, text)
		a.text = a.stderr // the verdict must not be written into the program's text
	default:
		a.out.Stages = append(a.out.Stages, stage{Pass: "fix", Changed: text != p.String(), Text: text})
	}
	return a.conclude(v)
}

func classified(err error) int {
	if f := (*failure)(nil); errors.As(err, &f) {
		return f.code
	}
	return exitUsage
}
