package comm

import (
	"slices"

	"hocket.example/hocket/internal/device"
)

// Tables and programs that name retired algorithms stay readable: another says that it was Formerly of that name.

// current returns t, or where its algorithm is retired the default launch of the one of known that does its work.
func current(t device.Tuning, known []device.Algorithm) device.Tuning {
	if i := slices.IndexFunc(known, func(a device.Algorithm) bool { return slices.Contains(a.Formerly, t.Algo) }); i >= 0 {
		return device.Tuning{Algo: known[i].Name}
	}
	return t
}

// retire drops what a table has of retired algorithms. A bracket that has nothing else gets
// their successors, as does what is fixed; the times are not theirs.
func (t *Table) retire(known []device.Algorithm) {
	gone := func(x Timed) bool { return current(x.Tuning, known).Algo != x.Algo }
	for i := range t.Entries {
		e := &t.Entries[i]
		if e.Fixed != nil {
			fixed := current(*e.Fixed, known)
			e.Fixed = &fixed
		}
		for j := range e.Brackets {
			b := &e.Brackets[j]
			if !slices.ContainsFunc(b.Best, func(x Timed) bool { return !gone(x) }) {
				for k := range b.Best {
					b.Best[k] = Timed{Tuning: current(b.Best[k].Tuning, known)}
				}
			}
			b.Best = slices.DeleteFunc(b.Best, gone)
		}
	}
}
