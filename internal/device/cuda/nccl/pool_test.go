package nccl

import "testing"

// TestPick checks that pick returns the groups of the same GPUs in order of how many kinds of calls they have
// exercised. Of groups with equal numbers of kinds, it returns the one that was returned to the pool last.
func TestPick(t *testing.T) {
	group := func(key string, kinds ...string) *Group {
		g := &Group{key: key, exercised: map[string]bool{}}
		for _, k := range kinds {
			g.exercised[k] = true
		}
		return g
	}
	old, most, late := group("[0 1]", "sum"), group("[0 1]", "sum", "gather"), group("[0 1]", "gather")
	other := group("[2 3]", "sum", "gather", "scatter")
	p := Pool{idle: []*Group{old, most, other, late}}
	for i, want := range []*Group{most, late, old, nil} {
		if got := p.pick("[0 1]"); got != want {
			t.Errorf("pick %d: %v, want %v", i, got, want)
		}
	}
	if len(p.idle) != 1 || p.idle[0] != other {
		t.Errorf("remaining idle groups: %v, want those of the other devices", p.idle)
	}
}
