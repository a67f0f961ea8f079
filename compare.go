package hocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// ErrDiffers is wrapped by Comparison.Err if a result differs from the reference.
var ErrDiffers = errors.New("the result differs from the reference")

// ErrNoReference is wrapped by the error of Model.Reference if the program's text does not determine the reference.
var ErrNoReference = errors.New("there is no reference to compare with")

// Agreement is the verdict of a comparison.
type Agreement uint8

// Agreements.
const (
	// Undecided: no fault was found, but a part of the result has no error bound, or the bounds are so wide that
	// zeros would match too.
	Undecided Agreement = iota
	// Exact: the results equal the reference, and are certified to be the only correct ones.
	Exact
	// Within: the results are as close to the reference as rounding allows.
	Within
	// Differs: some result is wrong.
	Differs
)

// String returns "undecided", "exact", "within" or "differs".
func (a Agreement) String() string {
	return [...]string{"undecided", "exact", "within", "differs"}[a]
}

// weakest returns the weaker of two agreements. From strong to weak they are Exact, Within, Undecided, Differs.
func weakest(a, b Agreement) Agreement {
	strength := [...]int{Undecided: 1, Exact: 3, Within: 2, Differs: 0}
	if strength[b] < strength[a] {
		return b
	}
	return a
}

// Reference is what the results of a run are compared with. It is computed by the reference evaluator, from the
// function that the model's function refines, or else from the model's function itself.
type Reference struct {
	// Against is the function evaluated.
	Against string
	// Exact reports that every element is certified exact, whatever the order of sums.
	Exact   bool
	outputs []*eval.Output
}

// given returns the arguments of a run with the model's weights, and the dims that follow. The weights stay valid
// until release.
func (m *Model) given(args Args) (in map[string]*tensor.Tensor, b Binding, release func(), err error) {
	weights, release, err := m.params.hold(args)
	if err != nil {
		return nil, b, nil, err
	}
	if in, err = arguments(args, weights); err == nil {
		b, err = m.fn.dimsOf(in)
	}
	if err == nil {
		err = m.fn.setDims(b, args.Dims)
	}
	if err != nil {
		release()
		return nil, b, nil, err
	}
	return in, b, release, nil
}

