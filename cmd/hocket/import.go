package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/nvfuser"
	"hocket.example/hocket/internal/stablehlo"
	"hocket.example/hocket/ir"
)

func (a *app) importCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "import DUMP [flags]",
		SuggestFor: []string{"convert"},
		Short:      "Turn an exported model, StableHLO or an nvFuser dump into a program",
		Long: `Reads an archive that torch.export.save wrote (.pt2) and prints the model as a program in
hocket's own language: equal layers are one loop, parameters are named after modules, and
--plan says how they are laid out over ranks.

Reads the Host IR that nvFuser prints (NVFUSER_DUMP=host_ir), also within the log of a job, and
prints it as a program in hocket's own language; comments name the lines of the dump. Dims that
the command line gives become defaults of the program.

Reads StableHLO as jax.jit(f).lower(…).as_text() prints it; Shardy's annotations are layouts.

Reads collective schedules, execution plans of MSCCL++ (.json) and algorithms of MSCCL (.xml):
thread blocks are streams, channels are counters.

run, check and opt take archives and dumps as they are. Indices that a dump uses and does not
define are given with --define, in the dump's own notation.`,
		Example: `  hocket import model.pt2 --plan tp_plan.json -n 2
  hocket import examples/jax_mlp.mlir -n 2
  hocket import examples/schedules/exchange.json
  hocket import examples/host_ir.txt
  hocket import examples/host_ir.txt -o host_ir.hkt`,
		Args: oneDUMP,
	}
	flags := a.addBindFlags(c)
	out := c.Flags().StringP("output", "o", "", "write to `FILE` instead")
	c.RunE = func(c *cobra.Command, args []string) error {
		b, err := flags.binding(c)
		if err != nil {
			return err
		}
		text, err := a.importDump(c, args[0], b, flags.set(c))
		if err != nil {
			return err
		}
		a.out.Stages = append(a.out.Stages, stage{Pass: "import", Changed: true, Text: text})
		if *out != "" {
			return writeText(*out, text)
		}
		_, err = io.WriteString(a.text, text)
		return err
	}
	return c
}

// importDump converts a dump to the text of a program. The bindings of the command line must fit the program.
func (a *app) importDump(c *cobra.Command, arg string, b hocket.Binding, given bool) (string, error) {
	ctx := c.Context()
	if isExport(arg) {
		if err := onlyFlags(c, arg, "an exported model", "json", "output", "ranks", "plan", "shard",
			"quantize"); err != nil {
			return "", err
		}
		m, err := a.importExport(arg, b.Ranks)
		if err != nil {
			return "", err
		}
		return m.Text, m.Close()
	}
	if found, err := a.isSchedule(ctx, arg); err != nil || found {
		if err = cmp.Or(err, onlyFlags(c, arg, aSchedule, "json", "output")); err != nil {
			return "", err
		}
		return a.importSchedule(ctx, arg)
	}
	name, src, err := a.readProgram(ctx, arg)
	if err = cmp.Or(err, a.plan.unset(arg, src)); err != nil {
		return "", err
	}
	if stablehlo.Is(src) {
		if err := onlyFlags(c, arg, "StableHLO", "json", "output", "ranks"); err != nil {
			return "", err
		}
		m, err := a.importStableHLO(name, src, b.Ranks)
		if err != nil {
			return "", err
		}
		return m.Text, nil
	}
	switch {
	case nvfuser.IsDump(src):
	case strings.TrimSpace(src) == "":
		return "", inputf("%s is empty", name)
	case funcLine.MatchString(src):
		return "", inputf("%s is a program already", name).helping("run, check and opt take it as it is")
	default:
		return "", inputf("%s has no Host IR dump: no line begins with %%HostIrContainer {", name).helping(
			"import reads archives of torch.export (.pt2), StableHLO, collective schedules (.json, .xml) and logs with " +
				"a dump of nvFuser (docs/nvfuser.md says how to get one)")
	}
	if err := onlyFlags(c, arg, "a dump of nvFuser", "json", "output", "ranks", "func", "dim", "define"); err != nil {
		return "", err
	}
	p, rest, err := hocket.Import(name, src, b.Defines)
	if err != nil {
		return "", err
	}
	a.warnings, b.Defines = p.Warnings(), rest
	sig, err := bind(p, b)
	switch {
	case err == nil:
		a.out.note(sig)
		return withDefaults(p.IR(), b, sig.Dims).String(), nil
	case given && len(openDims(p, b)) == 0 || len(b.Defines) > 0:
		return "", err
	}
	return withDefaults(p.IR(), b, b.Dims).String(), nil
}

// withDefaults returns p with default values for the dims that b sets.
func withDefaults(p *ir.Program, b hocket.Binding, values map[string]int64) *ir.Program {
	out := *p
	out.Dims = slices.Clone(p.Dims)
	for _, name := range bindingNames(b) {
		d := &ir.Dim{Name: name, Default: values[name], HasValue: true}
		i := slices.IndexFunc(out.Dims, func(d *ir.Dim) bool { return d.Name == name })
		if i < 0 {
			out.Dims = append(out.Dims, d)
		} else {
			out.Dims[i] = d
		}
	}
	return &out
}

// bindingNames lists the names of the dims that b sets, in order.
func bindingNames(b hocket.Binding) []string {
	var names []string
	for name := range b.Dims {
		names = append(names, name)
	}
	for name := range b.Defines {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// oneDUMP returns an error for a command line that does not name exactly one dump.
func oneDUMP(c *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	return &failure{code: exitUsage, kind: "usage",
		err:  fmt.Errorf("one DUMP or archive is required (a file, or - for standard input); found %d", len(args)),
		help: "see hocket import --help"}
}
