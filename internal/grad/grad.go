// Package grad differentiates programs in reverse mode. It reads a checked program of values and writes a program that
// computes the results and their gradients. The result is text that can be read and edited.
//
// A value of the language is global, so the rule of an operation is its mathematical derivative, for all layouts.
// Layouts determine the placement of gradients: the gradient of a value has the value's layout, without partial
// reductions. Therefore the gradient of a gathered operand is a partial sum, for which the checker inserts a
// reduce_scatter, and the gradient of a partial sum is whole on every rank.
//
// The rule of an elementwise operation is in its row of the Op table (ir.OpInfo.Gradients). The rules of other
// operations are functions, which rules.go lists.
package grad

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// Options select the function, results and parameters for differentiation.
type Options struct {
	// Func is the name of the function. If Func is empty, the last function of the program is differentiated.
	Func string
	// Of lists the results that are differentiated, and Wrt lists the parameters with respect to which they are
	// differentiated. By default, Of and Wrt are all results and parameters with floating-point types.
	Of, Wrt []string
	// Keep selects the values of the forward pass that are kept. The default is KeepAll.
	Keep Keep
	// Budget limits the number of bytes of the forward pass that a rank keeps with KeepAuto, for the values of dims in
	// Dims and in the program. The value 0 sets no limit.
	Budget int64
	Dims   map[string]int64
	// again holds the values that are computed again because of a budget.
	again map[string]bool
	// split reports that the gradient is computed by two programs. If the gradient is split, the gradient of a scalar
	// result is also a parameter, and partial values cannot be passed from one program to the other.
	split bool
}

// Keep selects the values of the forward pass that are kept for the backward pass.
type Keep string

// The values of Keep.
const (
	KeepAll    Keep = "all"    // all values that the rules read, except those that cost nothing to compute again
	KeepInputs Keep = "inputs" // parameters and values that loops carry; all other values are computed again
	KeepAuto   Keep = "auto"   // results of GEMMs, attention and reductions over ranks; cheaper values are computed again
)

// Keeps lists the values of Keep.
func Keeps() []string { return []string{string(KeepAll), string(KeepInputs), string(KeepAuto)} }

// NameError reports a name in Options that the function does not have or whose type is not a floating-point type.
type NameError struct{ Message, Help string }

func (e *NameError) Error() string { return e.Message }

// Of returns the text of a program with one function, called NAME_grad, that computes the results of the chosen
// function and the gradients. For each differentiated result %y that is not a scalar, the new function has an
// additional parameter %dy. The results of the program are the results of the chosen function, and then %dx for each
// parameter %x. The error is a *NameError, or ir.Diagnostics whose positions refer to the program.
func Of(in *ir.Info, opts Options) (string, error) {
	g, err := made(in, opts)
	if err != nil {
		return "", err
	}
	return g.prog.String(), nil
}

// made returns the result of derive or, if there is a budget, of within.
func made(in *ir.Info, opts Options) (*gradder, error) {
	if in.Prog.Entry(opts.Func) == nil {
		return nil, &NameError{Message: "the program has no function " + opts.Func}
	}
	if opts.Budget > 0 {
		return within(in, opts)
	}
	return derive(in, opts)
}

// derive returns a gradder that has rewritten the function so that it also computes gradients.
func derive(in *ir.Info, opts Options) (*gradder, error) {
	if opts.Keep == "" {
		opts.Keep = KeepAll
	}
	fn := in.Prog.Entry(opts.Func)
	of, wrt, err := choose(fn, opts)
	if err != nil {
		return nil, err
	}
	prog := flatten(in, fn)
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		return nil, ds
	}
	g := newGradder(info, opts)
	if g.program(of, wrt); g.ds.HasErrors() {
		g.ds.Sort()
		return nil, g.ds
	}
	return g, nil
}

// choose returns the indices of the results that are differentiated, and the names of the parameters with respect to
// which they are differentiated.
func choose(fn *ir.Func, opts Options) (of []int, wrt map[string]bool, err error) {
	results := ir.OutputNames(fn)[:len(fn.Results)]
	var params []string
	wrt = map[string]bool{}
	for _, p := range fn.Params {
		params = append(params, p.Name)
		wrt[p.Name] = len(opts.Wrt) == 0 && hasGradient(p.Type.DType)
	}
	for _, name := range opts.Wrt {
		i := slices.Index(params, strings.TrimPrefix(name, "%"))
		switch {
		case i < 0:
			return nil, nil, unknown("parameter", name, fn.Name, params)
		case !hasGradient(fn.Params[i].Type.DType):
			return nil, nil, integers("parameter", name, fn.Params[i].Type)
		}
		wrt[params[i]] = true
	}
	for i, t := range fn.Results {
		if len(opts.Of) == 0 && hasGradient(t.DType) {
			of = append(of, i)
		}
	}
	for _, name := range opts.Of {
		i := slices.Index(results, strings.TrimPrefix(name, "%"))
		switch {
		case i < 0:
			return nil, nil, unknown("result", name, fn.Name, results)
		case !hasGradient(fn.Results[i].DType):
			return nil, nil, integers("result", name, fn.Results[i])
		case !slices.Contains(of, i):
			of = append(of, i)
		}
	}
	slices.Sort(of)
	if len(of) == 0 {
		return nil, nil, &NameError{Message: fn.Name + " has no result of floating-point numbers"}
	}
	return of, wrt, nil
}

