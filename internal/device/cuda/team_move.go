package cuda

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// moveAlgorithm runs the collectives in which members give each other blocks, and
// those that reduce such blocks where they arrive, as one kernel on each member.
type moveAlgorithm struct{ move, reduce kernels.MoveKind }

const noMove = kernels.MoveKind(0xff)

var moveAlgorithms = []namedAlgorithm{
	{"move-ll", moveAlgorithm{kernels.MoveLL, kernels.ReduceLL}},
	{"move-push", moveAlgorithm{kernels.MovePush, noMove}},
	{"move-ll128", moveAlgorithm{kernels.MoveSheets, kernels.ReduceSheets}},
	{"move-bulk", moveAlgorithm{kernels.MoveBulk, kernels.ReduceBulk}},
	{"move-spread", moveAlgorithm{kernels.MoveSpread, kernels.ReduceSpread}},
	{"move-pull", moveAlgorithm{noMove, kernels.ReducePull}},
}

// flow is a collective as blocks that members give to each other. in(i, p) is the
// block that i has for p, out(p, i) where it goes, or, in a reduction, where the
// result does.
type flow struct {
	n       int
	gives   func(i, p int) bool
	in, out func(at, peer int) ref
	reduces bool
}

func (t *team) flow(c *collective) (*flow, error) {
	if err := c.Meets(); err != nil {
		return nil, err
	}
	n := len(t.members)
	in := func(i, _ int) ref { return c.parts[i].in }
	out := func(p, _ int) ref { return c.parts[p].out }
	inCut := func(axis int) func(i, p int) ref {
		return func(i, p int) ref { return c.parts[i].in.block(axis, p, n) }
	}
	outJoin := func(p, i int) ref { return c.parts[p].out.block(c.Axis, i, n) }
	all := func(int, int) bool { return true }
	fromRoot := func(i, p int) bool { return i == c.Root && c.parts[p].writes }
	toRoot := func(_, p int) bool { return p == c.Root }
	switch c.Op {
	case ir.OpAllGather:
		return &flow{n, all, in, outJoin, false}, nil
	case ir.OpGather:
		return &flow{n, toRoot, in, outJoin, false}, nil
	case ir.OpAllToAll:
		return &flow{n, all, inCut(c.Split), outJoin, false}, nil
	case ir.OpScatter:
		return &flow{n, fromRoot, inCut(c.Axis), out, false}, nil
	case ir.OpBroadcast:
		return &flow{n, fromRoot, in, out, false}, nil
	case ir.OpPermute:
		to := func(i, p int) bool { return c.Parts[i].To == p }
		return &flow{n, to, in, out, false}, nil
	case ir.OpReduceScatter:
		return &flow{n, all, inCut(c.Axis), out, true}, nil
	case ir.OpReduce:
		return &flow{n, toRoot, in, out, true}, nil
	}
	return nil, fmt.Errorf("%w: it does not move blocks", device.ErrUnsupported)
}

// block returns the i-th of n equal blocks along axis.
func (r ref) block(axis, i, n int) ref {
	if n == 0 || r.n == 0 {
		return r
	}
	each := r.shape[axis] / int64(n)
	r.shape = slices.Clone(r.shape)
	r.shape[axis] = each
	r.addr += nvlib.Ptr(int64(i) * each * r.strides[axis] * r.dt.Size())
	r.n /= int64(n)
	return r
}

// pairs calls f for all blocks that are given.
func (f *flow) pairs(do func(i, p int)) {
	for i := range f.n {
		for p := range f.n {
			if f.gives(i, p) {
				do(i, p)
			}
		}
	}
}

// blockRows merges the dimensions of views of one shape where all of them go on
// without a gap. What lies together is run bytes; extents are around it, the
// inner first, each with the strides of all views in bytes.
type blockRows struct {
	run     int64
	extents []int64
	dims    []int // the dimension that an extent steps along
}

func rowsOf(views []ref) blockRows {
	v := &views[0]
	var r blockRows
	var dims []int  // the innermost of those merged, outer first
	var ext []int64 // and their extents
	for d, e := range v.shape {
		if e == 1 {
			continue
		}
		k := len(dims) - 1
		joins := k >= 0
		for i := range views {
			joins = joins && views[i].strides[dims[k]] == e*views[i].strides[d]
		}
		if joins {
			dims[k], ext[k] = d, ext[k]*e
		} else {
			dims, ext = append(dims, d), append(ext, e)
		}
	}
	r.run = v.dt.Size()
	last := len(dims) - 1
	if last >= 0 && !slices.ContainsFunc(views, func(o ref) bool { return o.strides[dims[last]] != 1 }) {
		r.run *= ext[last]
		dims, ext = dims[:last], ext[:last]
	}
	slices.Reverse(dims)
	slices.Reverse(ext)
	r.dims, r.extents = dims, ext
	return r
}

