package cuda

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// copySum has copy engines carry what a reduce_scatter or an all_reduce sends, but
// for a part that a kernel stores, as mixedAlgorithm. Each member pushes its parts
// of the others' blocks into their staging memory, and a kernel adds up blocks while
// the last of them still comes. For all, the sums then go to all members as in an
// all_gather.
type copySum struct{ all bool }

// sumPlan is the members' shares of sums.
type sumPlan struct {
	shares []kernels.Copied // without addresses in staging
	in     [][]nvlib.Ptr    // in[i][q]: what i has of q's block
	out    [][]nvlib.Ptr    // out[i][q]: where i wants the sum of q's block; of others nothing if only q does
	room   int64            // bytes of staging for each block
	stores int              // how many thread blocks store what engines do not carry; 0 for nothing
}

// watching is off for a test that compares.
var watching = true

// copySumLeast is from how many bytes of a block on it was measured not to lose much:
// engines take long to begin and to end. Tests take less.
var copySumLeast int64 = 8 << 20

// storesFrom is from how many blocks on half of them store; of fewer all add up, and
// engines carry all.
const storesFrom = 64

// sumLaunch completes a tuning: blocks that add up as fast as it comes, and that
// store.
func sumLaunch(tune device.Tuning, members int) (sums, stores, threads, unroll int) {
	sums, threads, unroll = cmp.Or(tune.Blocks, 128), threadsMost, 1
	if sums >= storesFrom {
		stores, threads = sums/2, teamThreads
	}
	switch {
	case members == 2:
		unroll = 4
	case members <= 4:
		unroll = 2
	}
	return sums - stores, stores, cmp.Or(tune.Threads, threads), cmp.Or(tune.Unroll, unroll)
}

func (a copySum) supports(t *team, tune device.Tuning, c *collective) error {
	if c.empty() {
		return nil
	}
	p, err := a.plan(t, tune, c)
	if err != nil {
		return err
	}
	for i := range p.shares {
		s := p.shares[i]
		s.Blocks = min(s.Blocks, kernels.BlocksMost)
		if _, err := s.Sum(); err != nil {
			return err
		}
	}
	return nil
}

func (a copySum) plan(t *team, tune device.Tuning, c *collective) (*sumPlan, error) {
	n := len(t.members)
	if n < 2 {
		return nil, fmt.Errorf("%w: a team of one", device.ErrUnsupported)
	}
	if c.Red == ir.Avg && dtypeOf(c).IsInt() {
		return nil, fmt.Errorf("%w: the average of integers", device.ErrUnsupported)
	}
	blocks, stores, threads, unroll := sumLaunch(tune, n)
	p := &sumPlan{shares: make([]kernels.Copied, n), in: make([][]nvlib.Ptr, n), out: make([][]nvlib.Ptr, n), stores: stores}
	for i := range p.shares {
		p.shares[i] = kernels.Copied{Members: n, Me: i, DType: dtypeOf(c), Red: c.Red, Blocks: blocks, Threads: threads, Unroll: unroll}
		p.in[i], p.out[i] = make([]nvlib.Ptr, n), make([]nvlib.Ptr, n)
	}
	place := a.scatter
	if a.all {
		place = a.spread
	}
	if err := place(t, c, p); err != nil {
		return nil, err
	}
	if longest := p.shares[0].Run; longest < copySumLeast {
		return nil, fmt.Errorf("%w: blocks of %d bytes are not worth a copy", device.ErrUnsupported, longest)
	}
	p.cut()
	return p, nil
}

// scatter is for a reduce_scatter.
func (a copySum) scatter(t *team, c *collective, p *sumPlan) error {
	if c.Op != ir.OpReduceScatter {
		return fmt.Errorf("%w: it is for reduce_scatter only", device.ErrUnsupported)
	}
	f, err := t.flow(c)
	if err != nil {
		return err
	}
	var views []ref
	f.pairs(func(i, q int) { views = append(views, f.in(i, q), f.out(q, i)) })
	if err := alike(views); err != nil {
		return err
	}
	r := rowsOf(views)
	if len(r.extents) > 0 {
		return fmt.Errorf("%w: blocks do not lie together", device.ErrUnsupported)
	}
	for i := range c.parts {
		if overlapping(c, f, i) {
			return fmt.Errorf("%w: a result lies over an operand", device.ErrUnsupported)
		}
		p.shares[i].Run = r.run
		p.out[i][i] = f.out(i, i).addr
	}
	f.pairs(func(i, q int) { p.in[i][q] = f.in(i, q).addr })
	return nil
}

