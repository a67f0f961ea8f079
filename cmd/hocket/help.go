package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpColumns is the width of help texts in columns.
const helpColumns = 96

// rareFlags is the annotation of flags that only help --all shows.
const rareFlags = "rare"

// rare marks flags of a command that few users need.
func rare(c *cobra.Command, names ...string) {
	for _, name := range names {
		_ = c.Flags().SetAnnotation(name, rareFlags, nil) // fails only for an unknown flag, which the tests of help detect
	}
}

// writeHelp writes the help of a command: a description, an example, its flags and, if all is set, its rare flags.
func writeHelp(w io.Writer, c *cobra.Command, all bool) {
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n", text, c.UseLine())
	if c.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	if subs := available(c); len(subs) > 0 {
		fmt.Fprintf(w, "\nCommands:\n")
		for _, s := range subs {
			fmt.Fprintf(w, "  %-11s %s\n", s.Name(), s.Short)
		}
	}
	shown, more := pflag.NewFlagSet("", pflag.ContinueOnError), 0
	shown.SortFlags = false
	c.Flags().VisitAll(func(f *pflag.Flag) {
		_, few := f.Annotations[rareFlags]
		switch {
		case f.Hidden || f.Name == "help":
		case few && !all:
			more++
		default:
			shown.AddFlag(f)
		}
	})
	if shown.HasFlags() {
		fmt.Fprintf(w, "\nFlags:\n%s", shown.FlagUsagesWrapped(helpColumns))
	}
	switch {
	case more > 0:
		fmt.Fprintf(w, "  %d more flags: hocket help %s --all\n", more, c.Name())
	case !c.HasParent():
		fmt.Fprint(w, "\nRun hocket COMMAND --help for help on a command.\n")
	}
}

func available(c *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() || s.Name() == "completion" {
			list = append(list, s)
		}
	}
	return list
}

// helpCommand returns a help command like cobra's, but for which an unknown command is an error.
func (a *app) helpCommand(root *cobra.Command) *cobra.Command {
	all := false
	c := &cobra.Command{
		Use:                   "help [COMMAND] [--all]",
		Short:                 "Show what a command does and which flags it has",
		Example:               "  hocket help run --all",
		DisableFlagsInUseLine: true,
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			switch {
			case len(args) == 1 && args[0] == "inputs":
				_, err := io.WriteString(a.stdout, inputsHelp)
				return err
			case len(args) == 1 && args[0] == "algorithms":
				return writeAlgorithms(a.stdout)
			case err != nil:
				return a.noSuchCommand(root, args)
			case len(rest) > 0:
				return a.noSuchCommand(root, rest)
			}
			writeHelp(a.stdout, c, all)
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also show the flags that are rarely needed")
	return c
}

const inputsHelp = `--in gives the values of a program's parameters. An input is one of

  NAME=ints:SEED           random integers from {-1, 0, 1}
  NAME=rand:SEED           random reals in [-1, 1)
  NAME=zeros NAME=arange   zeros; 0, 1, 2, …
  NAME=FILE.npy            the array in a file that numpy wrote
  NAME=FILE.safetensors#TENSOR
  FILE.safetensors         every tensor in it, by name
  DIR                      a checkpoint's tensors that have the name of a parameter
  rand:SEED, zeros, …      all parameters that no other --in names

Parameters that no --in names are ints:SEED, with the SEED of --seed. If the
program uses a parameter as ids, indices, positions, lengths or counts, ints
and rand draw integers that it accepts: positions of index_copy ascend by one.

  hocket run examples/mlp.hkt --in x=rand:7 --in zeros
`

// startHelp is the text that hocket prints if it is called without arguments.
const startHelp = `hocket compiles and runs multi-GPU host programs. Nothing but a CPU is needed to try it.
In a clone of its repository, these take some seconds each:

  hocket run examples/mlp.hkt --compare         run a layer on 4 ranks, compare the result
  hocket opt examples/mlp.hkt --explain --machine h200x4 --dim T=8192 --dim H=8192 --dim F=28672
                                                what hiding its communication gains on 4 H200
  hocket opt examples/mlp.hkt --html mlp.html   the layer after each pass of the compiler, as a page
  hocket check examples/mlp.hkt                 prove that no wait is missing
  hocket plan examples/mlp.hkt -n 4             every command of every rank, with its memory

hocket --help lists the commands; docs/tutorial.md goes on from here.
`
