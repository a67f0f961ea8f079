// Package clock implements vector clocks with many components. The clocks of an execution share memory, because most
// components are equal in most of its clocks.
package clock

// PageSize is the number of components that share a page.
const PageSize = 32

type page [PageSize]int32

// Clock holds, for each component (a thread of the execution), the number of its steps that precede a given point of
// the execution. Clocks are immutable and share pages.
type Clock []*page

// At returns the number of steps of component i that precede the point.
func (c Clock) At(i int32) int32 {
	if p := int(i) / PageSize; p < len(c) && c[p] != nil {
		return c[p][i%PageSize]
	}
	return 0
}

// With returns a clock that has the entry t for component i and otherwise the entries of c.
func (c Clock) With(i, t int32) Clock {
	if c.At(i) == t {
		return c
	}
	n := int(i) / PageSize
	out := make(Clock, max(len(c), n+1))
	copy(out, c)
	q := new(page)
	if out[n] != nil {
		*q = *out[n]
	}
	q[i%PageSize] = t
	out[n] = q
	return out
}

// Join returns the component-wise maximum of a and b.
func Join(a, b Clock) Clock {
	if len(b) > len(a) {
		a, b = b, a
	}
	if len(b) == 0 || &a[0] == &b[0] && len(a) == len(b) {
		return a
	}
	var out Clock
	for i, q := range b {
		m := joinPages(a[i], q)
		if m != a[i] && out == nil {
			out = make(Clock, len(a))
			copy(out, a)
		}
		if out != nil {
			out[i] = m
		}
	}
	if out == nil {
		return a
	}
	return out
}

func joinPages(a, b *page) *page {
	if a == b || b == nil {
		return a
	}
	if a == nil {
		return b
	}
	overA, overB := false, false
	for i := range a {
		overA = overA || b[i] > a[i]
		overB = overB || a[i] > b[i]
	}
	switch {
	case !overA:
		return a
	case !overB:
		return b
	}
	out := new(page)
	for i := range a {
		out[i] = max(a[i], b[i])
	}
	return out
}

// Meet returns the component-wise minimum of a and b.
func Meet(a, b Clock) Clock {
	out := make(Clock, min(len(a), len(b)))
	for i := range out {
		if a[i] == b[i] {
			out[i] = a[i]
			continue
		}
		if a[i] == nil || b[i] == nil {
			continue
		}
		q := new(page)
		for j := range q {
			q[j] = min(a[i][j], b[i][j])
		}
		out[i] = q
	}
	return out
}