// hasGradient reports whether values of the given type have gradients. The precision of 8-bit types is too low for
// gradients.
func hasGradient(dt ir.DType) bool { return !dt.IsInt() && !dt.IsFloat8() }

func unknown(what, name, fn string, names []string) error {
	return &NameError{Message: fmt.Sprintf("%s has no %s %s", fn, what, name),
		Help: "it has " + strings.Join(names, ", ")}
}

func integers(what, name string, t *ir.Type) error {
	return &NameError{Message: fmt.Sprintf("%s %s has type %s, but only floating-point types of 16 bits or more have gradients", what, name,
		t.DType)}
}

// gradder differentiates one function.
type gradder struct {
	info *ir.Info
	prog *ir.Program
	fn   *ir.Func
	keep Keep
	// recomputed holds the values of Options.again.
	recomputed map[string]bool
	ds         ir.Diagnostics
	// split has the meaning of Options.split. given and results are the numbers of the function's original parameters
	// and results. of lists the results that are differentiated. cut is the index of the statement at which the
	// computation of gradients begins.
	split               bool
	given, results, cut int
	of                  []int

	names map[string]bool
	// reserved holds the names that the caller expects for gradients.
	reserved map[string]bool
	// types maps each value to its type, and home maps each value to the block that defines it.
	types map[string]*ir.Type
	home  map[string]*forward
	// active holds the values, and the buffers whose contents, depend on the parameters with respect to which the program
	// is differentiated.
	active map[string]bool
	root   *forward
	top    *backward
	// constants maps the value and type of each scalar that rules use to its name.
	constants map[string]string
	// writers maps the name of a buffer to the statements that write it. order numbers the statements.
	writers map[string][]*ir.Stmt
	order   map[*ir.Stmt]int
	// read holds the values that some operation reads that is not elementwise.
	read map[string]bool
	// attentions maps each attention_lse that was added to its attention.
	attentions map[*ir.Stmt]*ir.Stmt
}

func newGradder(info *ir.Info, opts Options) *gradder {
	fn := info.Prog.Funcs[0]
	g := &gradder{
		info: info, prog: info.Prog, fn: fn, keep: opts.Keep, recomputed: opts.again,
		split: opts.split, given: len(fn.Params), results: len(fn.Results),
		names: map[string]bool{}, reserved: map[string]bool{}, types: map[string]*ir.Type{},
		home:   map[string]*forward{},
		active: map[string]bool{}, constants: map[string]string{}, read: map[string]bool{},
		attentions: map[*ir.Stmt]*ir.Stmt{},
	}
	fn.Body.Walk(func(s *ir.Stmt) {
		for _, a := range s.Args {
			g.read[a.Name] = g.read[a.Name] || !s.Op.Info().Elementwise
		}
	})
	g.root = newForward(nil, nil, g.fn.Body)
	for _, p := range g.fn.Params {
		g.names[p.Name], g.types[p.Name], g.home[p.Name] = true, p.Type, g.root
	}
	g.collect(g.root)
	g.findWriters()
	return g
}

// refuse reports the reason why a statement has no gradient.
func (g *gradder) refuse(pos ir.Pos, help, format string, args ...any) {
	d := g.prog.Diag("gradient", pos, format, args...)
	d.Help = help
	if !slices.ContainsFunc(g.ds, func(o *ir.Diagnostic) bool { return o.Pos == pos && o.Message == d.Message }) {
		g.ds = append(g.ds, d)
	}
}

// program rewrites the function so that it also computes gradients.
func (g *gradder) program(of []int, wrt map[string]bool) {
	for _, p := range g.fn.Params {
		if p.Inout {
			g.refuse(p.Pos, "replace the inout parameter by a parameter and a result",
				"%%%s is inout: its contents pass from one run to the next, and a gradient covers only one run", p.Name)
		}
		if wrt[p.Name] {
			g.reserve(p.Pos, "d"+p.Name, "the gradient of %"+p.Name)
			g.reserved["d"+p.Name] = true
			g.active[p.Name] = true
		}
	}
	ret := g.fn.Body.Stmts[len(g.fn.Body.Stmts)-1]
	if ret.Op != ir.OpReturn {
		g.refuse(g.fn.Pos, "", "%s returns nothing", g.fn.Name)
	}
	if g.activate(); len(g.ds) > 0 {
		return
	}
	g.top = &backward{g: g, fwd: g.root, avail: map[string]string{}, contributions: map[string][]contribution{},
		parts: map[string][]part{}}
	g.seeds(of, ret)
	if len(g.ds) > 0 {
		return
	}
	body := g.fn.Body.Stmts
	g.top.run(body[:len(body)-1])
	g.top.leftOver()
	params := slices.Clone(g.fn.Params)
	for _, p := range params {
		if wrt[p.Name] {
			g.result(p, ret)
		}
	}
	if len(g.ds) > 0 {
		return
	}
	g.root.close()
	body = g.fn.Body.Stmts
	body = body[:len(body)-1]
	g.cut = len(body)
	if len(g.top.stmts) > 0 {
		first := &g.top.stmts[0].Comments
		first.Lead, first.Blank = []ir.Comment{{Text: " Gradients."}}, true
	}
	g.fn.Body.Stmts = append(append(body, g.top.stmts...), ret)
	g.fn.Name += "_grad"
}

