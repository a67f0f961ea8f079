package eval

import (
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Kind is the outcome of a comparison.
type Kind uint8

// Outcomes, from the strongest to the weakest.
const (
	// Exact: the reference is certified exact, and every element equals it.
	Exact Kind = iota
	// Within: every element is within the bound of the reference.
	Within
	// Undecided: no element is outside its bound, but an element has no bound, or the bounds are so wide that a result
	// of zeros would also match.
	Undecided
	// Differs: the error of some element exceeds its bound, or the element types or shapes differ.
	Differs
)

// String returns the word for the outcome that commands print: "exact", "within", "undecided" or "differs".
func (k Kind) String() string { return [...]string{"exact", "within", "undecided", "differs"}[k] }

// Verdict describes how a result compares with the reference.
type Verdict struct {
	Kind Kind
	// Count is the number of elements that differ. The following fields describe the first element that differs, in
	// row-major order.
	Count int64
	// Index is nil if the element types or shapes differ.
	Index            []int64
	Got, Want, Bound float64
	// Reason explains the outcomes Undecided and Differs. Reason is empty for the other outcomes.
	Reason string
	// Error is the largest |got − want| among the elements with a finite bound, and Allowed is the bound of that
	// element. If all elements with a finite bound are equal, Allowed is the largest finite bound.
	Error, Allowed float64
	// Largest is the largest finite magnitude in the reference.
	Largest float64
	// Measured is the largest |got − want| over all elements, with or without a bound. Measured is +Inf if, for some
	// element, only one of the two numbers is finite and they are not the same.
	Measured float64
	// Unknown is the number of elements for which any number is accepted: they have no finite bound and are not
	// known to be infinite. Elements is the number of all elements.
	Unknown, Elements int64
	// NaNs is the number of elements of the reference that are NaN.
	NaNs int64

	unbounded int64 // the number of NaNs among the elements without a bound
}

// Zeros reports whether the elements are floating-point numbers, and all of the result and the reference are 0.
func (v Verdict) Zeros(dt ir.DType) bool {
	return v.Elements > 0 && v.Largest == 0 && v.Measured == 0 && v.NaNs == 0 && !dt.IsInt()
}

// NaNText describes the elements that are NaN; "" if there are none.
func (v Verdict) NaNText() string {
	if v.NaNs == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d elements are NaN in the reference", v.NaNs, v.Elements)
}

// Compare compares a result with the evaluator's output. An element whose bound is 0 must be equal, except for the sign
// of zero. An element with a nonzero bound may differ by at most its bound. A NaN equals only a NaN. A bound of +Inf
// allows any number, unless the element is known to be infinite; the comparison is then undecided.
func Compare(got *tensor.Tensor, want *Output) Verdict {
	w := want.Tensor
	if err := got.Check(); err != nil {
		return Verdict{Kind: Differs, Reason: err.Error()}
	}
	if got.DType != w.DType || !slices.Equal(got.Shape, w.Shape) {
		return Verdict{Kind: Differs, Reason: fmt.Sprintf("the result is %v, want %v", got, w)}
	}
	v := Verdict{Kind: Within}
	if want.Exact {
		v.Kind = Exact
	}
	a, b := fromTensor(got), fromTensor(w)
	v.Elements = a.len()
	tells := v.Elements == 0 // whether the bound of some element is narrow enough to exclude a result of zeros
	for i := range a.len() {
		x, y, bound := a.float(i), b.float(i), want.Err[i]
		switch {
		case y != y:
			v.NaNs++
		case !math.IsInf(y, 0):
			v.Largest = max(v.Largest, abs(y))
		}
		v.Measured = max(v.Measured, measured(a, b, i, want.infinite(i)))
		if want.infinite(i) {
			tells = true
			if !math.IsInf(x, 0) {
				v.differs(a, b, i, "is %s, want an infinity", a.text(i))
			}
			continue
		}
		if math.IsInf(bound, 1) {
			v.Unknown++
			if y != y {
				v.unbounded++
			}
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
		v.differs(a, b, i, "is %s, want %s ± %g", a.text(i), b.text(i), bound)
	}
	v.decide(want, tells)
	return v
}

// decide makes the verdict undecided if there are unknown elements, or if the bounds are so wide that the comparison
// proves nothing. The argument tells is true if some bound is narrow enough to exclude a result of zeros.
func (v *Verdict) decide(want *Output, tells bool) {
	switch {
	case v.Kind == Differs:
	case v.unbounded > 0:
		v.Kind, v.Reason = Undecided, v.NaNText()
	case v.Unknown == v.Elements && v.Elements > 0:
		v.Kind, v.Reason = Undecided, "no element has an error bound"
	case v.Unknown > 0:
		v.Kind, v.Reason = Undecided, fmt.Sprintf("%d of %d elements have no error bound", v.Unknown, v.Elements)
	case !tells && (v.Largest > 0 || slices.Max(want.Err) > math.Sqrt(unit(want.Tensor.DType))):
		// If the correct values are zeros, bounds are conclusive if they are small compared with 1.
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

// Widened returns o as a reference for the results of another program, which computes the same function in another
// order of operations. The argument own is the evaluator's output for that other program. The outputs of the evaluator
// for both programs differ from the result in real arithmetic by at most their bounds, so their difference is at most
// the sum of the bounds. Elements that both outputs certify remain exact.
func (o *Output) Widened(own *Output) *Output {
	w := *o
	w.Err = slices.Clone(o.Err)
	w.Exact = o.Exact && own.Exact
	for i := range min(len(w.Err), len(own.Err)) {
		w.Err[i] += own.Err[i]
	}
	return &w
}

// distance returns the absolute difference of elements i of a and b. distance returns NaN, which no bound allows, if
// only one of the elements is a NaN.
func distance(a, b *array, i int64) float64 {
	if a.n == nil {
		return math.Abs(a.f[i] - b.f[i])
	}
	x, y := a.n[i], b.n[i]
	return float64(uint64(max(x, y)) - uint64(min(x, y)))
}

// measured returns the absolute difference of elements i of a and b. The argument anyInfinity reports that element i of
// b is an infinity of unknown sign.
func measured(a, b *array, i int64, anyInfinity bool) float64 {
	if a.same(b, i) || anyInfinity && math.IsInf(a.float(i), 0) {
		return 0
	}
	if d := distance(a, b, i); !anyInfinity && d == d {
		return d
	}
	return math.Inf(1)
}

// text formats element i exactly, even if it is a large integer.
func (a *array) text(i int64) string {
	if a.n != nil {
		return fmt.Sprint(a.n[i])
	}
	return fmt.Sprint(a.f[i])
}

// String returns the verdict in one line: "exact", "within rounding (…)", or a description of the difference.
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

// Sizes describes the largest error of a result, the error that is allowed, and the largest magnitude of the values:
// "largest error 2, allowed 9, values up to 410".
func (v Verdict) Sizes() string {
	return fmt.Sprintf("largest error %.3g, allowed %.3g, values up to %.3g", v.Error, v.Allowed, v.Largest)
}
