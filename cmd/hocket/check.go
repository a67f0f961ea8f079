package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

func (a *app) checkCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "check PROGRAM [flags]",
		Short: "Say whether a program is right, without running it",
		Long: `Checks structure, types, layouts, scopes and aliases; binds dims and ranks; and,
where the program is small enough to unroll, that collectives and transfers
match on all ranks and nothing deadlocks. This build cannot prove the absence of
data races, so a program in which nothing wrong is found exits with 5.`,
		Example: `  hocket check examples/mlp.hkt
  hocket check examples/mlp.hkt -n 8 --dim T=4096 --json`,
		Args: onePROGRAM,
	}
	flags := a.addBindFlags(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		b, err := flags.binding(c)
		if err != nil {
			return err
		}
		p, err := a.parseProgram(c.Context(), args[0], &b)
		if err != nil {
			a.refuted(err)
			return err
		}
		return a.check(p, b)
	}
	return c
}

// refuted notes for JSON that err refutes the program, where it does.
func (a *app) refuted(err error) {
	var ds hocket.Diagnostics
	if errors.As(err, &ds) {
		a.out.Proof = &proof{Verdict: hocket.Refuted.String(), Kind: "structural"}
	}
}

func (a *app) check(p *hocket.Program, b hocket.Binding) error {
	sig, err := bind(p, b)
	if err != nil {
		if classified(err) == exitProgram {
			a.refuted(err)
		}
		return err
	}
	a.out.note(sig)
	v, err := hocket.Check(p, b)
	if err != nil {
		return ofHocket(err)
	}
	a.out.Proof = &proof{Verdict: v.Kind.String(), Kind: "structural"}
	if v.Kind == hocket.Refuted {
		return ofDiagnostics(v.Diagnostics)
	}
	fmt.Fprintf(a.text, "not proved: %s\n", v.Reason)
	return &failure{code: exitUndecided, kind: "proof", severity: ir.Warning, said: true, err: fmt.Errorf("not proved: %s", v.Reason)}
}

func classified(err error) int {
	var f *failure
	if errors.As(err, &f) {
		return f.code
	}
	return exitUsage
}
