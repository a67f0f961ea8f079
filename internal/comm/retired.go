package comm

import (
	"slices"

	"hocket.example/hocket/internal/device"
)

// Tables and programs that name retired algorithms remain readable: the algorithm that replaces a retired algorithm
// lists the retired name in device.Algorithm.Formerly.

// current returns t. If t names a retired algorithm, it returns the default tuning of the algorithm in known that
// replaces it.
func current(t device.Tuning, known []device.Algorithm) device.Tuning {
	if i := slices.IndexFunc(known, func(a device.Algorithm) bool { return slices.Contains(a.Formerly, t.Algo) }); i >= 0 {
		return device.Tuning{Algo: known[i].Name}
	}
	return t
}

// retire replaces retired algorithms in a table by the algorithms that replace them. In a bracket (a range of message
// sizes) that would become empty, it lists the replacements without times, because the times were measured with the
// retired algorithms. It also replaces Entry.Fixed.
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
