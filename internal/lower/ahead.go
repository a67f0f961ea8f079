package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file moves the puts of an exchanged gather up in the text, so that its blocks are sent while the GEMM of the
// preceding gather is still computed. It does this where the rank's own block is already available at that point. The
// position of the puts in the text determines when they run, because a stream that waits for main waits only for the
// statements above the wait. Puts are moved up by one gather only: each gather that is sent early needs memory for
// blocks that no operation uses yet.

// departure holds the statements that send the whole blocks of an exchanged gather, and the statements that compute
// with the received blocks.
type departure struct {
	// leaves holds the statements that send the rank's own block. puts is the statement among them that puts the
	// block into the peers' buffers.
	leaves []*ir.Stmt
	puts   *ir.Stmt
	// compute holds the statements that compute with one block after the other. whole returns statements that compute
	// with all blocks at once, and the statements that must run before these, concurrently with the puts. whole is
	// nil if the blocks cannot be computed with at once.
	compute []*ir.Stmt
	whole   func() (side, stmts []*ir.Stmt)
	asOne   bool // whole stands in place of compute
}

// canGoAhead reports whether r's blocks can be sent while the GEMM of the preceding gather is computed: the value that
// r gathers must be available before that GEMM, and no barrier may be between the two.
func (w *walker) canGoAhead(r *region) bool {
	if w.departed == nil || r.Refused[Exchange] != "" || !slices.Equal(w.departed.Axes, r.Axes) {
		return false
	}
	from, to := w.finder.at[w.departed.comm], w.finder.at[r.comm]
	d := w.finder.def[r.comm.Args[0].Name]
	return from < to && (d == nil || w.finder.at[d] < from) &&
		!slices.ContainsFunc(w.finder.stmts[from:to], func(s *ir.Stmt) bool { return s.Op == ir.OpBarrier })
}

// ahead moves up the departures of the gathers in stmts whose strategy has Ahead set, and records which departures
// were moved.
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

// mayPass reports whether stmts can be moved above others. They must not use values that others define, and others
// must not contain a barrier, because programs use barriers to determine when work begins.
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

// moveTo moves the statements that send d's blocks up to stmts[to]. This position is after the statements that send
// the blocks of the preceding gather, and before the statements that compute with those blocks. d's blocks are sent
// after the blocks of the preceding gather, because those are needed first.
func (d *departure) moveTo(stmts []*ir.Stmt, to int, before *departure) []*ir.Stmt {
	from := slices.Index(stmts, d.leaves[0])
	between, behind := stmts[to:from], stmts[from+len(d.leaves):]
	turn := waitStream(d.puts.Pos, before.puts.Args[0].Name)
	if stmts[to-1] == before.puts {
		// d's blocks are sent immediately after the blocks that the preceding gather waits for. When that gather's
		// GEMM has been computed, only some of d's blocks may have arrived.
		d.puts.Body.Stmts[0] = turn // main has done nothing since
		return slices.Concat(stmts[:to], d.leaves, between, behind)
	}
	d.puts.Body.Stmts = slices.Insert(d.puts.Body.Stmts, 1, turn)
	if d.whole != nil {
		// d's blocks are sent during a whole gather and the GEMM that uses it. One product with all blocks is then
		// faster than one product for each block.
		side, whole := d.whole()
		d.asOne = true
		d.leaves = append(d.leaves, side...)
		at := slices.Index(behind, d.compute[0])
		behind = slices.Concat(behind[:at], whole, behind[at+len(d.compute):])
	}
	return slices.Concat(stmts[:to], d.leaves, between, behind)
}