// spread is for an all_reduce.
func (a copySum) spread(t *team, c *collective, p *sumPlan) error {
	if err := (reduceAlgorithm{}).supports(t, device.Tuning{}, c); err != nil {
		return err
	}
	bytes, n := c.parts[0].in.bytes(), int64(len(t.members))
	share := ceil(ceil(bytes, n), 128) * 128
	for i := range c.parts {
		if c.parts[i].out.mem.kind != device.Shared {
			return fmt.Errorf("%w: member %d: memory that peers do not reach", device.ErrUnsupported, i)
		}
		p.shares[i].Run = min(share, max(bytes-int64(i)*share, 0))
		for q := range c.parts {
			off := nvlib.Ptr(int64(q) * share)
			p.in[i][q], p.out[i][q] = c.parts[i].in.addr+off, c.parts[i].out.addr+off
		}
	}
	return nil
}

// cut says what engines carry of each block, and which are watched: where all of
// them lie in whole packs of 16 bytes.
func (p *sumPlan) cut() {
	whole := true
	for i := range p.shares {
		s := &p.shares[i]
		s.Src[i], s.Dst = p.in[i][i], p.out[i][i]
		for q := range p.shares {
			whole = whole && s.Full() && s.Run == p.shares[0].Run && (p.in[i][q]|p.out[i][q])%16 == 0
		}
	}
	if !whole {
		p.stores = 0
	}
	for i := range p.shares {
		s := &p.shares[i]
		s.Watched, s.Engines = whole && watching, s.Cells()
		for q := range p.shares {
			if q != i {
				s.Src[q] = s.Src[i] // as far from multiples of 16, wherever it will be
			}
		}
		if p.stores > 0 {
			s.Engines -= s.Run * (100 - enginePercent) / 100 / mixedGrain * mixedGrain / 16
		}
	}
	p.room = roundUp(p.shares[0].Run+16, 256)
}

// slot is the number of member q's block in the staging memory of member i: those
// that come first have the first ones.
func slot(i, q, n int) int64 { return int64((i-q+n)%n - 1) }

