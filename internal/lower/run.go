package lower

import (
	"fmt"
	"strings"
	"time"

	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// Options selects the passes that run, the strategies for pairs, and a check of each pass's result.
type Options struct {
	// StopAfter is the name of the last pass to run. If StopAfter is empty, all passes run.
	StopAfter string
	// Choose returns the strategy with which each pair of communication and GEMM is lowered. If Choose is nil, all
	// pairs are lowered sequentially. A pair is also lowered sequentially if the returned strategy does not apply to it.
	Choose func(*Pair) Strategy
	// Buckets delays and combines the reductions that are not lowered as pairs. If Buckets or Choose is nil, these
	// reductions are left unchanged.
	Buckets *Buckets
	// CheckEach, if not nil, checks the program after each pass. If CheckEach returns an error, Run returns it as a
	// PassError.
	CheckEach func(*ir.Program) error
}

// Result is a lowered program and a record of how it was lowered.
type Result struct {
	// Program is the program after the last pass. Info is the result of checker.Check for Program.
	Program *ir.Program
	Info    *ir.Info
	// Stages contains one record for each pass, in the order in which the passes ran.
	Stages []Stage
	// Log lists every change of layout and the reason for it.
	Log []Entry
	// Choices lists the pairs that were found and the strategy of each.
	Choices []Choice
	// Alone lists the collectives that are not part of a pair, each with the reason, and those that are delayed or
	// combined. Groups is the number of those that are delayed or combined.
	Alone  []ir.Note
	Groups int
}

// Stage records the result of one pass.
type Stage struct {
	Pass string
	// Text is the text of the program after the pass.
	Text     string
	Duration time.Duration
	// Changed reports whether the pass changed the text.
	Changed bool
	// Origins lists, for each statement of Text in text order, the position of the source statement from which it was
	// derived. A statement precedes the statements of its blocks.
	Origins []ir.Pos
}

// Entry is one line in the log of reshards.
type Entry struct {
	Pass string
	Func string
	// Pos is the position of the source statement that required the reshard.
	Pos ir.Pos
	// Value is the name of the value that is resharded; From and To are its types before and after.
	Value    string
	From, To string
	// Result is the name of the value that the reshard defines; only the pass shard sets it.
	Result string
	// Why is the reason for the reshard (pass shard) or the operations that replaced it (pass decompose).
	Why string
}

// String returns "func: %x: from -> to: why".
func (e Entry) String() string {
	return fmt.Sprintf("%s: %s: %%%s: %s -> %s: %s", e.Pass, e.Func, e.Value, e.From, e.To, e.Why)
}

// PassError reports that the result of a pass is not a valid program. The cause is a bug in the pass, not an error in
// the program that was lowered.
type PassError struct {
	Pass string
	Err  error
}

// Error returns the name of the pass and the text of the fault.
func (e *PassError) Error() string {
	return fmt.Sprintf("pass %s left an invalid program: %v", e.Pass, e.Err)
}

// Unwrap returns the fault.
func (e *PassError) Unwrap() error { return e.Err }

// unit is the input of a pass: a copy of the program, which the pass changes in place, and the results of Check.
type unit struct {
	pass string
	prog *ir.Program
	info *ir.Info
	log  []Entry

	choose  func(*Pair) Strategy
	buckets *Buckets
	choices []Choice
	alone   []ir.Note
	groups  int
}

// Run lowers a copy of p. The error is an ir.Diagnostics if p is not valid, and a *PassError if a pass made an invalid
// program.
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

// until returns the passes up to and including the pass whose name is last.
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
	return nil, fmt.Errorf("unknown pass %q; the passes are %s", last, strings.Join(names, ", "))
}

// apply runs one pass on the program in r. before is the text of the program before the pass; apply returns the text
// after it.
func (r *Result) apply(p *Pass, before string, opts *Options) (string, error) {
	start := time.Now()
	u := &unit{pass: p.Name, prog: r.Program, info: r.Info, choose: opts.Choose, buckets: opts.Buckets}
	if err := p.run(u); err != nil {
		return "", err
	}
	info, ds := checker.Check(u.prog)
	if ds.HasErrors() {
		return "", &PassError{p.Name, fmt.Errorf("%w\n%s", ds, u.prog)}
	}
	r.Info, r.Log = info, append(r.Log, u.log...)
	r.Choices, r.Alone = append(r.Choices, u.choices...), append(r.Alone, u.alone...)
	r.Groups += u.groups
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

// origins returns the positions of p's statements. A pass keeps the position of each statement, and gives a statement
// that it adds the position of the source statement that required it.
func origins(p *ir.Program) []ir.Pos {
	var list []ir.Pos
	for _, f := range p.Funcs {
		f.Body.Walk(func(s *ir.Stmt) { list = append(list, s.Pos) })
	}
	return list
}

// note appends a line to the log and returns a pointer to it, which is valid until the next line is appended.
func (u *unit) note(f *ir.Func, pos ir.Pos, value string, from, to *ir.Type, why string) *Entry {
	u.log = append(u.log, Entry{
		Pass: u.pass, Func: f.Name, Pos: pos, Value: value,
		From: from.String(), To: to.String(), Why: why,
	})
	return &u.log[len(u.log)-1]
}