// reserve reserves a name that the caller expects.
func (g *gradder) reserve(pos ir.Pos, name, what string) {
	switch {
	case g.reserved[name]:
		g.refuse(pos, "return a copy of it, or leave it out of the results to differentiate (--of) or of the parameters (--wrt)",
			"%%%s is a parameter and a result, and both gradients would be %%%s", name[1:], name)
	case g.names[name]:
		g.refuse(pos, "rename it", "the name of %s would be %%%s, but the function already uses this name", what, name)
	}
	g.names[name] = true
}

// fresh returns a name that the function does not use: base, or base.N.
func (g *gradder) fresh(base string) string {
	name := base
	for i := 1; g.names[name]; i++ {
		name = fmt.Sprintf("%s.%d", base, i)
	}
	g.names[name] = true
	return name
}

// seeds sets the gradients of the differentiated results: a parameter for each or, for scalars, the constant 1.
func (g *gradder) seeds(of []int, ret *ir.Stmt) {
	names := ir.OutputNames(g.fn)
	g.of = of
	for _, i := range of {
		t := reduced(g.fn.Results[i])
		value := ret.Args[i].Name
		sym := g.info.Operands[ret][i]
		name := "d" + names[i]
		pos := g.fn.Pos
		if len(t.Dims) == 0 && !g.split {
			switch one := g.constant(1, t.DType); {
			case !g.isActive(sym):
			case sym.Kind != ir.SymValue:
				g.top.contribute(value, contribution{name: g.top.share(g.fn.Pos, one, g.fn.Results[i]), typ: sym.Type})
			default:
				g.top.contribute(value, contribution{name: one, typ: t})
			}
			continue
		}
		g.reserve(pos, name, "the gradient of result "+names[i])
		g.fn.Params = append(g.fn.Params, &ir.Param{Name: name, Type: t})
		switch {
		case !g.isActive(sym):
		case sym.Kind != ir.SymValue: // each rank returns its shard
			g.top.contribute(value, contribution{name: g.top.share(pos, name, g.fn.Results[i]), typ: sym.Type})
		default:
			g.top.contribute(value, contribution{name: name, typ: t})
		}
	}
}

// result adds the gradient of parameter p to the function's results.
func (g *gradder) result(p *ir.Param, ret *ir.Stmt) {
	want, name := reduced(p.Type), "d"+p.Name
	switch have := g.top.finish(p.Name, name); {
	case have == "":
		s := stmt(p.Pos, ir.OpFill, name, want, []ir.Attr{ir.NumberAttr("value", 0)})
		g.top.stmts = append(g.top.stmts, s)
	case have != name:
		g.top.stmts = append(g.top.stmts, stmt(p.Pos, ir.OpCopy, name, want, nil, have))
	}
	ret.Args = append(ret.Args, ir.Place{Name: name})
	g.fn.Results = append(g.fn.Results, want)
}

// constant returns the name of a scalar constant, which it defines in the function on first use.
func (g *gradder) constant(v float64, dt ir.DType) string {
	text := ir.Real(v).String()
	name := text
	if strings.ContainsAny(text, ".e-+") {
		name = "c"
	}
	return g.scalar(ir.NumberAttr("value", v), name, dt)
}

// scalar defines a scalar in the function by a fill statement. It returns the scalar's name, which is similar to name.
func (g *gradder) scalar(value ir.Attr, name string, dt ir.DType) string {
	text := ir.Real(value.Num).String()
	if !value.IsNum {
		text = value.Exprs[0].String()
	}
	key := text + " " + dt.String()
	if made, ok := g.constants[key]; ok {
		return made
	}
	made := g.fresh(name)
	g.constants[key] = made
	g.top.stmts = append(g.top.stmts, stmt(ir.Pos{}, ir.OpFill, made, &ir.Type{DType: dt}, []ir.Attr{value}))
	return made
}

// stmt returns "%name: t = op %args attrs".
func stmt(pos ir.Pos, op ir.Op, name string, t *ir.Type, attrs []ir.Attr, args ...string) *ir.Stmt {
	s := &ir.Stmt{Op: op, Pos: pos, Results: []ir.Name{{Pos: pos, Text: name}}, Type: t, Attrs: attrs}
	for _, a := range args {
		s.Args = append(s.Args, ir.Place{Pos: pos, Name: a})
	}
	return s
}

// reduced returns t without partial reductions.
func reduced(t *ir.Type) *ir.Type {
	u := t.Clone()
	u.Partial = nil
	return u
}
