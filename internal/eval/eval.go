// Package eval is the reference evaluator: it says what a bound program means,
// for all ranks in one goroutine, slowly and simply enough to be believed by
// reading. It imports nothing that it judges.
//
// Values (S2) are global and computed once; buffers are local to a rank. Every
// rank's text is unrolled into one queue of tasks a stream, and a loop runs
// whatever stands ready at the head of a queue, rank by rank, until all queues
// are empty or nothing can move, which is a deadlock. Data moves when a task
// runs. Beside each number stands a bound on how far a correct machine's may be
// from it (S11, number.go); a bound of 0 certifies the number as exact.
//
// A claimed buffer becomes a global value once all ranks have claimed their
// parts: an operation that needs other ranks' parts waits for those claims.
package eval

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Options bound an evaluation.
type Options struct {
	// MaxStatements is the number of statements that may be executed, all
	// ranks and iterations together; 0 for DefaultMaxStatements.
	MaxStatements int64
	// MaxBytes is the memory that the tensors held at one time may take; 0 for
	// DefaultMaxBytes. An element takes 17 bytes, whatever its type.
	MaxBytes int64
}

// Defaults of Options.
const (
	DefaultMaxStatements = 10_000_000
	DefaultMaxBytes      = 8 << 30
)

// Output is one result of the function.
type Output struct {
	// Name is that of ir.OutputNames.
	Name string
	// Tensor is the global tensor, its elements rounded to their type.
	Tensor *tensor.Tensor
	// Err[i] bounds how far element i of a correct machine's result may be
	// from Tensor's: 0 certifies it exact, +Inf says nothing about it.
	Err []float64
	// Exact says that every element is certified: its bound is 0, or it is known to
	// be infinite.
	Exact bool
	// infinities are the elements with a bound of +Inf that are known to be an
	// infinity of either sign; nil if there are none.
	infinities []bool
}

// infinite reports whether element i is known to be infinite, of either sign.
func (o *Output) infinite(i int64) bool { return o.infinities != nil && o.infinities[i] }

// Result is what a function gives back.
type Result struct {
	// Outputs are the results in signature order, then the final contents of
	// inout parameters.
	Outputs []*Output
}

// Output returns the output called name, or nil.
func (r *Result) Output(name string) *Output {
	for _, o := range r.Outputs {
		if o.Name == name {
			return o
		}
	}
	return nil
}

// Run evaluates b's function on global tensors, one for each parameter by
// name. Errors in the program are *ir.Diagnostic, with a position; errors in
// the inputs and cancellation are not.
func Run(ctx context.Context, b *ir.Bound, in map[string]*tensor.Tensor, opts Options) (*Result, error) {
	if opts.MaxStatements == 0 {
		opts.MaxStatements = DefaultMaxStatements
	}
	if opts.MaxBytes == 0 {
		opts.MaxBytes = DefaultMaxBytes
	}
	m := &machine{ctx: ctx, b: b, prog: b.Info.Prog, opts: opts, root: &frame{}, colls: map[collKey]*meeting{}, pairs: map[pairKey]*pair{}}
	params, err := m.inputs(in)
	if err != nil {
		return nil, err
	}
	for rank := range b.Ranks {
		m.ranks = append(m.ranks, newRank(m, rank))
	}
	for _, r := range m.ranks {
		if err := r.runFunction(params); err != nil {
			return nil, err
		}
	}
	for _, link := range m.links {
		if err := link(); err != nil {
			return nil, err
		}
	}
	if err := m.schedule(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // an operation does not look
		return nil, err
	}
	return m.outputs()
}

// machine is one evaluation.
type machine struct {
	ctx  context.Context
	b    *ir.Bound
	prog *ir.Program
	opts Options
	root *frame

	ranks []*rank
	// links run when all ranks are unrolled: they find what a peer allocated.
	links []func() error
	colls map[collKey]*meeting
	pairs map[pairKey]*pair

	results []*value
	inout   []*value

	steps, bytes int64
}

// finding is an error in the program that has no position yet.
type finding struct{ kind, message, help string }

func (f *finding) Error() string { return f.message }

