package account

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/trace/flight"
)

// pair is a sender and a receiver, by their numbers in the job.
type pair struct{ from, to int }

// transfers holds the sends and the receives of a pair, both in the order of the calls.
type transfers struct{ sends, recvs []*flight.Entry }

// pairOf returns the sender and the receiver of a send or receive. pairOf returns false if the two ranks are unknown.
func (f *flights) pairOf(e *flight.Entry) (pair, bool) {
	if e.From < 0 || e.To < 0 {
		return pair{}, false
	}
	members := f.members[e.Group]
	switch {
	case members == nil:
		return pair{e.From, e.To}, true
	case e.From >= len(members) || e.To >= len(members):
		return pair{}, false
	}
	return pair{members[e.From], members[e.To]}, true
}

// pointToPoint names a send or a receive of a rank, with its group.
func (f *flights) pointToPoint(rank int, e *flight.Entry) string {
	text := fmt.Sprintf("%s of rank %d", e.Op, rank)
	if p, known := f.pairOf(e); known && e.Op == "recv" {
		text += fmt.Sprintf(" from rank %d", p.from)
	} else if known {
		text += fmt.Sprintf(" to rank %d", p.to)
	}
	return fmt.Sprintf("%s in group %q", text, f.names[e.Group])
}

// pairs reports the sends and receives of a group that have no partner, differ from their partner, or are not complete.
// The n-th send from one rank to another belongs to the n-th receive. If the records of the two ranks do not begin with
// their first calls, only the first send or receive of each kind that is not complete is reported, without a partner.
func (f *flights) pairs(key string) {
	all := map[pair]*transfers{}
	whole, open := map[int]bool{}, map[string]bool{}
	for _, r := range f.records {
		whole[r.Rank] = r.Whole
	}
	in := fmt.Sprintf(" in group %q", f.names[key])
	for _, e := range f.byGroup[key] {
		if !e.P2P {
			continue
		}
		f.r.pointToPoint++
		p, known := f.pairOf(e.Entry)
		alone := ""
		switch other := p.from + p.to - e.rank; {
		case !known || e.rank != p.from && e.Op == "send" || e.rank != p.to && e.Op == "recv":
			alone = "its partner is unknown"
		case !f.given[other]:
			alone = fmt.Sprintf("rank %d gave no record", other)
		case f.silent[other]:
			alone = fmt.Sprintf("the record of rank %d has no entries", other)
		case !whole[e.rank] || !whole[other]:
			alone = "the records of the two ranks do not begin with their first calls, so its partner is unknown"
		}
		if alone != "" {
			if name := f.pointToPoint(e.rank, e.Entry); e.State != "completed" && !open[name] {
				open[name] = true
				f.problem("open", e.rank, "%s: it is not complete; %s%s", name, alone, stack(e.rank, e.Entry))
			}
			continue
		}
		t := all[p]
		if t == nil {
			t = &transfers{}
			all[p] = t
		}
		if e.Op == "recv" {
			t.recvs = append(t.recvs, e.Entry)
		} else {
			t.sends = append(t.sends, e.Entry)
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(all), func(x, y pair) int {
		return cmp.Or(cmp.Compare(x.from, y.from), cmp.Compare(x.to, y.to))
	}) {
		f.pair(p, all[p], all[pair{p.to, p.from}], in)
	}
}

// next returns the first call without a partner, or nil if there is no such call or if it is complete.
func next(calls, partners []*flight.Entry) *flight.Entry {
	if n := len(partners); n < len(calls) && calls[n].State != "completed" {
		return calls[n]
	}
	return nil
}

// pair compares the sends of one rank to another with the receives. back has the calls in the opposite direction, or is
// nil.
func (f *flights) pair(p pair, t, back *transfers, in string) {
	n := min(len(t.sends), len(t.recvs))
	hung := false
	for k := range n {
		s, r := t.sends[k], t.recvs[k]
		where := fmt.Sprintf("send %d of rank %d to rank %d%s", k+1, p.from, p.to, in)
		switch {
		case s.DType != r.DType:
			f.problem("dtype", p.to, "%s: rank %d sends %s, rank %d receives %s%s", where, p.from, s.DType, p.to,
				r.DType, stack(p.to, r))
		case s.In >= 0 && r.Out >= 0 && s.In != r.Out:
			f.problem("size", p.to, "%s: rank %d sends %s, rank %d receives %d%s", where, p.from,
				plural(int(s.In), "element"), p.to, r.Out, stack(p.to, r))
		case (s.State != "completed" || r.State != "completed") && !hung:
			hung = true
			f.problem("open", p.from, "%s: both ranks have called it, and it is not complete%s", where,
				stack(p.from, s))
		}
	}
	send, recv := next(t.sends, t.recvs), next(t.recvs, t.sends)
	if back == nil {
		back = &transfers{}
	}
	toBack, fromBack := next(back.sends, back.recvs), next(back.recvs, back.sends)
	switch {
	case send != nil && toBack != nil && p.from < p.to:
		f.problem("order", p.from, "ranks %d and %d send to each other%s, and neither has called the recv%s%s", p.from,
			p.to, in, stack(p.from, send), stack(p.to, toBack))
	case recv != nil && fromBack != nil && p.from < p.to:
		f.problem("order", p.from, "ranks %d and %d receive from each other%s, and neither has called the send%s%s",
			p.from, p.to, in, stack(p.from, fromBack), stack(p.to, recv))
	case send != nil && toBack == nil:
		f.problem("missing", p.to, "send %d of rank %d to rank %d%s: rank %d has not called the recv; its last call is %s",
			n+1, p.from, p.to, in, p.to, f.last(p.to))
	case recv != nil && fromBack == nil:
		f.problem("missing", p.from, "recv %d of rank %d from rank %d%s: rank %d has not called the send; its last call is %s",
			n+1, p.to, p.from, in, p.from, f.last(p.from))
	}
}
