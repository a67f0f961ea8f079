package hocket

import (
	"slices"
	"testing"

	"hocket.example/hocket/internal/device"
)

// TestPlanCacheBeyond wants the plans of one model that were used least recently to go, until
// what is left holds no more than the bound, but never the last one or one that runs.
func TestPlanCacheBeyond(t *testing.T) {
	a, b := &owner{evicted: map[string]bool{}}, &owner{}
	plan := func(o *owner, busy bool) *loaded {
		return &loaded{owner: o, busy: busy, held: device.Held{Device: 9, Host: 1}}
	}
	for _, c := range []struct {
		name  string
		plans []*loaded
		bound int64
		gone  []int
	}{
		{"within", []*loaded{plan(a, false), plan(a, true)}, 20, nil},
		{"one too many", []*loaded{plan(a, false), plan(a, false), plan(a, true)}, 20, []int{0}},
		{"another's", []*loaded{plan(b, false), plan(a, false), plan(b, false), plan(a, true)}, 10, []int{1}},
		{"the last", []*loaded{plan(a, false), plan(a, false)}, 0, []int{0}},
		{"the last, which runs", []*loaded{plan(a, false), plan(a, true)}, 0, []int{0}},
		{"alone", []*loaded{plan(a, true), plan(b, false)}, 0, nil},
		{"those that run", []*loaded{plan(a, true), plan(a, false), plan(a, true)}, 0, []int{1}},
	} {
		s := newPlanCache(t.Context())
		s.plans = slices.Clone(c.plans)
		var want, left []*loaded
		for i, l := range c.plans {
			if slices.Contains(c.gone, i) {
				want = append(want, l)
			} else {
				left = append(left, l)
			}
		}
		if got := s.beyond(a, c.bound, false); !slices.Equal(got, want) || !slices.Equal(s.plans, left) {
			t.Errorf("%s: %d go and %d stay, want %d and %d", c.name, len(got), len(s.plans), len(want), len(left))
		}
	}
}
