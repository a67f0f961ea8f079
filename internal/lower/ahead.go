package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file has the blocks of an exchanged gather leave while the one before it is
// still computed, where the own block is there by then: they come meanwhile. The
// text says when, by where the puts stand, since a stream that waits for main
// waits for what stands above. They move by one gather only: each that is ahead
// takes room for blocks that nobody needs yet.

// departure is how the blocks of an exchanged gather leave, whole, and what is
// computed with those that come.
type departure struct {
	// leaves are the statements that send the own block off, puts among them the one
	// that puts it.
	leaves []*ir.Stmt
	puts   *ir.Stmt
	// compute takes the blocks in turn. whole writes what takes all as one, and what
	// comes before it beside the puts; nil where that cannot be.
	compute []*ir.Stmt
	whole   func() (side, stmts []*ir.Stmt)
	asOne   bool // whole stands in place of compute
}

// canGoAhead reports whether r's blocks can leave while the gather before it is
// computed: what they are of is there before that, and no barrier is between.
func (w *walker) canGoAhead(r *region) bool {
	if w.departed == nil || r.Refused[Exchange] != "" || !slices.Equal(w.departed.Axes, r.Axes) {
		return false
	}
	from, to := w.finder.at[w.departed.comm], w.finder.at[r.comm]
	d := w.finder.def[r.comm.Args[0].Name]
	return from < to && (d == nil || w.finder.at[d] < from) &&
		!slices.ContainsFunc(w.finder.stmts[from:to], func(s *ir.Stmt) bool { return s.Op == ir.OpBarrier })
}

// ahead moves up the departures of those gathers in a block that are to go ahead,
// and records which do.
func (o *overlapper) ahead(stmts []*ir.Stmt) []*ir.Stmt {
	var gathers []*exchanged
	for _, s := range stmts {
		for _, x := range o.exchanges {
			if x.departs != nil && x.first == s {
				gathers = append(gathers, x)
			}
		}
	}
	for i := 1; i < len(gathers); i++ {
		before, x := gathers[i-1], gathers[i]
		leaves := before.departs.leaves
		to := slices.Index(stmts, leaves[len(leaves)-1]) + 1
		if i > 1 {
			to = max(to, slices.Index(stmts, gathers[i-2].last)+1)
		}
		if x.ahead && slices.Equal(before.axes, x.axes) && mayPass(x.departs.leaves, stmts[to:slices.Index(stmts, x.first)]) {
			stmts, x.behind = x.departs.moveTo(stmts, to, before.departs), before
		}
	}
	for _, x := range gathers {
		if x.ahead {
			o.settle(x)
		}
	}
	return stmts
}

// mayPass reports whether statements can stand above others: they use nothing
// that those make, and pass no barrier, by which programs say what begins when.
func mayPass(stmts, others []*ir.Stmt) bool {
	made := map[string]bool{}
	for _, s := range others {
		if s.Op == ir.OpBarrier {
			return false
		}
		for _, r := range s.Results {
			made[r.Text] = true
		}
	}
	free := true
	for _, s := range stmts {
		mentions(s, func(name string) { free = free && !made[name] })
	}
	return free
}

// moveTo moves what sends d's blocks off up to stmts[to], which is behind where
// those of the gather before leave, and in front of what is computed with them. Its
// own leave behind those, which are needed first.
func (d *departure) moveTo(stmts []*ir.Stmt, to int, before *departure) []*ir.Stmt {
	from := slices.Index(stmts, d.leaves[0])
	between, behind := stmts[to:from], stmts[from+len(d.leaves):]
	turn := waitStream(d.puts.Pos, before.puts.Args[0].Name)
	if stmts[to-1] == before.puts {
		// They leave right behind those, which the gather before waits for; by the
		// time that it is computed only some may have come.
		d.puts.Body.Stmts[0] = turn // main has done nothing since
		return slices.Concat(stmts[:to], d.leaves, between, behind)
	}
	d.puts.Body.Stmts = slices.Insert(d.puts.Body.Stmts, 1, turn)
	if d.whole != nil {
		// They have the time of a whole gather and what is computed with it, and as
		// one product they take less than one by one.
		side, whole := d.whole()
		d.asOne = true
		d.leaves = append(d.leaves, side...)
		at := slices.Index(behind, d.compute[0])
		behind = slices.Concat(behind[:at], whole, behind[at+len(d.compute):])
	}
	return slices.Concat(stmts[:to], d.leaves, between, behind)
}