// strides are a view's along the extents.
func (r blockRows) strides(v *ref) (s [3]int64) {
	for k, d := range r.dims {
		s[k] = v.strides[d] * v.dt.Size()
	}
	return s
}

func (a moveAlgorithm) kind(f *flow) (kernels.MoveKind, error) {
	k := a.move
	if f.reduces {
		k = a.reduce
	}
	if k == noMove {
		return k, fmt.Errorf("%w: it is not for this op", device.ErrUnsupported)
	}
	return k, nil
}

// supports makes the members' moves with addresses of what there is.
func (a moveAlgorithm) supports(t *team, tune device.Tuning, c *collective) error {
	if c.empty() {
		return nil
	}
	p, err := a.plan(t, tune, c)
	if err != nil {
		return err
	}
	for i := range p.moves {
		p.moves[i].Blocks = min(p.moves[i].Blocks, kernels.BlocksMost)
		if _, err := p.moves[i].Meeting(); err != nil {
			return err
		}
	}
	return nil
}

// mostInSheets bounds the bytes of a block for which slots are kept.
const mostInSheets = 8 << 20

// bulks returns nil where the members' devices have bulk copies.
func (t *team) bulks() error {
	for _, m := range t.members {
		if g := m.dev.site.gpu; !strings.HasPrefix(g.arch, "sm_9") && !strings.HasPrefix(g.arch, "sm_1") {
			return fmt.Errorf("%w: GPU %d, %s, has no bulk copies", device.ErrUnsupported, g.dev, g.arch)
		}
	}
	return nil
}

// movePlan is the members' shares, and which inputs are copied first because the
// result overlaps them.
type movePlan struct {
	moves  []kernels.Move
	staged []bool
	stage  int64 // bytes
}

func (a moveAlgorithm) plan(t *team, tune device.Tuning, c *collective) (*movePlan, error) {
	f, err := t.flow(c)
	if err != nil {
		return nil, err
	}
	kind, err := a.kind(f)
	if err != nil {
		return nil, err
	}
	if kind == kernels.MoveSpread || kind == kernels.ReduceSpread {
		if err := spreadable(c); err != nil {
			return nil, err
		}
	}
	if f.reduces && c.Red == ir.Avg && dtypeOf(c).IsInt() {
		return nil, fmt.Errorf("%w: the average of integers", device.ErrUnsupported)
	}
	p := &movePlan{moves: make([]kernels.Move, f.n), staged: make([]bool, f.n)}
	if err := p.reach(t, c, f, kind); err != nil {
		return nil, err
	}
	var views []ref
	f.pairs(func(i, q int) { views = append(views, f.in(i, q), f.out(q, i)) })
	if len(views) == 0 {
		return nil, fmt.Errorf("%w: nobody gives anything", device.ErrUnsupported)
	}
	if err := alike(views); err != nil {
		return nil, err
	}
	for i := range c.parts {
		if p.staged[i] = overlapping(c, f, i); p.staged[i] {
			p.stage = max(p.stage, c.parts[i].in.bytes())
			part := c.parts[i].in.at(c.parts[i].in.addr) // dense, wherever it will be
			views = append(views, cutLike(c, part, f.n))
		}
	}
	r := rowsOf(views)
	spreads := kind == kernels.MoveSpread || kind == kernels.ReduceSpread
	if kind == kernels.MoveSheets || kind == kernels.ReduceSheets || spreads {
		if err := t.keepsStretches(); err != nil {
			return nil, err
		}
		if r.run > mostInSheets && !spreads {
			return nil, fmt.Errorf("%w: blocks of %d bytes through slots; up to %d", device.ErrUnsupported, r.run, mostInSheets)
		}
	}
	if kind == kernels.MoveBulk || kind == kernels.ReduceBulk {
		if err := t.bulks(); err != nil {
			return nil, err
		}
	}
	blocks, threads, unroll := launchOf(tune, kind, r, f.n)
	for i := range p.moves {
		m := &p.moves[i]
		*m = kernels.Move{Kind: kind, Members: f.n, Me: i, Run: r.run, Extents: r.extents, DType: views[0].dt, Red: c.Red,
			Blocks: blocks, Threads: threads, Unroll: unroll, Root: c.Root}
	}
	if spreads {
		p.spread(c)
	} else {
		f.fill(p, r)
	}
	return p, nil
}

