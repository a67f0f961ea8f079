package tune

import (
	"context"
	"math"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
)

// On GPUs of the model that the shipped table was measured on, a quick tuning does
// not look for what is fastest: it looks at some sizes whether that table is right
// here. Where it is, its brackets stay, which are finer than a quick tuning's. Where
// another of those in front is the fastest the sizes around are that one's, and where it
// cannot be told from them who is, all algorithms are measured. If that is so at most
// sizes, or a result of what the table names is wrong, nothing of it is kept.

// Of the shipped table.
const (
	// distinct is how many times as long as the fastest a tuning took that is not
	// measured again: more than times differ from box to box, and from day to day.
	distinct = 1.15
	// confirming is how many times as long as the fastest here the table's first may
	// Take and still be right.
	confirming = 1.05
)

// upon is the shipped entry that a kind is tuned upon; nil for none.
func (u *tuner) upon(k kind) *comm.Entry {
	if u.Full || u.Sizes != nil || !u.shipped.Of(u.identity) {
		return nil
	}
	return u.shipped.Entry(k.entry())
}

// contenders are those of a bracket that are to be measured, the first one first, and
// those that are known to be slower, or to come behind one that is. It returns none
// for a bracket that was not measured.
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

// toConfirm lists what has to be measured of a call to know whether an entry is right
// at its size; nil where the entry does not know itself. At the largest size of a kind that
// has the vendor's libraries, which may be others on this machine.
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

// confirm measures at a call's size what an entry has in front. It is right there if
// its first is as fast as any; and where none of those that it has as slower would have
// been faster, nothing else need be measured to know who is.
func (u *tuner) confirm(ctx context.Context, a *contest.Arena, k kind, c contest.Call, e *comm.Entry) (m measured, err error) {
	m.call = c
	list := u.toConfirm(a, k, c, e)
	if list == nil {
		return m, nil
	}
	got, err := u.try(ctx, a, c, inTurn(a.Dispatch, list), confirmRounds(c))
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

// confirmRounds are fewer where times hardly differ from round to round.
func confirmRounds(c contest.Call) int {
	if c.Bytes >= 16<<20 {
		return 1
	}
	return tuneRounds
}

// inTurn has libraries first: their communicators are made while kernels are compiled.
func inTurn(d *comm.Dispatch, list []device.Tuning) []device.Tuning {
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

// entryUpon is an entry as shipped but for what was measured, at ascending sizes.
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

// retime puts the times measured here into a bracket.
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

// splice puts b, for sizes above lo, in the place of what ascending brackets say there.
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

// mostlyKnown reports whether at half of the sizes nothing else had to be measured: else
// the shipped table is of another machine than its name says.
func mostlyKnown(list []measured) bool {
	n := 0
	for _, m := range list {
		if m.known {
			n++
		}
	}
	return 2*n >= len(list)
}

// anyWrong reports whether a result of an algorithm that an entry lists was wrong.
func (u *tuner) anyWrong(e *comm.Entry) bool {
	return slices.ContainsFunc(e.Brackets, func(b comm.Bracket) bool {
		return slices.ContainsFunc(b.Best, func(x comm.Timed) bool { return u.wrongs[x.Algo] })
	})
}
