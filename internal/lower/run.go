package lower

import (
	"fmt"
	"strings"
	"time"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// Options say how far to lower and who looks over the passes' shoulders.
type Options struct {
	// StopAfter names the last pass to run; empty for all.
	StopAfter string
	// Choose says how each pair of communication and GEMM is lowered; nil leaves
	// all sequential. An answer that does not apply to the pair means sequential.
	Choose func(*Pair) Strategy
	// CheckEach, where set, judges the program after each pass; its error ends
	// the run as a PassError.
	CheckEach func(*ir.Program) error
}

// Result is a lowered program and a record of how it was lowered.
type Result struct {
	// Program is what the last pass left, Info what checker.Check says of it.
	Program *ir.Program
	Info    *ir.Info
	// Stages has one record a pass, in the order they ran.
	Stages []Stage
	// Log lists every change of layout, and why it was made.
	Log []Entry
	// Choices lists the pairs that were found and how each was lowered.
	Choices []Choice
	// Alone lists the collectives that are no part of a pair, and why.
	Alone []ir.Note
}

// Stage records one pass.
type Stage struct {
	Pass string
	// Text is the program after the pass.
	Text     string
	Duration time.Duration
	// Changed says that the text differs from the one before the pass.
	Changed bool
	// Origins are the positions in the source from which the statements of Text come, in the order of the text; a
	// statement precedes its blocks.
	Origins []ir.Pos
}

// Entry is one line of the log of reshards.
type Entry struct {
	Pass string
	Func string
	// Pos is the statement of the source that asked for it.
	Pos ir.Pos
	// Value is the value that is resharded, From and To its types.
	Value    string
	From, To string
	// Result is the value that a reshard (of shard) makes.
	Result string
	// Why is the reason (shard) or the result (decompose).
	Why string
}

// String returns "func: %x: from -> to: why".
func (e Entry) String() string {
	return fmt.Sprintf("%s: %s: %%%s: %s -> %s: %s", e.Pass, e.Func, e.Value, e.From, e.To, e.Why)
}

// PassError says that a pass left a program that is not valid: a fault of the
// pass, never of the program it was given.
type PassError struct {
	Pass string
	Err  error
}

// Error names the pass and the fault.
func (e *PassError) Error() string {
	return fmt.Sprintf("pass %s left an invalid program: %v", e.Pass, e.Err)
}

// Unwrap returns the fault.
func (e *PassError) Unwrap() error { return e.Err }

// unit is the input of a pass: a copy of the program, to be changed in place, and the results of Check.
type unit struct {
	pass string
	prog *ir.Program
	info *ir.Info
	log  []Entry

	choose  func(*Pair) Strategy
	choices []Choice
	alone   []ir.Note
}

// Run lowers a copy of p. Its error is ir.Diagnostics where p itself is at
// fault and *PassError where a pass is.
func Run(p *ir.Program, opts Options) (*Result, error) {
	if tableErr != nil {
		return nil, tableErr
	}
	todo, err := until(opts.StopAfter)
	if err != nil {
		return nil, err
	}
	prog := p.Clone()
	info, ds := checker.Check(prog)
	if ds.HasErrors() {
		return nil, ds
	}
	res := &Result{Program: prog, Info: info}
	text := prog.String()
	for i := range todo {
		if text, err = res.apply(&todo[i], text, &opts); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// until returns the passes up to and including the named one.
func until(last string) ([]Pass, error) {
	if last == "" {
		return passes, nil
	}
	var names []string
	for i, p := range passes {
		if p.Name == last {
			return passes[:i+1], nil
		}
		names = append(names, p.Name)
	}
	return nil, fmt.Errorf("there is no pass %q; there are %s", last, strings.Join(names, ", "))
}

// apply runs one pass on the result so far, whose text is before, and returns
// the text after it.
func (r *Result) apply(p *Pass, before string, opts *Options) (string, error) {
	start := time.Now()
	u := &unit{pass: p.Name, prog: r.Program, info: r.Info, choose: opts.Choose}
	if err := p.run(u); err != nil {
		return "", err
	}
	info, ds := checker.Check(u.prog)
	if ds.HasErrors() {
		return "", &PassError{p.Name, fmt.Errorf("%w\n%s", ds, u.prog)}
	}
	r.Info, r.Log = info, append(r.Log, u.log...)
	r.Choices, r.Alone = append(r.Choices, u.choices...), append(r.Alone, u.alone...)
	st := Stage{Pass: p.Name, Text: u.prog.String(), Duration: time.Since(start), Origins: origins(u.prog)}
	st.Changed = st.Text != before
	r.Stages = append(r.Stages, st)
	if opts.CheckEach != nil {
		if err := opts.CheckEach(u.prog); err != nil {
			return "", &PassError{p.Name, err}
		}
	}
	return st.Text, nil
}

// origins returns the places of p's statements. Passes keep them and give those
// that they add the place of what asked for them.
func origins(p *ir.Program) []ir.Pos {
	var list []ir.Pos
	for _, f := range p.Funcs {
		f.Body.Walk(func(s *ir.Stmt) { list = append(list, s.Pos) })
	}
	return list
}

// note adds a line to the log, which is valid until the next is added.
func (u *unit) note(f *ir.Func, pos ir.Pos, value string, from, to *ir.Type, why string) *Entry {
	u.log = append(u.log, Entry{
		Pass: u.pass, Func: f.Name, Pos: pos, Value: value,
		From: from.String(), To: to.String(), Why: why,
	})
	return &u.log[len(u.log)-1]
}
