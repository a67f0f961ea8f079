package exec

import (
	"errors"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
)

// moves lets enqueued runs use the caller's blocks in place, instead of copies in the arena. Kernels are prepared for
// fixed addresses, so each list of the blocks' addresses needs separate commands; a move holds both. Each process moves
// only blocks of its own ranks that no other rank uses, so processes need not coordinate their moves.
type moves struct {
	im       *image.Image
	enqueued *enqueued
	known    []*move // moves that issued runs have used, in the order of their first use
	inGraphs []*move // moves that captured or recorded runs use; they are released when the program is closed
	current  *move   // move of the run that was enqueued last; nil if that run copies its blocks
	missed   int     // number of runs that copied their blocks because the list known was full
	off      bool    // set if moves cannot be resolved
	asked    bool    // set after a run was enqueued
}

// move holds the addresses of a run's blocks, first of the inputs and then of the outputs, and the commands of runs
// with these addresses.
type move struct {
	at      []uintptr         // 0 for a block that is copied
	in, out []device.Memory   // the memory at these addresses; nil for a block that is copied
	cmds    *image.Relocation // nil until it is resolved
	graph   device.Graph      // graph that replays runs with these addresses; nil if these runs copy their blocks
	failed  bool              // set if the move could not be resolved
}

const (
	mostKnown  = 16  // largest number of moves in known
	mostGraphs = 4   // largest number of moves with recorded graphs
	mostMissed = 256 // number of runs that copy their blocks before the list known is cleared
)

// region is an interval of addresses that a run uses.
type region struct {
	at, end uintptr
	writes  bool
	block   int // index of the block if it is movable; otherwise -1
}

// meets returns the number of the given regions that share bytes with r.
func (r region) meets(all []region) (n int) {
	for _, o := range all {
		if r.at < o.end && o.at < r.end {
			n++
		}
	}
	return n
}

// addresses returns the addresses of a run's movable blocks; nil if none can be used. The address of a block is not
// used if its alignment is less than a buffer's. It is also not used if the block shares bytes with another block of
// the run and the run writes one of the two. The blocks are then copied, which keeps reads and writes separate.
func (m *moves) addresses(a Args) []uintptr {
	if m.off || len(a.InAt)+len(a.OutAt) == 0 {
		return nil
	}
	ins := len(m.im.MovableIn)
	regions := m.blocks(nil, m.im.Inputs, a.InAt, m.im.MovableIn, 0)
	outputs := len(regions)
	regions = m.blocks(regions, m.im.Outputs, a.OutAt, m.im.MovableOut, ins)
	for i := range regions[outputs:] {
		regions[outputs+i].writes = true
	}
	if !slices.ContainsFunc(regions, func(r region) bool { return r.block >= 0 }) {
		return nil
	}
	regions = m.tensors(m.tensors(regions, a.DeviceIn, false), a.DeviceOut, true)
	written := slices.DeleteFunc(slices.Clone(regions), func(r region) bool { return !r.writes })
	var at []uintptr
	for _, r := range regions {
		if r.block < 0 {
			continue
		}
		others, itself := written, 0 // regions that the run only reads may share bytes
		if r.writes {
			others, itself = regions, 1
		}
		if r.meets(others) > itself {
			continue
		}
		if at == nil {
			at = make([]uintptr, ins+len(m.im.MovableOut))
		}
		at[r.block] = r.at
	}
	return at
}

// find returns the move with the given addresses; nil if there is none.
func (m *moves) find(at []uintptr) *move {
	for _, list := range [][]*move{m.known, m.inGraphs} {
		if i := slices.IndexFunc(list, func(v *move) bool { return slices.Equal(v.at, at) }); i >= 0 {
			return list[i]
		}
	}
	return nil
}

// closest returns the recorded move that uses the largest number of blocks at their addresses in the list at and copies
// the other blocks; nil if there is none.
func (m *moves) closest(at []uintptr) (best *move) {
	most := 0
	for _, v := range m.inGraphs {
		n := 0
		for i, p := range v.at {
			switch p {
			case 0:
			case at[i]:
				n++
			default:
				n = -len(at)
			}
		}
		if v.graph != nil && n > most {
			best, most = v, n
		}
	}
	return best
}

// shared returns a move with the addresses that the given moves have in common. For example, weights have the same
// addresses in each run while results have other addresses. It returns nil if the moves have no address in common, or
// if all their addresses are equal.
func shared(all []*move) *move {
	if len(all) < 2 {
		return nil
	}
	first := all[0]
	v := &move{at: slices.Clone(first.at), in: slices.Clone(first.in), out: slices.Clone(first.out)}
	same, some := true, false
	for i := range v.at {
		if slices.ContainsFunc(all, func(o *move) bool { return o.at[i] != v.at[i] }) {
			same = false
			v.at[i] = 0
			if n := i - len(v.in); n < 0 {
				v.in[i] = nil
			} else {
				v.out[n] = nil
			}
		}
		some = some || v.at[i] != 0
	}
	if same || !some {
		return nil
	}
	return v
}

// of returns the move for a run with frame f; nil if the run copies all its blocks. After graphs have been recorded, no
// further moves are added, because they would have no graph.
func (m *moves) of(a Args, f *frame, recorded bool) *move {
	m.asked, m.current = true, nil
	at := m.addresses(a)
	if at == nil {
		return nil
	}
	if recorded {
		m.current = m.closest(at)
		return m.current
	}
	m.current = m.find(at)
	switch {
	case m.current != nil:
	case len(m.known) < mostKnown:
		m.current = m.new(at, f)
		m.known = append(m.known, m.current)
	default:
		m.missed++
	}
	return m.current
}