// alike wants blocks of one shape.
func alike(views []ref) error {
	for i := range views {
		if !slices.Equal(views[i].shape, views[0].shape) {
			return fmt.Errorf("blocks of shapes %v and %v", views[0].shape, views[i].shape)
		}
	}
	return nil
}

// cutLike is the first block of a whole input.
func cutLike(c *collective, in ref, n int) ref {
	switch c.Op {
	case ir.OpReduceScatter, ir.OpScatter:
		return in.block(c.Axis, 0, n)
	case ir.OpAllToAll:
		return in.block(c.Split, 0, n)
	}
	return in
}

func dtypeOf(c *collective) ir.DType {
	for i := range c.parts {
		if c.parts[i].reads {
			return c.parts[i].in.dt
		}
	}
	return c.parts[0].out.dt
}

// reach refuses what kernels would have to reach and cannot.
func (p *movePlan) reach(t *team, c *collective, f *flow, kind kernels.MoveKind) (err error) {
	f.pairs(func(i, q int) {
		far := f.out(q, i)
		pulls := kind == kernels.ReducePull || kind == kernels.ReduceBulk
		if pulls {
			far = f.in(i, q)
		}
		direct := pulls || kind == kernels.MovePush || kind == kernels.MoveBulk
		if direct && far.mem.kind == device.Private && t.members[i].dev.site != t.members[q].dev.site {
			err = fmt.Errorf("%w: members reach into each other's operands, and one of member %d is private memory", device.ErrUnsupported, far.mem.dev.rank)
		}
	})
	return err
}

// overlapping reports whether member i's result lies over its input in such a way
// that the input has to be copied first.
func overlapping(c *collective, f *flow, i int) bool {
	p := &c.parts[i]
	if !p.reads || !p.writes || !p.in.overlaps(&p.out) {
		return false
	}
	switch c.Op {
	case ir.OpAllGather, ir.OpGather:
		mine := f.out(i, i)
		return !p.in.same(&mine)
	case ir.OpReduceScatter, ir.OpScatter:
		mine := f.in(i, i)
		return !p.out.same(&mine)
	case ir.OpBroadcast, ir.OpReduce:
		return !p.in.same(&p.out)
	}
	return true
}

// fill sets what goes where.
func (f *flow) fill(p *movePlan, r blockRows) {
	f.pairs(func(i, q int) {
		in, out := f.in(i, q), f.out(q, i)
		giver, taker := &p.moves[i], &p.moves[q]
		kind := giver.Kind
		switch {
		case i != q:
			giver.To |= 1 << q
			taker.From |= 1 << i
		case f.reduces || !in.same(&out):
			giver.Own = true
		}
		if kind == kernels.ReducePull || kind == kernels.ReduceBulk {
			taker.Src[i], taker.SrcStrides[i] = in.addr, r.strides(&in)
		} else {
			giver.Src[q], giver.SrcStrides[q] = in.addr, r.strides(&in)
		}
		switch kind {
		case kernels.MovePush, kernels.MoveBulk:
			giver.Dst[q], giver.DstStrides[q] = out.addr, r.strides(&out)
		case kernels.MoveLL, kernels.MoveSheets:
			taker.Dst[i], taker.DstStrides[i] = out.addr, r.strides(&out)
		default:
			taker.Dst[q], taker.DstStrides[q] = out.addr, r.strides(&out)
		}
	})
}

// spreadable wants a root and two others or more.
func spreadable(c *collective) error {
	if c.Op != ir.OpBroadcast && c.Op != ir.OpReduce || len(c.parts) < 3 {
		return fmt.Errorf("%w: it is for a broadcast to two others or more, or a reduce from them", device.ErrUnsupported)
	}
	for p := range c.parts {
		if c.Op == ir.OpBroadcast && p != c.Root && !c.parts[p].writes {
			return fmt.Errorf("%w: member %d gets nothing", device.ErrUnsupported, p)
		}
	}
	return nil
}

// spread sets where the root's block comes from and goes to, or the members' and
// the root's result.
func (p *movePlan) spread(c *collective) {
	for i := range c.parts {
		q, m := &c.parts[i], &p.moves[i]
		if q.reads {
			m.Src[i] = q.in.addr
		}
		if q.writes {
			m.Dst[i] = q.out.addr
		}
		m.Own = i == c.Root && q.writes && (c.Op == ir.OpReduce || !q.in.same(&q.out))
	}
}

// parts are the launches that do m: what passes slots in turns, if it is long.
func parts(m *kernels.Move) []kernels.Move {
	if m.Kind != kernels.MoveSpread && m.Kind != kernels.ReduceSpread {
		return []kernels.Move{*m}
	}
	var list []kernels.Move
	for off := int64(0); off < m.Run; off += mostInSheets {
		x := *m
		x.Run = min(m.Run-off, mostInSheets)
		x.Src[m.Me] += nvlib.Ptr(off)
		x.Dst[m.Me] += nvlib.Ptr(off)
		list = append(list, x)
	}
	return list
}

