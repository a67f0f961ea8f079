package main

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/ir"
)

// bindFlags holds the flags that select the function, ranks and dims of a program.
type bindFlags struct {
	ranks         int
	fn            string
	dims, defines []string
	limits        *hocket.Limits
}

// addBindFlags adds the flags of all commands that have a PROGRAM argument.
func (a *programs) addBindFlags(c *cobra.Command) *bindFlags {
	b := &bindFlags{limits: &a.limits}
	f := c.Flags()
	f.IntVarP(&b.ranks, "ranks", "n", 0, "number of `RANKS` (default: the mesh's size; 1 for a .pt2)")
	f.StringVar(&b.fn, "func", "", "the function `F` (default: the last)")
	f.StringArrayVar(&b.dims, "dim", nil, "value of a dim, such as `T=4096`; repeatable")
	f.StringArrayVar(&b.defines, "define", nil, "a dim as an expression, such as `C=ceildiv(T,16)`; repeatable")
	f.Int64Var(&a.limits.Commands, "max-commands", mostCommands,
		"refuse programs with more than `N` commands on all ranks together; 0: no limit")
	f.DurationVar(&a.limits.Time, "max-time", mostTime,
		"stop if planning or proving takes longer than this time; 0: no limit: `10s`")
	f.StringArrayVar(&a.plan.files, "plan", nil,
		"read the layouts of an exported model's parameters from a tensor-parallel plan in `FILE`.json")
	f.StringArrayVar(&a.plan.shards, "shard", nil,
		"the layout of one parameter, such as `layers.*.mlp.up_proj=colwise`; repeatable")
	f.StringVar(&a.plan.quantize, "quantize", "", "quantize an exported model: `fp8-tensor|fp8-row|fp8-block`")
	f.BoolVar(&a.json, "json", a.json, "print one JSON object")
	rare(c, "func", "define", "shard", "quantize", "max-commands", "max-time")
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"hkt", "pt2"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return b
}

// These are the default limits of programs. Planning a program within these limits takes less than 1 GiB of host memory
// and a few seconds.
const (
	mostCommands = 1 << 17
	mostTime     = 10 * time.Second
)

// set reports whether the command line has any flag that binds the program.
func (b *bindFlags) set(c *cobra.Command) bool {
	return slices.ContainsFunc([]string{"ranks", "func", "dim", "define"}, c.Flags().Changed)
}

// binding converts the flags to a binding.
func (b *bindFlags) binding(c *cobra.Command) (hocket.Binding, error) {
	out := hocket.Binding{Func: b.fn, Ranks: b.ranks, Dims: map[string]int64{}, Defines: map[string]string{}}
	if a := b.limits; a.Commands < 0 || a.Time < 0 {
		return out, usagef("--max-commands and --max-time cannot be negative")
	}
	if c.Flags().Changed("ranks") && b.ranks < 1 {
		return out, usagef("-n is %d, but must be at least 1", b.ranks)
	}
	for _, s := range b.dims {
		name, value, err := assignment("--dim", s)
		if err != nil {
			return out, err
		}
		v, perr := strconv.ParseInt(value, 10, 64)
		if errors.Is(perr, strconv.ErrRange) {
			return out, usagef("--dim %s: the value does not fit 64 bits", s)
		}
		if perr != nil {
			return out, usagef("--dim %s: %q is not an integer", s, value).helping("use --define for an expression")
		}
		if _, twice := out.Dims[name]; twice {
			return out, usagef("--dim %s is given twice", name)
		}
		out.Dims[name] = v
	}
	for _, s := range b.defines {
		name, value, err := assignment("--define", s)
		if err != nil {
			return out, err
		}
		if _, twice := out.Defines[name]; twice {
			return out, usagef("--define %s is given twice", name)
		}
		out.Defines[name] = value
	}
	return out, nil
}

func assignment(flag, s string) (name, value string, err error) {
	name, value, ok := strings.Cut(s, "=")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return "", "", usagef("%s %q: want NAME=VALUE", flag, s)
	}
	return name, strings.TrimSpace(value), nil
}

// bind binds the program. If binding fails, bind attributes the error either to the program or to the command line. The
// command line is at fault if it alone sets the values of dims.
func bind(p *hocket.Program, b hocket.Binding) (*hocket.Signature, error) {
	sig, err := p.Bind(b)
	if err == nil {
		return sig, nil
	}
	var ds hocket.Diagnostics
	if !errors.As(err, &ds) {
		return nil, &failure{code: exitUsage, kind: "bind", err: err} // sizes past 64 bits
	}
	f := ofDiagnostics(ds)
	if given(b) && (nowhere(ds) || bindsByItself(p) || len(openDims(p, hocket.Binding{Func: b.Func})) > 0) ||
		len(openDims(p, b)) > 0 {
		f.code = exitUsage
	}
	return nil, f
}

func given(b hocket.Binding) bool {
	return b.Func != "" || b.Ranks != 0 || len(b.Dims)+len(b.Defines) > 0
}

// nowhere reports whether no diagnostic has a position in the text.
func nowhere(ds hocket.Diagnostics) bool {
	return !slices.ContainsFunc(ds, func(d *ir.Diagnostic) bool { return d.Pos.Valid() })
}

func bindsByItself(p *hocket.Program) bool {
	_, err := p.Bind(hocket.Binding{})
	return err == nil
}

// openDims lists the dims without a value in the function that b selects and in the functions that it calls.
func openDims(p *hocket.Program, b hocket.Binding) []string {
	known := map[string]bool{}
	for _, d := range p.IR().Dims {
		known[d.Name] = d.HasValue
	}
	for name := range b.Dims {
		known[name] = true
	}
	for name := range b.Defines {
		known[name] = true
	}
	fn := funcOf(p, b)
	if fn == nil {
		return nil
	}
	return p.IR().OpenDims(fn, known)
}

// funcOf returns the function that b selects, or nil if the program has no function of that name.
func funcOf(p *hocket.Program, b hocket.Binding) *ir.Func { return p.IR().Entry(b.Func) }

// note adds the binding to the JSON output.
func (r *result) note(sig *hocket.Signature) {
	r.Func, r.Ranks, r.Dims = sig.Func, sig.Ranks, sig.Dims
}