// new returns a move with the given addresses, for runs with frame f.
func (m *moves) new(at []uintptr, f *frame) *move {
	v := &move{at: at, in: make([]device.Memory, len(m.im.MovableIn)), out: make([]device.Memory, len(m.im.MovableOut))}
	for n, p := range at {
		switch k := n - len(v.in); {
		case p == 0:
		case k < 0:
			v.in[n] = f.deviceIn[n].Mem
		default:
			v.out[k] = f.deviceOut[k].Mem
		}
	}
	return v
}

// outdated reports whether the addresses of many runs were not among the known moves.
func (m *moves) outdated() bool { return m.missed >= mostMissed }

// forget releases the known moves. No run may be in flight.
func (m *moves) forget() {
	for _, v := range m.known {
		if v.cmds != nil {
			v.cmds.Release()
		}
	}
	m.known, m.current, m.missed = nil, nil, 0
}

// keep marks move v as used by a graph, so that v is not released.
func (m *moves) keep(v *move) {
	if !slices.Contains(m.inGraphs, v) {
		m.known = slices.DeleteFunc(m.known, func(o *move) bool { return o == v })
		m.inGraphs = append(m.inGraphs, v)
	}
}

// resolve resolves the commands of move v if necessary, and reports whether they are resolved. If they cannot be
// resolved, runs with v's addresses copy their blocks. If the machine does not support moves, all runs of the program
// copy.
func (m *moves) resolve(v *move) bool {
	if v.cmds == nil && !v.failed && !m.off {
		var err error
		if v.cmds, err = m.im.Relocate(v.in, v.out); err != nil {
			v.failed, m.off = true, errors.Is(err, device.ErrUnsupported)
			m.im.Logger().Warn("enqueued runs copy their arguments and results instead of using them in place", "func",
				m.im.Plan.Func, "error", err)
		}
	}
	return v.cmds != nil
}

// capture makes a run with frame f, which becomes part of the caller's graph, use its blocks in place.
func (m *moves) capture(a Args, f *frame) {
	at := m.addresses(a)
	if at == nil {
		return
	}
	v := m.find(at)
	if v == nil {
		v = m.new(at, f)
	}
	if m.resolve(v) {
		m.keep(v)
		f.moved = v.cmds
	}
}

// use makes a run with frame f use its blocks at the addresses of move v, if possible. replayed reports whether runs
// are graph launches.
func (m *moves) use(v *move, f *frame, replayed bool) {
	switch {
	case v == nil:
	case !replayed && m.resolve(v):
		f.moved = v.cmds
	case v.graph != nil:
		f.moved, f.graph = v.cmds, v.graph
	}
}

// toRecord returns the moves to record graphs for: the move of the next run, the latest moves whose addresses are still
// valid memory, and a move with the addresses that these moves have in common. If together is set, all processes must
// record the same number of graphs; the list is then padded with nil for graphs that this process does not use.
func (m *moves) toRecord(together bool) (list []*move) {
	if !m.asked || !slices.Contains(m.im.MovableIn, true) && !slices.Contains(m.im.MovableOut, true) {
		return nil
	}
	last := slices.Concat(m.inGraphs, m.known, []*move{m.current})
	if v := shared(slices.DeleteFunc(slices.Clone(last), func(v *move) bool { return v == nil })); v != nil {
		if known := m.find(v.at); known != nil {
			v = known
		}
		last = append(last, v) // the common move is the last one, because it serves runs whose other addresses differ
	}
	for _, v := range slices.Backward(last) {
		if v != nil && !slices.Contains(list, v) && len(list) < mostGraphs && m.there(v) && m.resolve(v) {
			m.keep(v)
			list = append(list, v)
		}
	}
	for together && len(list) < mostGraphs {
		list = append(list, nil)
	}
	return list
}

// there reports whether the addresses of move v are valid memory, at both ends of each block.
func (m *moves) there(v *move) bool {
	n := 0
	for _, ios := range [][]plan.IO{m.im.Inputs, m.im.Outputs} {
		for i := range ios {
			for _, part := range ios[i].Parts {
				rank, last := int(part.Ref.Rank), uintptr(part.Ref.Bytes()-1)
				if p := v.at[n]; p != 0 {
					_, err := m.enqueued.callers.At(rank, p, 1)
					_, behind := m.enqueued.callers.At(rank, p+last, 1)
					if err != nil || behind != nil {
						return false
					}
				}
				n++
			}
		}
	}
	return true
}

// blocks appends the regions of those blocks of this process's ranks that have an address. first is the index of the
// first block of ios.
func (m *moves) blocks(
	to []region, ios []plan.IO, at map[string]map[int]uintptr, movable []bool, first int,
) []region {
	n := 0
	for i := range ios {
		given := at[ios[i].Name]
		for _, part := range ios[i].Parts {
			p := given[int(part.Ref.Rank)]
			if p != 0 && m.im.World.Local(int(part.Ref.Rank)) {
				r := region{at: p, end: p + uintptr(part.Ref.Bytes()), block: -1}
				if movable[n] && p%plan.Align == 0 {
					r.block = first + n
				}
				to = append(to, r)
			}
			n++
		}
	}
	return to
}

// tensors appends the regions of device tensors on this process's ranks.
func (m *moves) tensors(to []region, all map[string]*resident.DeviceTensor, writes bool) []region {
	for _, t := range all {
		for r := range m.im.Plan.Ranks {
			if mem := t.Block(r); mem != nil && m.im.World.Local(r) {
				at := mem.Address()
				to = append(to, region{at: at, end: at + uintptr(mem.Bytes()), writes: writes, block: -1})
			}
		}
	}
	return to
}
