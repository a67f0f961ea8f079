package tune

import (
	"context"
	"math"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
)

// If the machine's GPUs are of the model on which the shipped table was measured, a quick tuning does not search for
// the fastest algorithms. A quick tuning then only checks at some sizes whether the first tuning of the shipped table
// is the fastest. If this tuning is the fastest, the size bracket of the table (an interval of message sizes) is kept,
// because the table's brackets are finer than those of a quick tuning. If another one of the table's best tunings is
// the fastest at a size, that tuning is entered for the neighbouring sizes. If it is not known that one of the table's
// tunings is the fastest, all algorithms are measured. The shipped entry is not used at all if this is necessary at
// most sizes, or if an algorithm in the table has a wrong result.

// These are ratios of two times.
const (
	// distinct selects the tunings that are measured again: those whose time in the shipped table is at most distinct
	// times the shortest time. distinct is larger than the variation between machines and between days.
	distinct = 1.15
	// confirming decides whether the first tuning in the shipped table is confirmed: its time on this machine must be
	// at most confirming times the shortest time.
	confirming = 1.05
)

// upon returns the shipped entry from which the tuning of a kind starts; nil if there is none.
func (u *tuner) upon(k kind) *comm.Entry {
	if u.Full || u.Sizes != nil || !u.shipped.Of(u.identity) {
		return nil
	}
	return u.shipped.Entry(k.entry())
}

// contenders divides the tunings of a size bracket into two lists. The list near has the tunings to measure, the best
// first. The list slower has all tunings from the first that is known to be slower. Both lists are empty for a size
// bracket that was not measured.
func contenders(b *comm.Bracket) (near []device.Tuning, slower []comm.Timed) {
	least := math.Inf(1)
	for _, x := range b.Best {
		if x.Micros > 0 {
			least = min(least, x.Micros)
		}
	}
	if math.IsInf(least, 1) {
		return nil, nil
	}
	for i, x := range b.Best {
		if x.Micros > distinct*least {
			return near, b.Best[i:]
		}
		near = append(near, x.Tuning)
	}
	return near, nil
}

// toConfirm lists the tunings that must be measured at the size of a call to check an entry. toConfirm returns nil if
// the entry has no measurement at that size. At the largest size of a kind, the list includes the vendor's libraries,
// because their versions may differ on this machine.
func (u *tuner) toConfirm(a *contest.Arena, k kind, c contest.Call, e *comm.Entry) []device.Tuning {
	near, _ := contenders(e.Bracket(c.Bytes))
	calls := u.calls(k)
	if near != nil && c == calls[len(calls)-1] {
		for _, t := range contest.NamesOnly(a.Dispatch.Libraries()) {
			if !slices.Contains(near, t) {
				near = append(near, t)
			}
		}
	}
	return near
}

// confirm measures the best tunings of an entry at the size of a call. In the result, known is set if none of the
// tunings that the entry lists as slower can be the fastest, so that no other tuning need be measured. The field
// confirmed is set if, in addition, the entry's first tuning is as fast as any.
func (u *tuner) confirm(ctx context.Context, a *contest.Arena, k kind, c contest.Call, e *comm.Entry) (m measured, err error) {
	m.call = c
	list := u.toConfirm(a, k, c, e)
	if list == nil {
		return m, nil
	}
	got, err := u.try(ctx, a, c, librariesFirst(a.Dispatch, list), confirmRounds(c))
	if err != nil || len(got) == 0 {
		return m, err
	}
	got = within(got, math.Inf(1))
	_, slower := contenders(e.Bracket(c.Bytes))
	m.known = !slices.ContainsFunc(slower, func(x comm.Timed) bool { return x.Micros > 0 && x.Micros < got[0].Micros })
	i := slices.IndexFunc(got, func(x timed) bool { return x.Tuning == list[0] })
	m.known = m.known && i >= 0
	m.confirmed = m.known && got[i].Micros <= confirming*got[0].Micros
	m.best = ranked(got, u.blocks(a))
	for _, x := range slower {
		if !slices.ContainsFunc(m.best, func(o timed) bool { return o.Algo == x.Algo }) {
			m.best = append(m.best, timed{x, !a.Dispatch.Info(x.Algo).FreeOrder})
		}
	}
	return m, nil
}

// confirmRounds returns the number of rounds in which a call is measured. Large calls need only one round, because
// their times hardly vary.
func confirmRounds(c contest.Call) int {
	if c.Bytes >= 16<<20 {
		return 1
	}
	return tuneRounds
}

// librariesFirst moves libraries to the front of the list, so that they create their communicators while kernels
// are compiled.
func librariesFirst(d *comm.Dispatch, list []device.Tuning) []device.Tuning {
	behind := func(t device.Tuning) int {
		if d.Info(t.Algo).Library {
			return 0
		}
		return 1
	}
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(x, y device.Tuning) int { return behind(x) - behind(y) })
	return list
}

// entryUpon returns a copy of the shipped entry, updated by the measurements in list. The list is sorted by size.
func entryUpon(shipped *comm.Entry, list []measured) comm.Entry {
	e := shipped.Clone()
	e.Shipped, e.Full = false, false
	for i, m := range list {
		e.Checked = append(e.Checked, m.call.Bytes)
		if m.confirmed {
			retime(e.Bracket(m.call.Bytes), m)
			continue
		}
		var lo, hi int64
		if i > 0 {
			lo = halfway(list[i-1], m)
		}
		if i < len(list)-1 {
			hi = halfway(m, list[i+1])
		}
		e.Brackets = splice(e.Brackets, lo, comm.Bracket{UpTo: hi, At: m.call.Bytes, Best: bestOf(m.best)})
	}
	return e
}

// retime replaces the times in a size bracket by the times measured on this machine.
func retime(b *comm.Bracket, m measured) {
	for i := range b.Best {
		for _, x := range m.best {
			if x.Tuning == b.Best[i].Tuning {
				b.Best[i].Micros = rounded(x.Micros)
				if i == 0 {
					b.At = m.call.Bytes
				}
			}
		}
	}
}

// splice inserts the size bracket b, for sizes above lo, into a list of ascending size brackets. splice replaces the
// parts of existing brackets that cover these sizes.
func splice(list []comm.Bracket, lo int64, b comm.Bracket) (out []comm.Bracket) {
	end := int64(0)
	for _, x := range list {
		if x.UpTo == 0 || x.UpTo > lo {
			if x.UpTo = lo; lo > end {
				out = append(out, x)
			}
			break
		}
		out, end = append(out, x), x.UpTo
	}
	out = append(out, b)
	for _, x := range list {
		if b.UpTo != 0 && (x.UpTo == 0 || x.UpTo > b.UpTo) {
			out = append(out, x)
		}
	}
	return out
}

// mostlyKnown reports whether, at half of the sizes or more, only tunings of the shipped table had to be measured. If
// mostlyKnown is false, the shipped table does not fit this machine, although it is for GPUs with the same name.
func mostlyKnown(list []measured) bool {
	n := 0
	for _, m := range list {
		if m.known {
			n++
		}
	}
	return 2*n >= len(list)
}

// anyWrong reports whether an algorithm that an entry lists had a wrong result.
func (u *tuner) anyWrong(e *comm.Entry) bool {
	return slices.ContainsFunc(e.Brackets, func(b comm.Bracket) bool {
		return slices.ContainsFunc(b.Best, func(x comm.Timed) bool { return u.wrongs[x.Algo] })
	})
}