// Reference evaluates the model's reference on the arguments of a run. It takes at least a hundred times as long as a
// run.
//
// If the streams of a function are not proved to be ordered, the function is evaluated in text order: each rank
// executes its statements one after another. If statements of different ranks then still race, or wait for each
// other, the error wraps ErrNoReference.
func (m *Model) Reference(ctx context.Context, args Args) (*Reference, error) {
	in, b, release, err := m.given(args)
	if err != nil {
		return nil, err
	}
	defer release()
	bound, err := m.fn.unit.Reference(b.ir())
	if err != nil {
		return nil, m.fn.blame(b, err)
	}
	name := bound.Func.Name
	res, err := evaluate(ctx, bound, b, in)
	if wrong := (*eval.InputError)(nil); errors.As(err, &wrong) {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	if err != nil {
		return nil, err
	}
	ref := &Reference{Against: name, Exact: true, outputs: res.Outputs}
	for _, o := range res.Outputs {
		ref.Exact = ref.Exact && o.Exact
	}
	if ref.Exact || bound.Func == m.fn.def {
		return ref, nil
	}
	return ref, ref.widen(ctx, m, b, in)
}

// widen adds the error bounds of the model's own function. If it rounds in other places than the function that it
// refines, both may be that far from real arithmetic.
func (r *Reference) widen(ctx context.Context, m *Model, b Binding, in map[string]*tensor.Tensor) error {
	own, err := m.fn.unit.Bind(b.ir())
	if err != nil {
		return err
	}
	res, err := evaluate(ctx, own, b, in)
	if err != nil {
		return err
	}
	for i, o := range r.outputs {
		r.outputs[i] = o.Widened(res.Outputs[i])
	}
	return nil
}

// evaluate evaluates a function of the model's program, in text order if its own order is not proved.
func evaluate(
	ctx context.Context, bound *ir.Bound, b Binding, in map[string]*tensor.Tensor,
) (*eval.Result, error) {
	b.Func = bound.Func.Name
	bound, err := ordered(bound, b)
	if err != nil {
		return nil, err
	}
	return eval.Run(ctx, bound, in, eval.Options{})
}

// Measured is the distance of a result from the reference.
type Measured struct {
	Name string
	// Error is the largest difference between an element and the reference's; +Inf if only one of the two is finite.
	// Largest is the largest magnitude in the reference.
	Error, Largest float64
}

// Quotient is Error divided by Largest; 0 if Error is.
func (m Measured) Quotient() float64 {
	if m.Error == 0 {
		return 0
	}
	return m.Error / m.Largest
}

// String returns "%y: largest error 2, values up to 410, quotient 0.00488".
func (m Measured) String() string {
	return fmt.Sprintf("%%%s: %s", m.Name, m.sizes())
}

func (m Measured) sizes() string {
	return fmt.Sprintf("largest error %.3g, values up to %.3g, quotient %.3g", m.Error, m.Largest, m.Quotient())
}

// Worst returns the result with the largest quotient of error and largest value; false if there is none.
func (c Comparison) Worst() (Measured, bool) {
	if len(c.Measured) == 0 {
		return Measured{}, false
	}
	return slices.MaxFunc(c.Measured, func(a, b Measured) int { return cmp.Compare(a.Quotient(), b.Quotient()) }), true
}

// Comparison is the outcome of comparing a run's results with a reference.
type Comparison struct {
	Verdict Agreement
	// Against is the reference function.
	Against string
	// Detail describes the first result that differs or is undecided, or else the one closest to its bound.
	Detail string
	// Measured are the errors of the results, in order. Verdict follows from the error bounds, not from these.
	Measured []Measured
	// Layers are the layers passed to ByLayers.
	Layers []LayerComparison

	sizes     string      // Within: how far off Detail's result is
	confirmed *Comparison // on other inputs
}

// Compare compares a report's results with r.
func (r *Reference) Compare(rep *Report) Comparison {
	c := Comparison{Verdict: Exact, Against: r.Against}
	if len(rep.OutNames) != len(r.outputs) {
		c.Verdict, c.Detail = Differs, fmt.Sprintf("%d results, %d in the reference", len(rep.OutNames), len(r.outputs))
		return c
	}
	share := -1.0 // of the bound that the result in Detail has used
	for i, name := range rep.OutNames {
		v := eval.Compare((*tensor.Tensor)(rep.Out[name]), r.outputs[i])
		a := [...]Agreement{eval.Exact: Exact, eval.Within: Within, eval.Undecided: Undecided,
			eval.Differs: Differs}[v.Kind]
		c.Measured = append(c.Measured, Measured{Name: name, Error: v.Measured, Largest: v.Largest})
		used := 0.0
		if v.Allowed > 0 {
			used = v.Error / v.Allowed
		}
		if weaker := weakest(c.Verdict, a) != c.Verdict; weaker || a == Within && c.Verdict == Within && used > share {
			c.Verdict, c.Detail, c.sizes, share = a, r.detail(name, v), "", used
			if a == Within {
				c.sizes = v.Sizes()
				if len(rep.OutNames) > 1 {
					c.sizes = "%" + name + ": " + c.sizes
				}
			}
		}
	}
	return c
}

// detail describes one result.
func (r *Reference) detail(name string, v eval.Verdict) string {
	switch v.Kind {
	case eval.Within:
		return fmt.Sprintf("%%%s matches %s within rounding (%s)", name, r.Against, v.Sizes())
	case eval.Undecided:
		return fmt.Sprintf("%%%s: %s", name, v.Reason)
	}
	return fmt.Sprintf("%%%s: %s", name, v)
}

// Confirmed combines c, a comparison on small integers, with a second one on random reals. Many functions agree on
// the integers -1, 0 and 1, so the second comparison may refute the first or make it undecided. It cannot strengthen
// it.
func (c Comparison) Confirmed(second Comparison) Comparison {
	if weakest(Within, second.Verdict) != Within && weakest(c.Verdict, second.Verdict) != c.Verdict {
		second.Detail += ", on random reals"
		return second
	}
	c.confirmed = &second
	return c
}

// Weakest returns the comparison with the weakest verdict; of several, the first.
func (c Comparison) Weakest(others ...Comparison) Comparison {
	for _, o := range others {
		if weakest(c.Verdict, o.Verdict) != c.Verdict {
			c = o
		}
	}
	return c
}

// Err returns nil, or an error that wraps ErrDiffers.
func (c Comparison) Err() error {
	if c.Verdict != Differs {
		return nil
	}
	return fmt.Errorf("%w %s: %s", ErrDiffers, c.Against, c.Detail)
}

// String returns the comparison in a line.
func (c Comparison) String() string {
	second := c.confirmed
	if second != nil && second.Verdict != Within {
		second = nil
	}
	switch {
	case c.Verdict == Undecided:
		return "undecided against " + c.Against + ": " + c.Detail + "; try other inputs or another dtype"
	case c.Verdict == Differs:
		return "differs from " + c.Against + ": " + c.Detail
	case c.Verdict == Exact && second != nil:
		return "equal to " + c.Against + ", exactly on integers (certified), within rounding on reals (" +
			second.sizes + ")"
	case c.Verdict == Exact:
		return "equal to " + c.Against + ", exactly (certified)"
	case second != nil:
		return c.Detail + ", and on reals (" + second.sizes + ")"
	}
	return c.Detail
}
