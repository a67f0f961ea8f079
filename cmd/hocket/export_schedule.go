package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/schedule"
	"hocket.example/hocket/internal/schedule/ours"
)

// planned lists the collectives for which the export command writes execution plans.
const planned = "all_reduce, reduce_scatter, all_gather and all_to_all"

func (a *app) exportCommand() *cobra.Command {
	var to, algorithm, out string
	ranks := 2
	c := &cobra.Command{
		Use:   "export COLLECTIVE --to mscclpp [flags]",
		Short: "Write a collective as hocket runs it as an execution plan of MSCCL++",
		Long: `Writes the copies, sums, signals and waits of all_reduce, all_gather, reduce_scatter or
all_to_all, by one of the algorithms that every machine has, as an execution plan that
MSCCL++'s loader reads and hocket check proves: one thread block a rank, out of place.`,
		Example: `  hocket export all_reduce --to mscclpp -n 2
  hocket export all_reduce --to mscclpp -n 4 -o plan.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("one collective is required: %s", planned).helping("see hocket export --help")
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&to, "to", "", "the `FORMAT`: mscclpp")
	f.IntVarP(&ranks, "ranks", "n", 2, "number of `RANKS`")
	f.StringVar(&algorithm, "algorithm", "", "the `ALGORITHM` (default: the first one that an execution plan can express)")
	f.StringVarP(&out, "output", "o", "", "write to `FILE` instead")
	f.BoolVar(&a.json, "json", a.json, "print one JSON object")
	c.RunE = func(_ *cobra.Command, args []string) error {
		op, ok := contest.OpNamed(args[0])
		if !ok {
			return usagef("unknown collective %q; export writes plans of %s", args[0], planned)
		}
		if to == "" {
			return usagef("--to is missing: it names the format, mscclpp")
		}
		if to != "mscclpp" {
			return usagef("--to: unknown format %q; the only format is mscclpp", to)
		}
		plan, err := ours.Plan(op, ranks, algorithm)
		if err != nil {
			return usagef("%w", err)
		}
		p, err := plan.Plan()
		if err != nil {
			return ofHocket(err)
		}
		if r := schedule.Check(p, schedule.Options{Launches: 2}); r.Verdict != schedule.OK {
			return ofHocket(fmt.Errorf("the plan is %s: %s", r.Verdict, r.Findings[0].Message))
		}
		text, err := plan.Encode()
		if err != nil {
			return ofHocket(err)
		}
		a.out.Ranks = ranks
		a.out.Stages = append(a.out.Stages, stage{Pass: "export", Changed: true, Text: string(text)})
		if out != "" {
			return writeText(out, string(text))
		}
		_, err = a.text.Write(text)
		return err
	}
	return c
}
