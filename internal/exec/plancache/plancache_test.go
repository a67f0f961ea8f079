package plancache

import (
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
)

// TestPlanCacheBeyond checks that the least recently used plans of a model are removed until the remaining plans hold
// no more than the limit, but never the last plan or a running plan.
func TestPlanCacheBeyond(t *testing.T) {
	a, b := NewOwner(nil), NewOwner(nil)
	plan := func(o *Owner, busy bool) *Loaded[int] {
		return &Loaded[int]{owner: o, busy: busy, held: device.Held{Device: 9, Host: 1}}
	}
	for _, c := range []struct {
		name  string
		plans []*Loaded[int]
		bound int64
		gone  []int
	}{
		{"within", []*Loaded[int]{plan(a, false), plan(a, true)}, 20, nil},
		{"one too many", []*Loaded[int]{plan(a, false), plan(a, false), plan(a, true)}, 20, []int{0}},
		{"another's", []*Loaded[int]{plan(b, false), plan(a, false), plan(b, false), plan(a, true)}, 10, []int{1}},
		{"the last", []*Loaded[int]{plan(a, false), plan(a, false)}, 0, []int{0}},
		{"the last, which runs", []*Loaded[int]{plan(a, false), plan(a, true)}, 0, []int{0}},
		{"alone", []*Loaded[int]{plan(a, true), plan(b, false)}, 0, nil},
		{"those that run", []*Loaded[int]{plan(a, true), plan(a, false), plan(a, true)}, 0, []int{1}},
	} {
		s := New[int](t.Context())
		s.plans = slices.Clone(c.plans)
		var want, left []*Loaded[int]
		for i, l := range c.plans {
			if slices.Contains(c.gone, i) {
				want = append(want, l)
			} else {
				left = append(left, l)
			}
		}
		if got := s.RemoveBeyond(a, c.bound, false); !slices.Equal(got, want) || !slices.Equal(s.plans, left) {
			t.Errorf("%s: %d go and %d stay, want %d and %d", c.name, len(got), len(s.plans), len(want), len(left))
		}
	}
}
