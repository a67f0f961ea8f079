package main

import (
	"cmp"
	"io"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
)

func (a *app) planCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "plan PROGRAM [flags]",
		Short: "Print the commands that every rank executes, in order, with their memory",
		Long: `Lowers and plans a program, without running it, and prints the plan: the streams of
every rank, the memory that each buffer has and while which commands it is used, the
channels of collectives, and the commands in the order in which they are issued, each
with its line of the text.`,
		SuggestFor: []string{"schedule", "dump"},
		Example: `  hocket plan examples/mlp.hkt
  hocket plan examples/mlp.hkt --strategy exchange -o plan.txt
  hocket plan examples/mlp.hkt --strategy chunked --svg plan.svg`,
		Args: onePROGRAM,
	}
	flags := a.addBindFlags(c)
	var strategy, machine, out string
	var pages pageFlags
	addStrategy(c, &strategy)
	addPredicted(c, &machine, "auto predicts")
	c.Flags().StringVarP(&out, "output", "o", "", "write the plan to `FILE`")
	pages.add(c, "", "draw its memory to `FILE`")
	c.RunE = func(c *cobra.Command, args []string) error {
		b, err := flags.binding(c)
		if err != nil {
			return err
		}
		if err := cmp.Or(checkPredicted(machine), checkStrategy(strategy)); err != nil {
			return err
		}
		p, err := a.boundProgram(c.Context(), args[0], &b)
		if err != nil {
			return err
		}
		a.progress.At("planning", 0, a.limits.Time)
		m, err := p.PlanMemory(hocket.LowerOptions{Strategy: strategy, Machine: machine, Binding: b})
		if err != nil {
			return ofHocket(err)
		}
		a.progress.End()
		if err := writeOutput(pages.svg, m.WriteSVG); err != nil {
			return err
		}
		a.out.Plan = m.String()
		if out != "" {
			return writeText(out, m.String())
		}
		_, err = io.WriteString(a.text, m.String())
		return err
	}
	return c
}
