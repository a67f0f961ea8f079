package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/tensor"
)

// Kind is the outcome of a comparison.
type Kind uint8

// Outcomes.
const (
	// Exact: the reference is certified exact, and every element equals it.
	Exact Kind = iota
	// Within: every element is within the bound of the reference.
	Within
	// Differs: some element is not, or the types differ.
	Differs
)

// String returns the word of the command line: "exact", "within", "differs".
func (k Kind) String() string { return [...]string{"exact", "within", "differs"}[k] }

// Verdict says how a result compares with the reference.
type Verdict struct {
	Kind Kind
	// Count is the number of elements that differ; the fields below describe
	// the first in row-major order.
	Count int64
	// Index is nil where element types or shapes differ.
	Index            []int64
	Got, Want, Bound float64
	// Reason says why, for Differs; else it is empty.
	Reason string
	// Worst is the largest |got − want| over all elements with a finite bound.
	Worst float64
	// Unknown is the number of elements whose bound is +Inf, of Elements: of
	// those nothing was found out.
	Unknown, Elements int64
}

// Compare compares a result with what the evaluator says it is. Elements whose
// bound is 0 must be equal, up to the sign of zero; others may be as far off as
// their bound. A NaN equals a NaN only, and a bound of +Inf allows anything.
func Compare(got *tensor.Tensor, want *Output) Verdict {
	w := want.Tensor
	if err := got.Check(); err != nil {
		return Verdict{Kind: Differs, Reason: err.Error()}
	}
	if got.DType != w.DType || !slices.Equal(got.Shape, w.Shape) {
		return Verdict{Kind: Differs, Reason: fmt.Sprintf("the result is %v, and %v is wanted", got, w)}
	}
	v := Verdict{Kind: Within}
	if want.Exact {
		v.Kind = Exact
	}
	a, b := fromTensor(got), fromTensor(w)
	v.Elements = a.len()
	for i := range a.len() {
		if math.IsInf(want.Err[i], 1) {
			v.Unknown++
			continue
		}
		if a.same(b, i) {
			continue
		}
		off, bound := distance(a, b, i), want.Err[i]
		if off <= bound {
			v.Worst = max(v.Worst, off)
			continue
		}
		if v.Count++; v.Count == 1 {
			v.Kind, v.Index = Differs, unflatten(a.shape, i)
			v.Got, v.Want, v.Bound = a.float(i), b.float(i), bound
			v.Reason = fmt.Sprintf("element %v is %s, and %s is wanted (±%g)", v.Index, a.text(i), b.text(i), bound)
		}
	}
	return v
}

// Widened is o as a reference for the results of another program that computes
// the same function in another order: own is that program's own output, as the
// evaluator finds it. Both are within their bounds of what real arithmetic
// gives, so that the bounds add up; what both certify stays exact.
func (o *Output) Widened(own *Output) *Output {
	w := *o
	w.Err = slices.Clone(o.Err)
	w.Exact = o.Exact && own.Exact
	for i := range min(len(w.Err), len(own.Err)) {
		w.Err[i] += own.Err[i]
	}
	return &w
}

// distance is |a − b| of elements i; NaN, which no bound allows, if only one is
// a NaN.
func distance(a, b *array, i int64) float64 {
	if a.n == nil {
		return math.Abs(a.f[i] - b.f[i])
	}
	x, y := a.n[i], b.n[i]
	return float64(uint64(max(x, y)) - uint64(min(x, y)))
}

// text writes element i as it is, large integers included.
func (a *array) text(i int64) string {
	if a.n != nil {
		return fmt.Sprint(a.n[i])
	}
	return fmt.Sprint(a.f[i])
}

// String is one line: "exact", "within the bound", or what differs.
func (v Verdict) String() string {
	switch v.Kind {
	case Exact:
		return "exact"
	case Within:
		if v.Unknown > 0 {
			return fmt.Sprintf("within the bound (worst %g), but %d of %d elements have none", v.Worst, v.Unknown, v.Elements)
		}
		return fmt.Sprintf("within the bound (worst %g)", v.Worst)
	}
	if v.Count > 1 {
		return fmt.Sprintf("differs in %d elements: first, %s", v.Count, v.Reason)
	}
	return "differs: " + v.Reason
}
