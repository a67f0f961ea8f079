package hocket

import (
	"context"
	"errors"
	"fmt"

	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/tensor"
)

// ErrDiffers is wrapped by Comparison.Err when a result is not what the
// reference says.
var ErrDiffers = errors.New("the result differs from the reference")

// Reference is what a run's results are compared with: the function that the
// model's function refines, or else itself, computed by the reference evaluator.
type Reference struct {
	// Against is the function evaluated.
	Against string
	// Exact: every element is certified exact, whatever the order of sums.
	Exact   bool
	outputs []*eval.Output
}

// Reference evaluates the model's reference on the same arguments as a run.
// It is slow: a hundred times the time of a run and more.
func (m *Model) Reference(ctx context.Context, args Args) (*Reference, error) {
	in, err := arguments(args, m.weights())
	if err != nil {
		return nil, err
	}
	b, err := m.dimsOf(in)
	if err != nil {
		return nil, err
	}
	bound, err := m.unit.Reference(b.ir())
	if err != nil {
		return nil, m.blame(b, err)
	}
	res, err := eval.Run(ctx, bound, in, eval.Options{})
	if wrong := (*eval.InputError)(nil); errors.As(err, &wrong) {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	if err != nil {
		return nil, err
	}
	ref := &Reference{Against: bound.Func.Name, Exact: true, outputs: res.Outputs}
	for _, o := range res.Outputs {
		ref.Exact = ref.Exact && o.Exact
	}
	if ref.Exact || bound.Func == m.fn {
		return ref, nil
	}
	return ref, ref.widen(ctx, m, b, in)
}

// widen adds the error bounds of the model's own function: where that rounds
// in other places than the function it refines, both may be that far from
// real arithmetic.
func (r *Reference) widen(ctx context.Context, m *Model, b Binding, in map[string]*tensor.Tensor) error {
	own, err := m.unit.Bind(b.ir())
	if err != nil {
		return err
	}
	res, err := eval.Run(ctx, own, in, eval.Options{})
	if err != nil {
		return err
	}
	for i, o := range r.outputs {
		r.outputs[i] = o.Widened(res.Outputs[i])
	}
	return nil
}

// Comparison says how a run's results compare with a reference.
type Comparison struct {
	// Verdict is "exact" (equal, and certified to be the only right answer),
	// "within" (inside the error bound) or "differs".
	Verdict string
	// Against is the reference function.
	Against string
	// Detail tells of the first result that differs, or of the bound.
	Detail string
	// Unbounded names a result of which no element has an error bound: values
	// grew until rounding may do anything, and within says nothing of it.
	Unbounded string
}

// Compare compares a report's results with r.
func (r *Reference) Compare(rep *Report) Comparison {
	c := Comparison{Verdict: "exact", Against: r.Against}
	if len(rep.OutNames) != len(r.outputs) {
		c.Verdict, c.Detail = "differs", fmt.Sprintf("%d results, %d in the reference", len(rep.OutNames), len(r.outputs))
		return c
	}
	for i, name := range rep.OutNames {
		v := eval.Compare((*tensor.Tensor)(rep.Out[name]), r.outputs[i])
		switch v.Kind {
		case eval.Differs:
			c.Verdict, c.Detail = "differs", fmt.Sprintf("%%%s: %s", name, v)
			return c
		case eval.Within:
			c.Verdict, c.Detail = "within", fmt.Sprintf("%%%s: %s", name, v)
			if v.Unknown == v.Elements {
				c.Unbounded = name
			}
		}
	}
	return c
}

// Err returns nil, or an error that wraps ErrDiffers.
func (c Comparison) Err() error {
	if c.Verdict != "differs" {
		return nil
	}
	return fmt.Errorf("%w %s: %s", ErrDiffers, c.Against, c.Detail)
}

// String returns the comparison in a line.
func (c Comparison) String() string {
	switch {
	case c.Unbounded != "":
		return "not told apart from " + c.Against + ": no element of %" + c.Unbounded + " has an error bound; try smaller inputs or another dtype"
	case c.Verdict == "exact":
		return "equal to " + c.Against + ", exactly (certified)"
	case c.Verdict == "within":
		return "equal to " + c.Against + " within the error bound: " + c.Detail
	}
	return "differs from " + c.Against + ": " + c.Detail
}
