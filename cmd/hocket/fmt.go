package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

type fmtFlags struct{ write, list bool }

func (a *app) fmtCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "fmt [-w|-l] FILE...",
		SuggestFor: []string{"format"},
		Short:      "Format programs",
		Long:       `Prints programs in their canonical form. Comments stay where they are.`,
		Example: `  hocket fmt examples/mlp.hkt
  hocket fmt -l examples/*.hkt
  hocket fmt - < examples/mlp.hkt`,
	}
	o := &fmtFlags{}
	c.Flags().BoolVarP(&o.write, "write", "w", false, "write the result back to the file")
	c.Flags().BoolVarP(&o.list, "list", "l", false, "list the files whose format differs")
	c.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usagef("files are required, or - for standard input").helping("see hocket fmt --help")
		case o.write && o.list:
			return usagef("-w and -l exclude each other")
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		var failed error
		for _, arg := range args {
			if err := a.format(c.Context(), arg, o); err != nil {
				failed = worst(failed, err)
			}
		}
		return failed
	}
	return c
}

// worst combines the errors of several files: it joins all diagnostics, and otherwise returns the first error.
func worst(a, b error) error {
	var x, y hocket.Diagnostics
	switch {
	case a == nil:
		return b
	case errors.As(a, &x) && errors.As(b, &y):
		return append(x, y...)
	case errors.As(a, &x):
		return b
	}
	return a
}

// format formats one file. The file is written only if the formatted text differs from the old text.
func (a *app) format(ctx context.Context, arg string, o *fmtFlags) error {
	if arg == "-" && o.write {
		return usagef("-w cannot write back to standard input")
	}
	name, src, err := a.readProgram(ctx, arg)
	if err != nil {
		return err
	}
	text, ds := ir.Format(name, src)
	switch {
	case ds.HasErrors():
		return ds
	case o.list && text != src:
		fmt.Fprintln(a.text, name)
	case o.write && text != src:
		return writeText(arg, text)
	case !o.write && !o.list:
		_, err = io.WriteString(a.text, text)
	}
	return err
}