// launchOf completes a tuning, by what was fastest on two H200: threads enough for
// every pack where flags travel with the data; where blocks have to meet, few of
// them until a link needs more.
func launchOf(tune device.Tuning, kind kernels.MoveKind, r blockRows, members int) (blocks, threads, unroll int) {
	bytes := r.run
	for _, e := range r.extents {
		bytes *= e
	}
	switch kind {
	case kernels.MoveLL, kernels.ReduceLL:
		threads, unroll = 256, 1
		if bytes >= 512<<10 {
			threads = 512
		}
		blocks = within(bytes, int64(8*threads), 32, 128)
	case kernels.MoveSheets, kernels.ReduceSheets, kernels.MoveSpread, kernels.ReduceSpread:
		threads, unroll = 512, 1
		switch {
		case bytes < 256<<10:
			threads = 256
		case members == 2 && bytes >= 2<<20:
			unroll = 4
		case members <= 4 && bytes >= 1<<20:
			unroll = 2
		}
		blocks = within(bytes, 512, 1, 132)
	case kernels.MoveBulk:
		blocks, threads, unroll = 16, 32, 2
	case kernels.ReduceBulk:
		blocks, threads, unroll = 16, 288, 2
	default:
		blocks, threads, unroll = 16, 512, 2
		switch {
		case bytes >= 4<<20:
			blocks, unroll = 128, 8
		case kind == kernels.ReducePull && bytes >= 128<<10:
			blocks = 32
		}
	}
	return cmp.Or(tune.Blocks, blocks), cmp.Or(tune.Threads, threads), cmp.Or(tune.Unroll, unroll)
}

// within is bytes in parts of each, at least and at most so many.
func within(bytes, each, least, most int64) int {
	return int(min(max((bytes+each-1)/each, least), most))
}

func (a moveAlgorithm) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	p, steps, err := a.shares(t, tune, c)
	if err != nil {
		return nil, err
	}
	flags, err := t.halves("flags of moves", kernels.MoveFlagBytes)
	if err != nil {
		return nil, err
	}
	for i, m := range t.members {
		for _, move := range parts(&p.moves[i]) {
			st, err := m.move(&move, flags)
			if err != nil {
				return nil, err
			}
			steps[i] = append(steps[i], st)
		}
	}
	return steps, nil
}

// move returns the launch of a share of the member.
func (m *member) move(move *kernels.Move, flags *area) (step, error) {
	t := m.team
	room := t.room(move.Threads)
	if move.Kind == kernels.MoveBulk || move.Kind == kernels.ReduceBulk { // a block of it has a multiprocessor's shared memory
		room = t.room(teamThreads)
	}
	move.Blocks = min(move.Blocks, room)
	copy(move.Flags[:], flags.at)
	if need := move.SlotBytes(); need > 0 {
		name := "packs of moves"
		if move.Kind.Sheets() { // whose data would look like the flags of packs
			name = "sheets of moves"
		}
		slots, err := t.halves(name, need)
		if err != nil {
			return nil, err
		}
		move.SlotHalf = slots.bytes / 2
		copy(move.Slots[:], slots.at)
	}
	k, err := move.Meeting()
	if err != nil {
		return nil, err
	}
	return m.kernel(k)
}

// shares is plan, with copies of inputs where results lie over them.
func (a moveAlgorithm) shares(t *team, tune device.Tuning, c *collective) (*movePlan, [][]step, error) {
	steps := make([][]step, len(t.members))
	p, err := a.plan(t, tune, c)
	if err != nil || p.stage == 0 {
		return p, steps, err
	}
	if err := p.stageInputs(t, c, steps); err != nil {
		return nil, nil, err
	}
	p, err = a.plan(t, tune, c) // from where inputs are now
	return p, steps, err
}

// stageInputs has inputs that results overlap copied to the team's memory, and c
// read them there.
func (p *movePlan) stageInputs(t *team, c *collective, steps [][]step) error {
	mem, err := t.reserve("copies of inputs", p.stage)
	if err != nil {
		return err
	}
	for i := range c.parts {
		if !p.staged[i] {
			continue
		}
		in := c.parts[i].in
		safe := in.at(mem.at[i])
		safe.mem = &memory{dev: in.mem.dev, kind: device.Shared, addr: mem.at[i], bytes: mem.bytes}
		steps[i] = append(steps[i], &copyStep{safe, in})
		c.parts[i].in = safe
	}
	return nil
}
