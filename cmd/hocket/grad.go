package main

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/grad"
	"hocket.example/hocket/internal/tensor"
)

type gradFlags struct {
	fn, keep, out, budget string
	of, wrt, dims         []string
}

func (a *app) gradCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "grad PROGRAM [flags]",
		SuggestFor: []string{"differentiate", "backward", "gradient", "derivative", "autograd"},
		Short:      "Print a program that also computes gradients",
		Long: `Differentiates a program of values in reverse mode, and prints a program that computes
its results and the gradients of its parameters. The printed program can be edited, proved
and lowered like any other. It has an additional parameter %dy for each result %y that is not
a scalar. Its results are those of the function, followed by %dx for each parameter %x.`,
		Example: `  hocket grad examples/mlp.hkt
  hocket grad examples/mlp.hkt --wrt w1,w2 -o mlp_grad.hkt
  hocket grad examples/model_32.hkt --keep inputs
  hocket grad examples/llama_layer.hkt --keep auto --budget 8KiB --dim T=64`,
		Args: onePROGRAM,
	}
	o := &gradFlags{}
	f := c.Flags()
	f.StringVar(&o.fn, "func", "", "differentiate this `FUNCTION` (default: the program's last)")
	f.StringSliceVar(&o.of, "of", nil, "differentiate these `RESULTS` (default: all of floating-point numbers)")
	f.StringSliceVar(&o.wrt, "wrt", nil, "with respect to these `PARAMETERS` (default: all of floating-point numbers)")
	f.StringVar(&o.keep, "keep", "all", "which values of the forward pass are kept for the gradients: `WHAT` is one of "+strings.Join(grad.Keeps(), ", "))
	f.StringVar(&o.budget, "budget", "", "with --keep auto, the largest number of `BYTES` kept on each rank, such as 2GiB")
	f.StringArrayVar(&o.dims, "dim", nil, "with --budget, the value of a dim, such as `T=4096`; repeatable")
	f.StringVarP(&o.out, "output", "o", "", "write the program to `FILE`")
	f.BoolVar(&a.json, "json", a.json, "print one JSON object")
	_ = c.RegisterFlagCompletionFunc("keep", cobra.FixedCompletions(grad.Keeps(), cobra.ShellCompDirectiveNoFileComp))
	c.RunE = func(c *cobra.Command, args []string) error {
		if !slices.Contains(grad.Keeps(), o.keep) {
			return usagef("--keep: unknown value %q", o.keep).helping("one of: %s", strings.Join(grad.Keeps(), ", "))
		}
		var most int64
		if o.budget != "" {
			if o.keep != string(grad.KeepAuto) {
				return usagef("--budget requires --keep auto, but --keep is %s", o.keep)
			}
			var err error
			if most, err = tensor.ParseSize(o.budget); err != nil {
				return usagef("--budget: %v", err)
			}
			if most < 1 {
				return usagef("--budget must be a positive number of bytes")
			}
		}
		if most == 0 && len(o.dims) > 0 {
			return usagef("--dim requires --budget: without it, gradients are valid for all dims")
		}
		binding, err := (&bindFlags{dims: o.dims, limits: &a.limits}).binding(c)
		if err != nil {
			return err
		}
		p, err := a.parseProgram(c.Context(), args[0], &hocket.Binding{})
		if err != nil {
			return err
		}
		// A program that is invalid for the dims in its text is refused before it is differentiated, so that errors
		// have the lines of the program and not those of the printed gradient program.
		if b := (hocket.Binding{Func: o.fn, Dims: binding.Dims}); funcOf(p, b) != nil && len(openDims(p, b)) == 0 {
			if _, err := bind(p, b); err != nil {
				return err
			}
		}
		q, err := p.Gradient(hocket.GradientOptions{Func: o.fn, Of: o.of, Wrt: o.wrt, Keep: o.keep,
			Budget: most, Dims: binding.Dims})
		var unknown *hocket.GradientNameError
		switch {
		case errors.As(err, &unknown) && unknown.Help != "":
			return usagef("%w", err).helping("%s", unknown.Help)
		case errors.As(err, &unknown):
			return usagef("%w", err)
		case errors.Is(err, hocket.ErrBudget):
			return &failure{code: exitProgram, kind: "memory", err: err, help: "allow more bytes, or use --keep inputs"}
		case err != nil:
			return ofHocket(err)
		}
		a.out.Stages = append(a.out.Stages, stage{Pass: "grad", Changed: true, Text: q.String()})
		if o.out != "" {
			return writeText(o.out, q.String())
		}
		_, err = io.WriteString(a.text, q.String())
		return err
	}
	return c
}
