package comm

import (
	"slices"

	"hocket.example/hocket/internal/device"
)

// retired maps algorithms that are gone to those that do their work now. Tables and programs
// that name them stay readable.
var retired = map[string]string{
	"move-mixed":    "move-push",
	"move-push-sum": "move-pull",
	"nccl-window":   "nccl",
}

// current returns t, or its successor's default launch where its algorithm is retired.
func current(t device.Tuning) device.Tuning {
	if to, gone := retired[t.Algo]; gone {
		return device.Tuning{Algo: to}
	}
	return t
}

// retire drops what a table has of retired algorithms. A bracket that has nothing else gets
// their successors, as does what is fixed; the times are not theirs.
func (t *Table) retire() {
	gone := func(x Timed) bool { return retired[x.Algo] != "" }
	for i := range t.Entries {
		e := &t.Entries[i]
		if e.Fixed != nil {
			fixed := current(*e.Fixed)
			e.Fixed = &fixed
		}
		for j := range e.Brackets {
			b := &e.Brackets[j]
			if !slices.ContainsFunc(b.Best, func(x Timed) bool { return !gone(x) }) {
				for k := range b.Best {
					b.Best[k] = Timed{Tuning: current(b.Best[k].Tuning)}
				}
			}
			b.Best = slices.DeleteFunc(b.Best, gone)
		}
	}
}
