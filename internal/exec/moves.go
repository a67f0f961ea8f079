package exec

import (
	"errors"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
)

// moves has enqueued runs use blocks of the caller's where they lie, in place of copies in the arena. Kernels are
// prepared for addresses, so for each set of addresses there is a move, with commands of its own. Peers know nothing of
// it: each process moves blocks of its own ranks, which nobody else uses.
type moves struct {
	im       *image.Image
	callers  device.Callers // once runs are enqueued
	recent   []*move        // of runs that were issued, the latest first
	current  *move          // of the run that is issued now; nil for none
	inGraphs []*move        // of runs that were captured or recorded: they stay
	dropped  []*move        // until no run is in flight
	off      bool           // a move could not be resolved
	asked    bool           // runs are enqueued
}

// move is the addresses of blocks, of inputs and then of outputs, and what runs with these issue.
type move struct {
	at      []uintptr         // 0 for a block that is copied
	in, out []device.Memory   // what is there; nil for a block that is copied
	times   int               // that runs with these addresses were issued
	cmds    *image.Relocation // nil until it is resolved
	graph   device.Graph      // what such runs are replayed by; nil where they copy
	failed  bool              // it could not be resolved
}

const (
	mostMoves   = 16 // resolved ones, of runs that were issued
	mostSeen    = 64 // others, which are counted
	mostDropped = 16 // that wait for the program to rest
	mostGraphs  = 4  // that are recorded
	lasting     = 16 // how often addresses come until another move is dropped for theirs
)

// region is bytes that a run uses.
type region struct {
	at, end uintptr
	writes  bool
	block   int // that may move; -1 for none
}

// addresses returns where the movable blocks of a run are; nil where none moves. Blocks that are not aligned as buffers
// are, or share bytes with others of the run of which one is written, do not move: copies keep what is read apart from
// what is written.
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
	var written []int
	for i, r := range regions {
		if r.writes {
			written = append(written, i)
		}
	}
	var at []uintptr
	for i, r := range regions {
		meets := func(j int) bool { return j != i && r.at < regions[j].end && regions[j].at < r.end }
		if r.block < 0 || slices.ContainsFunc(written, meets) ||
			r.writes && slices.ContainsFunc(regions, func(o region) bool { return !o.writes && r.at < o.end && o.at < r.end }) {
			continue
		}
		if at == nil {
			at = make([]uintptr, ins+len(m.im.MovableOut))
		}
		at[r.block] = r.at
	}
	return at
}

// of returns the move of a run of f; nil where none of its blocks moves.
func (m *moves) of(a Args, f *frame) *move {
	m.asked, m.current = true, nil
	at := m.addresses(a)
	if at == nil {
		return nil
	}
	is := func(v *move) bool { return slices.Equal(v.at, at) }
	if i := slices.IndexFunc(m.inGraphs, is); i >= 0 {
		m.current = m.inGraphs[i]
		return m.current
	}
	v := m.new(at, f)
	if i := slices.IndexFunc(m.recent, is); i >= 0 {
		v = m.recent[i]
		m.recent = slices.Delete(m.recent, i, i+1)
	}
	m.recent = slices.Insert(m.recent, 0, v)
	if last := m.last(false); len(m.recent)-m.resolved() > mostSeen {
		m.recent = slices.Delete(m.recent, last, last+1)
	}
	m.current = v
	return v
}

// new returns the move to addresses that a run of f has.
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

// resolved counts the recent moves that are.
func (m *moves) resolved() (n int) {
	for _, v := range m.recent {
		if v.cmds != nil {
			n++
		}
	}
	return n
}

// last is the index of the recent move that was used longest ago, of those that are resolved or of the others.
func (m *moves) last(resolved bool) int {
	for i, v := range slices.Backward(m.recent) {
		if (v.cmds != nil) == resolved {
			return i
		}
	}
	return -1
}

// issued counts a run of v, which is not resolved, and reports whether to resolve it: at once while there is room,
// later only where its addresses last, since another is dropped for it then.
func (m *moves) issued(v *move) bool {
	v.times++
	switch {
	case v.failed:
		return false
	case m.resolved() < mostMoves:
		return true
	case v.times < lasting || len(m.dropped) == mostDropped:
		return false
	}
	i := m.last(true)
	m.dropped = append(m.dropped, m.recent[i])
	m.recent = slices.Delete(m.recent, i, i+1)
	return true
}

// keep has v stay for a graph.
func (m *moves) keep(v *move) {
	if i := slices.Index(m.recent, v); i >= 0 {
		m.recent = slices.Delete(m.recent, i, i+1)
		m.inGraphs = append(m.inGraphs, v)
	}
}

// rested lets dropped moves go: no run is in flight.
func (m *moves) rested() {
	for _, v := range m.dropped {
		v.cmds.Release()
	}
	m.dropped = nil
}

// resolve resolves v, if it is not, and reports whether it is now. Where that fails runs with its addresses copy, and
// where it cannot be all runs of the program do.
func (m *moves) resolve(v *move) bool {
	if v.cmds == nil && !v.failed && !m.off {
		var err error
		if v.cmds, err = m.im.Relocate(v.in, v.out); err != nil {
			v.failed, m.off = true, errors.Is(err, device.ErrUnsupported)
			m.im.Logger().Warn("enqueued runs copy what they might use where it lies", "func", m.im.Plan.Func, "error", err)
		}
	}
	return v.cmds != nil
}

// capture has a run of f that becomes part of the caller's graph use its blocks where they lie.
func (m *moves) capture(a Args, f *frame) {
	if v := m.of(a, f); v != nil && m.resolve(v) {
		m.keep(v)
		f.moved = v.cmds
	}
}

// use has a run of f use its blocks where v says, if v is resolved for that. replayed tells whether runs come by graph.
func (m *moves) use(v *move, f *frame, replayed bool) {
	switch {
	case v == nil || replayed && v.graph == nil:
	case replayed:
		f.moved, f.graph = v.cmds, v.graph
	case v.cmds != nil || m.issued(v) && m.resolve(v):
		f.moved = v.cmds
	}
}

// toRecord returns the moves that graphs are to be recorded for: that of the run to come, and those used last of which
// there still is memory where they say. together tells whether other processes record as many: then nil is for a graph
// that this one has no use for.
func (m *moves) toRecord(together bool) (list []*move) {
	if !m.asked || !slices.Contains(m.im.MovableIn, true) && !slices.Contains(m.im.MovableOut, true) {
		return nil
	}
	captured := slices.Clone(m.inGraphs)
	slices.Reverse(captured)
	for _, v := range slices.Concat([]*move{m.current}, m.recent, captured) {
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

// there reports whether there is memory where v says.
func (m *moves) there(v *move) bool {
	n := 0
	for _, ios := range [][]plan.IO{m.im.Inputs, m.im.Outputs} {
		for i := range ios {
			for _, part := range ios[i].Parts {
				if p := v.at[n]; p != 0 {
					if _, err := m.callers.At(int(part.Ref.Rank), p, part.Ref.Bytes()); err != nil {
						return false
					}
				}
				n++
			}
		}
	}
	return true
}

// blocks adds those of this process's ranks that have an address. The first block of ios has the number first.
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

// tensors adds what device tensors have on this process's ranks.
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