// prepare reserves staging memory, and words that say what is there.
func (a copySum) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	p, err := a.plan(t, tune, c)
	if err != nil {
		return nil, err
	}
	n := len(t.members)
	staging, watched, err := t.stagingOf(p)
	if err != nil {
		return nil, err
	}
	words, err := t.halves("words of copies", kernels.CopiedFlagBytes)
	if err != nil {
		return nil, err
	}
	flags, err := t.halves("flags of moves", kernels.MoveFlagBytes)
	if err != nil {
		return nil, err
	}
	for i := range p.shares {
		s := &p.shares[i]
		s.FlagHalf = words.bytes / 2
		copy(s.Flags[:], words.at)
		for q := range n {
			switch {
			case q == i:
			case s.Watched && q == (i+1)%n:
				s.Src[q] = watched.at[i]
			default:
				s.Src[q] = staging.at[i] + nvlib.Ptr(slot(i, q, n)*p.room) + s.Src[i]&15
			}
		}
	}
	steps := make([][]step, n)
	for i, m := range t.members {
		if steps[i], err = m.sums(p, a.all, flags); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// stagingOf reserves room for others' blocks, and for one that is watched.
func (t *team) stagingOf(p *sumPlan) (staging, watched *area, err error) {
	slots := int64(len(t.members) - 1)
	if p.shares[0].Watched {
		slots--
	}
	if staging, err = t.reserve("copied blocks", slots*p.room); err != nil || !p.shares[0].Watched {
		return staging, nil, err
	}
	const name = "watched blocks"
	before := t.regions[name]
	if watched, err = t.reserve(name, p.room); err != nil || watched == before || t.draft != nil {
		return staging, watched, err
	}
	for i, m := range t.members {
		if err := m.set(watched.at[i], kernels.Unwritten, watched.bytes/4); err != nil {
			delete(t.regions, name)
			return nil, nil, err
		}
	}
	return staging, watched, nil
}

// sumStep is what a member does behind a meeting until it has the sum of its blocks.
type sumStep struct {
	dev     *dev
	parts   []nvlib.Rect // to those who add up
	told    []step       // behind each of them; nil where a later one tells of it, too
	stored  []step       // the parts that engines do not carry, and telling of them
	sum     step
	engines *stream // that gives copy engines their work
	behind  *stream // that tells of copies
	events  []nvlib.Event
}

// sums makes a member's steps.
func (m *member) sums(p *sumPlan, all bool, flags *area) ([]step, error) {
	i, n := m.index, len(p.shares)
	share := &p.shares[i]
	share.Blocks = min(share.Blocks, max(1, m.team.room(share.Threads)-1)) // kernels that tell of copies want room
	meet := kernels.Move{Kind: kernels.MoveMeet, Members: n, Me: i, Run: 1, Blocks: 1, Threads: 32, Unroll: 1}
	before, err := m.move(&meet, flags)
	if err != nil {
		return nil, err
	}
	st, err := m.sumStep(p, flags)
	if err != nil || !all {
		return []step{before, st}, err
	}
	given, err := m.gives(p, flags)
	if err != nil {
		return nil, err
	}
	after, err := m.move(&meet, flags)
	return []step{before, st, given, after}, err
}

func (m *member) sumStep(p *sumPlan, flags *area) (*sumStep, error) {
	i, n := m.index, len(p.shares)
	mine := &p.shares[i]
	st := &sumStep{dev: m.dev}
	store := kernels.Move{Kind: kernels.MoveStore, Members: n, Me: i, Blocks: p.stores, Threads: teamThreads, Unroll: 8}
	var untold uint64
	for d := 1; d < n; d++ {
		q := (i + d) % n // not everybody at the same member first
		theirs := &p.shares[q]
		cut := theirs.EngineBytes()
		st.parts = append(st.parts, nvlib.Rect{Dst: theirs.Src[i], Src: p.in[i][q], Width: cut, Height: 1})
		st.told = append(st.told, nil)
		store.To |= 1 << q
		untold |= 1 << q
		if d >= n-2 { // nobody adds up before the last copies begin
			raise, err := m.kernelBehind(mine.Raise(kernels.CopiedByEngine, untold))
			if err != nil {
				return nil, err
			}
			st.told[d-1], untold = raise, 0
		}
		store.Src[q], store.Dst[q], store.Run = p.in[i][q]+nvlib.Ptr(cut), theirs.Src[i]+nvlib.Ptr(cut), theirs.Run-cut
	}
	if mine.Engines < mine.Cells() {
		kernel, err := m.move(&store, flags)
		if err != nil {
			return nil, err
		}
		raise, err := m.kernelBehind(mine.Raise(kernels.CopiedByKernel, store.To))
		if err != nil {
			return nil, err
		}
		st.stored = []step{kernel, raise}
	}
	sum, err := mine.Sum()
	if err != nil {
		return nil, err
	}
	if st.sum, err = m.kernel(sum); err != nil {
		return nil, err
	}
	return st, st.open(m)
}

// gives has what a member added up reach all others, as mixedAlgorithm does.
func (m *member) gives(p *sumPlan, flags *area) (step, error) {
	i, n := m.index, len(p.shares)
	mine := &p.shares[i]
	share := kernels.Move{Kind: kernels.MovePush, Members: n, Me: i, Run: mine.Run, Blocks: max(p.stores, 1), Threads: teamThreads, Unroll: 8}
	for q := range n {
		if q != i && mine.Run > 0 {
			share.To |= 1 << q
			share.Src[q], share.Dst[q] = mine.Dst, p.out[q][i]
		}
	}
	if mine.Engines == mine.Cells() {
		return m.pushes(&share, nil)
	}
	stores, engines, err := parted(&share)
	if err != nil {
		return nil, err
	}
	kernel, err := m.move(stores, flags)
	if err != nil {
		return nil, err
	}
	return m.pushes(engines, kernel)
}

// open takes streams and events: for where copies begin, behind those that are told
// of, and for where all has come together.
func (st *sumStep) open(m *member) (err error) {
	if m.team.draft != nil {
		return nil
	}
	if st.engines, err = m.beside(0); err != nil {
		return err
	}
	if st.behind, err = m.beside(1); err != nil {
		return err
	}
	return st.dev.bound(func() error {
		for range 4 {
			e, err := st.dev.site.newEvent(false)
			if err != nil {
				return err
			}
			st.events = append(st.events, e)
		}
		return nil
	})
}

func (st *sumStep) run(s *stream) error {
	drv := st.dev.w.drv
	used := 0
	order := func(from *stream, to ...*stream) error {
		e := st.events[used]
		used++
		if err := drv.Record(e, from.h); err != nil {
			return err
		}
		for _, s := range to {
			if err := drv.WaitEvent(s.h, e); err != nil {
				return err
			}
		}
		return nil
	}
	if err := order(s, st.engines, st.behind); err != nil {
		return err
	}
	for _, k := range st.stored {
		if err := k.run(st.behind); err != nil {
			return err
		}
	}
	for k, r := range st.parts {
		if r.Width > 0 {
			if err := drv.Copy(r.Dst, r.Src, r.Width, st.engines.h, &st.engines.args); err != nil {
				return err
			}
		}
		if st.told[k] == nil {
			continue
		}
		if err := order(st.engines, st.behind); err != nil {
			return err
		}
		if err := st.told[k].run(st.behind); err != nil {
			return err
		}
	}
	if err := st.sum.run(s); err != nil {
		return err
	}
	return order(st.behind, s) // and behind all copies
}

func (st *sumStep) free() {
	for _, k := range append(append([]step{st.sum}, st.told...), st.stored...) {
		if k != nil {
			k.free()
		}
	}
	if st.dev.w.cause == errClosed {
		return
	}
	st.dev.site.events = append(st.dev.site.events, st.events...)
	st.events = nil
}
