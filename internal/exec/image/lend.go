package image

import (
	"maps"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
)

// Arena returns the memory of a rank that contains the results that may be lent. Only this image's commands use the
// arena.
func (im *Image) Arena(rank int) device.Memory { return im.memory.arenas[rank] }

// Lendable returns the names of results that the caller may read in place until the next run. A lendable result is
// dense, is in the arena, is the only input or output in its buffer, is not overwritten, and has no movable blocks. All
// processes return the same names.
func (im *Image) Lendable() (names []string) {
	bufs, movable := (&builder{im: im}).studyBuffers(), movableNames(im.Outputs, im.MovableOut)
	for o := range im.Outputs {
		io := &im.Outputs[o]
		fits := func(part plan.IOPart) bool {
			r := part.Ref
			return bufs[r.Buf].ios == 1 && r.Dense() && r.Bytes() > 0 && im.Plan.Buffers[r.Buf].Space == plan.Arena &&
				im.memory.lent[place{r.Rank, r.Buf}] == nil && stays(im.Plan, int32(o), r)
		}
		if !io.Inout && len(io.Parts) > 0 && !slices.Contains(movable, io.Name) &&
			!slices.ContainsFunc(io.Parts, func(part plan.IOPart) bool { return !fits(part) }) {
			names = append(names, io.Name)
		}
	}
	return names
}

// stays reports whether result o of a rank, which r refers to, is unchanged from the end of a run until the rank begins
// the next run. Two conditions must hold: no command writes to the result's bytes after the result is complete, and
// other ranks write to these bytes only after the rank has begun the run. A collective counts as a write by each member
// to its own operand. The write begins when the member begins the collective (rule S5).
func stays(p *plan.Plan, o int32, r plan.Ref) bool {
	behind, read := behindRank(p, r.Rank), false
	buf := &p.Buffers[r.Buf]
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if c.Kind == plan.Output && c.Rank == r.Rank && c.IO == o {
			read = true
			continue
		}
		_, writes := p.Accesses(c)
		for _, w := range writes {
			other := &p.Buffers[w.Buf]
			meets := w.Rank == r.Rank && other.Space == buf.Space && other.Offset < buf.Offset+buf.Bytes &&
				buf.Offset < other.Offset+other.Bytes
			if meets && (read || !behind[i]) {
				return false
			}
		}
	}
	return read
}

// element identifies an element of a rank's counter.
type element struct{ rank, counter, elem int32 }

// behindRank returns the commands that begin, in every run, only after the given rank has begun that run. They are the
// rank's own commands, and commands that wait for these through events and counters. A wait for a counter is considered
// only if commands of this kind issue all signals of a run to the counter. Otherwise signals for a later run might
// already have been issued.
func behindRank(p *plan.Plan, rank int32) []bool {
	behind := make([]bool, len(p.Cmds))
	raised := map[element]int64{} // number of signals of a run that commands after the rank's begin issue
	for known := map[element]int64(nil); known == nil || !maps.Equal(known, raised); {
		known, raised = raised, map[element]int64{}
		streams, events := make([]bool, len(p.Streams)), make([]bool, p.Events)
		for i := range p.Cmds {
			c := &p.Cmds[i]
			at := &streams[c.Stream]
			switch c.Kind {
			case plan.WaitEvent:
				*at = *at || events[c.Event]
			case plan.WaitCounter:
				ctr := &p.Counters[c.Counter]
				*at = *at || c.Value > 0 && known[element{c.Rank, c.Counter, c.Elem}] == ctr.PerRun[c.Rank*ctr.Len+c.Elem]
			}
			*at = *at || c.Rank == rank
			switch {
			case c.Kind == plan.Record:
				events[c.Event] = *at
			case c.Kind == plan.Signal && *at:
				raised[element{c.Peer, c.Counter, c.Elem}]++
			}
			behind[i] = *at
		}
	}
	return behind
}