// located gives err the position of s, unless it has one or is not about the
// program.
func (m *machine) located(s *ir.Stmt, err error) error {
	var d *ir.Diagnostic
	var p *pending
	if err == nil || errors.As(err, &d) || errors.As(err, &p) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	out := m.prog.Diag("type", s.Pos, "%s: %v", s.Op, err)
	var f *finding
	if errors.As(err, &f) {
		out.Kind, out.Message, out.Help = f.kind, f.message, f.help
	}
	return out
}

const bytesPerElement = 17 // number, bound, written

// reserve counts memory that is about to be allocated.
func (m *machine) reserve(dt ir.DType, shape []int64) error {
	n, err := tensor.NumElements(shape)
	if err == nil && n <= (m.opts.MaxBytes-m.bytes)/bytesPerElement {
		m.bytes += n * bytesPerElement
		return nil
	}
	return &finding{"limit", fmt.Sprintf("%v%v would take the evaluator past its limit of %d bytes", dt, shape, m.opts.MaxBytes),
		"evaluate smaller dims"}
}

func (m *machine) release(_ ir.DType, shape []int64) { m.bytes -= elements(shape) * bytesPerElement }

// step counts an executed statement (S21).
func (m *machine) step(s *ir.Stmt) error {
	m.steps++
	if m.steps > m.opts.MaxStatements {
		d := m.prog.Diag("limit", s.Pos, "the program executes more than %d statements, all ranks and iterations together", m.opts.MaxStatements)
		d.Help = "bind smaller dims; check may still prove it symbolically"
		return d
	}
	if m.steps%1024 == 0 {
		return m.ctx.Err()
	}
	return nil
}

// InputError is an error about the tensors that an evaluation was given.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }
func (e *InputError) Unwrap() error { return e.Err }

// inputs makes a value of each parameter. Inout parameters start as such too.
func (m *machine) inputs(in map[string]*tensor.Tensor) ([]*value, error) {
	var out []*value
	for _, p := range m.b.Func.Params {
		t := in[p.Name]
		if t == nil {
			return nil, &InputError{fmt.Errorf("there is no input %q for %s", p.Name, m.b.Func.Name)}
		}
		if err := t.Check(); err != nil {
			return nil, &InputError{fmt.Errorf("input %q: %w", p.Name, err)}
		}
		shape, err := m.b.GlobalShape(p.Type, m.b.Env(0, nil))
		if err != nil {
			return nil, m.prog.Diag("bind", p.Pos, "%v", err)
		}
		if t.DType != p.Type.DType || !slices.Equal(t.Shape, shape) {
			return nil, &InputError{fmt.Errorf("input %q is %v, and %s takes %v%v", p.Name, t, m.b.Func.Name, p.Type.DType, shape)}
		}
		out = append(out, &value{m: m, name: p.Name, typ: p.Type, shape: shape,
			from: func() (*array, error) { return fromTensor(t), nil }})
	}
	if len(in) != len(out) {
		return nil, &InputError{fmt.Errorf("%d inputs given, and %s takes %d", len(in), m.b.Func.Name, len(out))}
	}
	return out, nil
}

// outputs computes the results and what inout parameters hold at the end.
func (m *machine) outputs() (*Result, error) {
	res := &Result{}
	all := append(slices.Clone(m.results), m.inout...)
	for i, name := range ir.OutputNames(m.b.Func) {
		a, err := all[i].whole()
		if err != nil {
			return nil, m.located(&ir.Stmt{Op: ir.OpReturn, Pos: m.b.Func.Body.End}, unfinished(err))
		}
		t, err := a.toTensor()
		if err != nil {
			return nil, err
		}
		o := &Output{Name: name, Tensor: t, Err: a.e, Exact: true, infinities: a.infinite}
		for i, e := range a.e {
			o.Exact = o.Exact && (e == 0 || o.infinite(int64(i)))
		}
		res.Outputs = append(res.Outputs, o)
	}
	return res, nil
}

// unfinished turns a wait that can never end into an error about it.
func unfinished(err error) error {
	var p *pending
	if errors.As(err, &p) {
		return &finding{"deadlock", p.what, ""}
	}
	return err
}
