package schedule

const pageSize = 32

type page [pageSize]int32

// clock says for each component (block, engine, rank's stream) up to which of its steps something is ordered after it.
// Clocks are immutable and share pages, for most components of most clocks are equal.
type clock []*page

func (c clock) at(i int32) int32 {
	if p := int(i) / pageSize; p < len(c) && c[p] != nil {
		return c[p][i%pageSize]
	}
	return 0
}

func (c clock) with(i, t int32) clock {
	if c.at(i) == t {
		return c
	}
	n := int(i) / pageSize
	out := make(clock, max(len(c), n+1))
	copy(out, c)
	q := new(page)
	if out[n] != nil {
		*q = *out[n]
	}
	q[i%pageSize] = t
	out[n] = q
	return out
}

// join returns the least clock that is at least a and b.
func join(a, b clock) clock {
	if len(b) > len(a) {
		a, b = b, a
	}
	if len(b) == 0 || &a[0] == &b[0] && len(a) == len(b) {
		return a
	}
	var out clock
	for i, q := range b {
		m := joinPages(a[i], q)
		if m != a[i] && out == nil {
			out = make(clock, len(a))
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

// meet returns the greatest clock that is at most a and b.
func meet(a, b clock) clock {
	out := make(clock, min(len(a), len(b)))
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
