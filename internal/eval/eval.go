// Package eval is the reference evaluator. It computes the results that a bound program defines, for all ranks in one
// goroutine, with code that is simple enough to verify by reading. It imports none of the packages that it is used to
// check. References such as S2 are to sections of docs/language.md.
//
// Values (S2) are global and computed once; buffers are local to a rank. The evaluator executes the text for every
// rank, which unrolls it into a queue of tasks for each stream. A loop then visits one rank after the other and
// runs each task that is ready at the head of a queue, until all queues are empty or no task can run, which is a
// deadlock. Data moves when a task runs. Each number has a bound on its difference from the number that a correct
// machine may compute (S11, number.go). A bound of 0 certifies the number as exact.
//
// A claimed buffer becomes a global value when all ranks have claimed their parts. An operation that needs other
// ranks' parts waits for those claims.
package eval

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Options limits the work and memory of an evaluation.
type Options struct {
	// MaxStatements limits the number of statements that are executed, counted over all ranks and iterations. The value 0
	// selects DefaultMaxStatements.
	MaxStatements int64
	// MaxBytes limits the memory of the tensors that exist at one time. The value 0 selects DefaultMaxBytes. An element
	// takes 17 bytes, for every element type.
	MaxBytes int64
}

// Defaults of Options.
const (
	DefaultMaxStatements = 10_000_000
	DefaultMaxBytes      = 8 << 30
)

// Output describes one result of the function.
type Output struct {
	// Name is the output's name according to ir.OutputNames.
	Name string
	// Tensor is the global tensor, its elements rounded to their type.
	Tensor *tensor.Tensor
	// Err[i] bounds the difference between element i of a correct machine's result and element i of Tensor. A bound of 0
	// certifies that the element is exact; +Inf places no limit on it.
	Err []float64
	// Exact reports that every element is certified: its bound is 0, or it is known to be infinite.
	Exact bool
	// infinities marks the elements with a bound of +Inf that are known to be an infinity of either sign. infinities is
	// nil if there are none.
	infinities []bool
}

// infinite reports whether element i is known to be infinite, of either sign.
func (o *Output) infinite(i int64) bool { return o.infinities != nil && o.infinities[i] }

// Result holds the outputs of a function.
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

// Run evaluates b's function on global tensors. The map in holds one tensor for each parameter, keyed by the
// parameter's name. Errors in the program are of type *ir.Diagnostic and have a position; errors in the inputs and
// cancellation are of other types.
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
	if err := ctx.Err(); err != nil { // not every operation checks ctx
		return nil, err
	}
	return m.outputs()
}

// machine holds the state of one evaluation.
type machine struct {
	ctx  context.Context
	b    *ir.Bound
	prog *ir.Program
	opts Options
	root *frame

	ranks []*rank
	// links are functions that run when all ranks have been unrolled. Each one finds the buffer that a peer has
	// allocated.
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

// located adds the position of s to err, unless err already has a position or does not concern the program.
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

// reserve adds memory that is about to be allocated to the total, and returns an error if the total exceeds the limit.
func (m *machine) reserve(dt ir.DType, shape []int64) error {
	n, err := tensor.NumElements(shape)
	if err == nil && n <= (m.opts.MaxBytes-m.bytes)/bytesPerElement {
		m.bytes += n * bytesPerElement
		return nil
	}
	return &finding{"limit", fmt.Sprintf("with %v%v, the tensors would exceed the evaluator's limit of %d bytes", dt,
		shape, m.opts.MaxBytes),
		"evaluate smaller dims"}
}

func (m *machine) release(_ ir.DType, shape []int64) { m.bytes -= elements(shape) * bytesPerElement }

// step counts one executed statement, and returns an error if the count exceeds the limit (S21).
func (m *machine) step(s *ir.Stmt) error {
	m.steps++
	if m.steps > m.opts.MaxStatements {
		d := m.prog.Diag("limit", s.Pos, "the program executes more than %d statements, counted over all ranks "+
			"and iterations, which is the limit", m.opts.MaxStatements)
		d.Help = "bind smaller dims; hocket check may still prove the program for these dims without executing it"
		return d
	}
	if m.steps%1024 == 0 {
		return m.ctx.Err()
	}
	return nil
}

// InputError reports an error in the tensors that were passed to an evaluation.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }
func (e *InputError) Unwrap() error { return e.Err }

// inputs makes one value for each parameter. An inout parameter is also a value at first.
func (m *machine) inputs(in map[string]*tensor.Tensor) ([]*value, error) {
	var out []*value
	for _, p := range m.b.Func.Params {
		t := in[p.Name]
		if t == nil {
			return nil, &InputError{fmt.Errorf("the input %q of %s is missing", p.Name, m.b.Func.Name)}
		}
		if err := t.Check(); err != nil {
			return nil, &InputError{fmt.Errorf("input %q: %w", p.Name, err)}
		}
		shape, err := m.b.GlobalShape(p.Type, m.b.Env(0, nil))
		if err != nil {
			return nil, m.prog.Diag("bind", p.Pos, "%v", err)
		}
		if t.DType != p.Type.DType || !slices.Equal(t.Shape, shape) {
			return nil, &InputError{fmt.Errorf("input %q is %v, but %s takes %v%v", p.Name, t, m.b.Func.Name,
				p.Type.DType, shape)}
		}
		out = append(out, &value{m: m, name: p.Name, typ: p.Type, shape: shape,
			from: func() (*array, error) { return fromTensor(t), nil }})
	}
	if len(in) != len(out) {
		return nil, &InputError{fmt.Errorf("there are %d inputs, but %s takes %d", len(in), m.b.Func.Name, len(out))}
	}
	return out, nil
}

// outputs returns the results and the final contents of inout parameters.
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

// unfinished converts the error of a wait that can never end from the internal type *pending to an error with a
// message.
func unfinished(err error) error {
	var p *pending
	if errors.As(err, &p) {
		return &finding{"deadlock", p.what, ""}
	}
	return err
}
