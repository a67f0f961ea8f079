package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/tensor"
)

// Kind is the outcome of a comparison.
type Kind uint8

// Outcomes, from the strongest to the weakest.
const (
	// Exact: the reference is certified exact, and every element equals it.
	Exact Kind = iota
	// Within: every element is within the bound of the reference.
	Within
	// Undecided: nothing is wrong, but an element has no bound, or the bounds are
	// so wide that a result of zeros would match too.
	Undecided
	// Differs: some element is outside its bound, or the types differ.
	Differs
)

// String returns the word of the command line: "exact", "within", "undecided",
// "differs".
func (k Kind) String() string { return [...]string{"exact", "within", "undecided", "differs"}[k] }

// Verdict says how a result compares with the reference.
type Verdict struct {
	Kind Kind
	// Count is the number of elements that differ; the fields below describe
	// the first in row-major order.
	Count int64
	// Index is nil where element types or shapes differ.
	Index            []int64
	Got, Want, Bound float64
	// Reason says why, for Undecided and Differs; else it is empty.
	Reason string
	// Error is the largest |got − want| within a finite bound, and Allowed is that
	// bound; where nothing is off, Allowed is the largest bound.
	Error, Allowed float64
	// Largest is the largest finite magnitude in the reference.
	Largest float64
	// Measured is the largest |got − want| of all elements, whatever their bounds; +Inf where only one of the two is
	// a finite number and they are not the same.
	Measured float64
	// Unknown is the number of elements without a finite bound whose value is not
	// known either, of Elements: the result may have anything there.
	Unknown, Elements int64
}

// Compare compares a result with what the evaluator says it is. Elements whose
// bound is 0 must be equal, up to the sign of zero; others may be as far off as
// their bound. A NaN equals a NaN only. A bound of +Inf allows anything, so that
// the comparison is undecided, unless the element is known to be infinite.
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
	tells := v.Elements == 0 // whether some element says that a result of zeros is wrong
	for i := range a.len() {
		x, y, bound := a.float(i), b.float(i), want.Err[i]
		if !math.IsInf(y, 0) && y == y {
			v.Largest = max(v.Largest, abs(y))
		}
		v.Measured = max(v.Measured, measured(a, b, i, want.infinite(i)))
		if want.infinite(i) {
			tells = true
			if !math.IsInf(x, 0) {
				v.differs(a, b, i, "is %s, and an infinity is wanted", a.text(i))
			}
			continue
		}
		if math.IsInf(bound, 1) {
			v.Unknown++
			continue
		}
		if v.Error == 0 {
			v.Allowed = max(v.Allowed, bound)
		}
		tells = tells || !(abs(y) <= bound)
		if a.same(b, i) {
			continue
		}
		off := distance(a, b, i)
		if off <= bound {
			if off > v.Error || off == v.Error && bound < v.Allowed {
				v.Error, v.Allowed = off, bound
			}
			continue
		}
		if v.Count == 0 {
			v.Bound = bound
		}
		v.differs(a, b, i, "is %s, and %s is wanted (±%g)", a.text(i), b.text(i), bound)
	}
	v.decide(want, tells)
	return v
}

// decide makes the verdict undecided if there are unknown elements, or if the bounds are
// too wide to tell anything.
func (v *Verdict) decide(want *Output, tells bool) {
	switch {
	case v.Kind == Differs:
	case v.Unknown == v.Elements && v.Elements > 0:
		v.Kind, v.Reason = Undecided, "no element has an error bound"
	case v.Unknown > 0:
		v.Kind, v.Reason = Undecided, fmt.Sprintf("%d of %d elements have no error bound", v.Unknown, v.Elements)
	case !tells && (v.Largest > 0 || slices.Max(want.Err) > math.Sqrt(unit(want.Tensor.DType))):
		// Where zeros are right, bounds that are small for numbers around 1 tell.
		v.Kind, v.Reason = Undecided, "the error bounds are as large as the values, so that zeros would match too"
	}
}

// differs counts element i as different and describes it if it is the first.
func (v *Verdict) differs(a, b *array, i int64, format string, args ...any) {
	v.Kind = Differs
	if v.Count++; v.Count == 1 {
		v.Index, v.Got, v.Want = unflatten(a.shape, i), a.float(i), b.float(i)
		v.Reason = fmt.Sprintf("element %v ", v.Index) + fmt.Sprintf(format, args...)
	}
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

// measured is |a − b| of elements i. anyInfinity says that b is an infinity of unknown sign.
func measured(a, b *array, i int64, anyInfinity bool) float64 {
	if a.same(b, i) || anyInfinity && math.IsInf(a.float(i), 0) {
		return 0
	}
	if d := distance(a, b, i); !anyInfinity && d == d {
		return d
	}
	return math.Inf(1)
}

// text writes element i as it is, large integers included.
func (a *array) text(i int64) string {
	if a.n != nil {
		return fmt.Sprint(a.n[i])
	}
	return fmt.Sprint(a.f[i])
}

// String is one line: "exact", "within rounding (…)", or what differs.
func (v Verdict) String() string {
	switch v.Kind {
	case Exact:
		return "exact"
	case Within:
		return "within rounding (" + v.Sizes() + ")"
	case Undecided:
		return "undecided: " + v.Reason
	}
	if v.Count > 1 {
		return fmt.Sprintf("differs in %d elements: first, %s", v.Count, v.Reason)
	}
	return "differs: " + v.Reason
}

// Sizes says how far off a result is, how far it may be, and how large values
// are: "largest error 2, allowed 9, values up to 410".
func (v Verdict) Sizes() string {
	return fmt.Sprintf("largest error %.3g, allowed %.3g, values up to %.3g", v.Error, v.Allowed, v.Largest)
}
