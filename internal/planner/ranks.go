package planner

import (
	"slices"

	"hocket.example/hocket/ir"

	"hocket.example/hocket/internal/plan"
)

// Ranks unrolls one rank at a time, for callers that do not need a plan for all ranks. Buffers, counters and sites
// (source statements of commands) have the same indices on all ranks that execute the same path through the text.
type Ranks struct {
	w    *world
	last int // the rank that was unrolled last; the memory of its commands is reused
}

// NewRanks returns the Ranks of a bound function. No rank is unrolled yet.
func NewRanks(b *ir.Bound, opts Options) (*Ranks, error) {
	if err := requireExplicit(b); err != nil {
		return nil, err
	}
	if opts.Stats == nil {
		opts.Stats = new(Stats)
	}
	w := newWorld(b, opts.Stats)
	w.stop = opts.Stop
	return &Ranks{w: w}, nil
}

// Plan returns the parts of the plan that the ranks unrolled so far share: sites, buffers without offsets, counters,
// and inputs and outputs without blocks.
func (r *Ranks) Plan() *plan.Plan { return r.w.p }

// Unroll returns the commands of a rank. The next call reuses the returned slices.
func (r *Ranks) Unroll(rank int) (*plan.Rank, error) {
	w := r.w
	p := w.p
	*w = world{
		b: w.b, p: p, stats: w.stats, mostCommands: w.mostCommands, stop: w.stop, asked: w.asked,
		statements: w.statements,
		cmds:       w.cmds, sites: w.sites, launches: w.launches, paths: w.paths, buffers: w.buffers,
		counters: w.counters,
		raisers:  w.raisers,
		tails:    w.tails[:0], slotFrom: w.slotFrom[:0], teams: w.teams, teamIDs: w.teamIDs, seats: w.seats,
		laneIDs: map[laneKey]int32{},
	}
	for _, t := range w.teams {
		for m := range t.issued {
			t.issued[m] = t.issued[m][:0]
		}
	}
	w.cmds[r.last], w.cmds[rank], r.last = nil, w.cmds[r.last][:0], rank
	p.Streams, p.Main, p.Events = p.Streams[:0], p.Main[:0], 0
	for i := range p.Inputs {
		p.Inputs[i].Parts = slices.Repeat([]plan.IOPart{{Ref: plan.Absent()}}, rank)
	}
	for i := range p.Outputs {
		p.Outputs[i].Parts = p.Outputs[i].Parts[:0]
	}
	if err := w.unroll(rank); err != nil {
		return nil, err
	}
	return w.gather(rank), nil
}

// gather returns the unrolled rank, whose parts are in tables of the world.
func (w *world) gather(rank int) *plan.Rank {
	p := w.p
	out := &plan.Rank{Rank: int32(rank), Streams: p.Streams, Events: p.Events, Cmds: w.cmds[rank]}
	for _, io := range p.Inputs {
		out.Inputs = append(out.Inputs, io.Parts[rank].Ref)
	}
	for _, io := range p.Outputs {
		out.Outputs = append(out.Outputs, io.Parts[0].Ref)
	}
	for _, t := range w.teams {
		for m := range t.issued {
			for _, is := range t.issued[m] {
				out.Cmds[is.cmd].Coll = int32(len(out.Joins))
				out.Joins = append(out.Joins, plan.Join{Team: t.ranks, Coll: is.coll, Part: is.part})
			}
		}
	}
	for _, l := range w.lanes {
		for _, e := range [][]endpoint{l.sends, l.recvs} {
			for i := range e {
				peer := l.key.src
				if out.Cmds[e[i].cmd].Group[e[i].entry].Send {
					peer = l.key.dst
				}
				out.Cmds[e[i].cmd].Group[e[i].entry].Pair = int32(len(out.Ends))
				out.Ends = append(out.Ends, plan.End{Axis: l.key.axis, Peer: peer, Ref: e[i].ref})
			}
		}
	}
	return out
}
