package hocket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/eval"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// ErrDiffers is wrapped by Comparison.Err if a result differs from the reference.
var ErrDiffers = errors.New("the result differs from the reference")

// ErrNoReference is wrapped by the error of Model.Reference if the program's text does not determine the reference.
var ErrNoReference = errors.New("no reference is available for the comparison")

// Agreement describes how well results agree with a reference.
type Agreement uint8

// The degrees of agreement.
const (
	// Undecided means that no fault was found, but that a part of the result has no error bound or that its bounds are
	// so wide that zeros would satisfy them too.
	Undecided Agreement = iota
	// Exact means that the results equal the reference, which is certified to be the only correct result.
	Exact
	// Within means that the difference between the results and the reference is within the error bounds of rounding.
	Within
	// Differs means that some result is wrong.
	Differs
)

// String returns "undecided", "exact", "within" or "differs".
func (a Agreement) String() string {
	return [...]string{"undecided", "exact", "within", "differs"}[a]
}

// weakest returns the weaker of two Agreement values. The order, from strong to weak, is Exact, Within, Undecided,
// Differs.
func weakest(a, b Agreement) Agreement {
	strength := [...]int{Undecided: 1, Exact: 3, Within: 2, Differs: 0}
	if strength[b] < strength[a] {
		return b
	}
	return a
}

// Reference holds the values with which the results of a run are compared. The reference evaluator computes them from
// the function that the model's function refines, if there is one, and otherwise from the model's function itself.
type Reference struct {
	// Against is the name of the function that was evaluated.
	Against string
	// Exact reports whether every element is certified to be exact for every order of summation.
	Exact   bool
	outputs []*eval.Output
}

// given returns the arguments of a run together with the model's weights, and the dims that follow from both. The
// weights stay valid until release is called.
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

// Reference evaluates the model's reference on the arguments of a run. It takes at least a hundred times as long as the
// run itself.
//
// If the streams of a function are not proved to be ordered, the function is evaluated in text order: each rank
// executes its statements one after another. If statements of different ranks still race in that order, or wait for
// each other, the error wraps ErrNoReference.
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

// widen adds the error bounds of the model's own function to those of the function that it refines. The two functions
// may round in different places, so each may differ from the result in real arithmetic by its own bound.
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

// evaluate evaluates a function of the model's program. It uses text order if the function's own order is not proved.
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

// Measured describes the distance between one result and the reference.
type Measured struct {
	Name string
	// Error is the largest absolute difference between an element of the result and that of the reference; it is +Inf
	// if only one of the two elements is finite. Largest is the largest absolute value in the reference.
	Error, Largest float64

	zeros bool   // whether the elements are floating-point numbers and the reference has only zeros
	nans  string // describes the elements of the reference that are NaN
}

// Quotient returns Error divided by Largest, or 0 if Error is 0.
func (m Measured) Quotient() float64 {
	if m.Error == 0 {
		return 0
	}
	return m.Error / m.Largest
}

// String returns a description like "%y: largest error 2, values up to 410, quotient 0.00488".
func (m Measured) String() string {
	return fmt.Sprintf("%%%s: %s", m.Name, m.sizes())
}

func (m Measured) sizes() string {
	return cmp.Or(m.nans, fmt.Sprintf("largest error %.3g, values up to %.3g, quotient %.3g", m.Error, m.Largest,
		m.Quotient()))
}

// Worst returns the result with the largest Quotient. It returns false if there are no results.
func (c Comparison) Worst() (Measured, bool) {
	if len(c.Measured) == 0 {
		return Measured{}, false
	}
	return slices.MaxFunc(c.Measured, func(a, b Measured) int { return cmp.Compare(a.Quotient(), b.Quotient()) }), true
}

