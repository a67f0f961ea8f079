package lower

import (
	"slices"

	"hocket.example/hocket/ir"
)

// This file moves the puts of a gather that is lowered with the strategy exchange up in the text. The blocks of the
// gather are then sent while the GEMM of the preceding gather is still computed. Moving the puts up requires that the
// rank's own block be available at the new position. The position of the puts in the text determines when they run,
// because a stream that waits for main waits only for the statements above the wait. Puts are moved up by one gather
// only, because each gather that is sent early needs additional memory for blocks that are not used yet.

// departure holds the statements of an exchanged gather that sends whole blocks: the statements that send the blocks,
// and the statements that compute with the received blocks.
type departure struct {
	// leaves holds the statements that send the rank's own block. puts is the statement in leaves that puts the block
	// into the peers' buffers.
	leaves []*ir.Stmt
	puts   *ir.Stmt
	// compute holds the statements that compute with one block after the other. whole returns the statements that
	// replace compute if one computation uses all blocks (stmts), and the statements that must run before them,
	// concurrently with the puts (side). whole is nil if one computation cannot use all blocks.
	compute []*ir.Stmt
	whole   func() (side, stmts []*ir.Stmt)
	asOne   bool // the statements that whole returned replace compute
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

// ahead moves up the statements that send the blocks of those gathers in stmts whose strategy has Ahead set, and
// records which gathers were moved.
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

// mayPass reports whether stmts can be moved above others. The statements in stmts must not use values that the
// statements in others define. The statements in others must not contain a barrier, because programs use barriers to
// control when work begins.
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

// moveTo moves the statements that send d's blocks up to stmts[to]. The position to is between the statements that send
// the blocks of the preceding gather and the statements that compute with the blocks of the preceding gather. The
// blocks of the preceding gather are sent first because they are needed first.
func (d *departure) moveTo(stmts []*ir.Stmt, to int, before *departure) []*ir.Stmt {
	from := slices.Index(stmts, d.leaves[0])
	between, behind := stmts[to:from], stmts[from+len(d.leaves):]
	turn := waitStream(d.puts.Pos, before.puts.Args[0].Name)
	if stmts[to-1] == before.puts {
		// d's blocks are sent immediately after the blocks of the preceding gather. When the GEMM of the preceding
		// gather ends, some of d's blocks may not have arrived yet.
		d.puts.Body.Stmts[0] = turn // no wait for main: the preceding puts waited for all of its work
		return slices.Concat(stmts[:to], d.leaves, between, behind)
	}
	d.puts.Body.Stmts = slices.Insert(d.puts.Body.Stmts, 1, turn)
	if d.whole != nil {
		// d's blocks are sent while a whole gather and its GEMM run, so all of them have arrived before they are
		// needed. One GEMM with all blocks is then faster than one GEMM for each block.
		side, whole := d.whole()
		d.asOne = true
		d.leaves = append(d.leaves, side...)
		at := slices.Index(behind, d.compute[0])
		behind = slices.Concat(behind[:at], whole, behind[at+len(d.compute):])
	}
	return slices.Concat(stmts[:to], d.leaves, between, behind)
}