// Comparison is the outcome of comparing the results of a run with a reference.
type Comparison struct {
	Verdict Agreement
	// Against is the name of the reference function.
	Against string
	// Detail describes the first result that differs or is undecided. If there is none, it describes the result that is
	// closest to its error bound.
	Detail string
	// Measured holds the error of each result, in the order of the results. Verdict follows from the error bounds and
	// not from these errors.
	Measured []Measured
	// Layers holds the comparisons of layers that were passed to ByLayers.
	Layers []LayerComparison

	sizes     string      // for the verdict Within: a description of the error of the result in Detail
	confirmed *Comparison // the comparison with other inputs
}

// Compare compares the results in a report with the reference.
func (r *Reference) Compare(rep *Report) Comparison {
	c := Comparison{Verdict: Exact, Against: r.Against}
	if len(rep.OutNames) != len(r.outputs) {
		c.Verdict, c.Detail = Differs, fmt.Sprintf("%d results, %d in the reference", len(rep.OutNames), len(r.outputs))
		return c
	}
	share := -1.0 // largest quotient of a result's error and its error bound
	for i, name := range rep.OutNames {
		v := eval.Compare((*tensor.Tensor)(rep.Out[name]), r.outputs[i])
		a := [...]Agreement{eval.Exact: Exact, eval.Within: Within, eval.Undecided: Undecided,
			eval.Differs: Differs}[v.Kind]
		c.Measured = append(c.Measured, Measured{name, v.Measured, v.Largest, v.Zeros(rep.Out[name].DType),
			v.NaNText()})
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

// detail describes the comparison of one result.
func (r *Reference) detail(name string, v eval.Verdict) string {
	switch v.Kind {
	case eval.Within:
		return fmt.Sprintf("%%%s matches %s within rounding (%s)", name, r.Against, v.Sizes())
	case eval.Undecided:
		return fmt.Sprintf("%%%s: %s", name, v.Reason)
	}
	return fmt.Sprintf("%%%s: %s", name, v)
}

// Confirmed combines c, a comparison with small integers as inputs, with a second comparison that had random real
// numbers as inputs. Different functions often agree on the integers -1, 0 and 1, so the second comparison may refute
// the first or make it undecided. The second comparison cannot strengthen the first.
func (c Comparison) Confirmed(second Comparison) Comparison {
	if weakest(Within, second.Verdict) != Within && weakest(c.Verdict, second.Verdict) != c.Verdict {
		second.Detail += ", on random reals"
		return second
	}
	c.confirmed = &second
	return c
}

// Weakest returns the comparison that has the weakest verdict. If several have that verdict, it returns the first of
// these comparisons.
func (c Comparison) Weakest(others ...Comparison) Comparison {
	for _, o := range others {
		if weakest(c.Verdict, o.Verdict) != c.Verdict {
			c = o
		}
	}
	return c
}

// Err returns an error that wraps ErrDiffers if the results differ from the reference, and nil otherwise.
func (c Comparison) Err() error {
	if c.Verdict != Differs {
		return nil
	}
	return fmt.Errorf("%w %s: %s", ErrDiffers, c.Against, c.Detail)
}

// String returns a one-line description of the comparison. It says which results consist of zeros only, since many
// wrong programs compute zeros from the same arguments too.
func (c Comparison) String() string {
	text, zeros := c.describe(), []string{}
	for i, m := range c.Measured {
		if again := c.confirmed == nil || i < len(c.confirmed.Measured) && c.confirmed.Measured[i].zeros; m.zeros &&
			again {
			zeros = append(zeros, "%"+m.Name)
		}
	}
	if c.Verdict == Differs || len(zeros) == 0 {
		return text
	}
	return text + "; but the reference has only zeros for " + strings.Join(zeros, ", ") + ": give other inputs or state"
}

// describe returns the description without the note about zeros.
func (c Comparison) describe() string {
	second := c.confirmed
	if second != nil && second.Verdict != Within {
		second = nil
	}
	switch {
	case c.Verdict == Undecided:
		return "undecided against " + c.Against + ": " + c.Detail +
			"; try other inputs, another dtype, or hocket run --rtol"
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
