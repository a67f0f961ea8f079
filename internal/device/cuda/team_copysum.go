package cuda

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// copySum has copy engines carry what a reduce_scatter or an all_reduce sends. Each
// member pushes its parts of the others' blocks into their staging memory, in
// pieces, and a kernel of few blocks adds up pieces as they come. For all, the
// sums go to all members the same way, the first while the last parts still come.
// Engines carry more of a link than loads and stores do, and take no
// multiprocessors.
type copySum struct{ all bool }

// sumPlan is the members' shares of sums.
type sumPlan struct {
	shares []kernels.Pieces // without addresses in staging
	in     [][]nvlib.Ptr    // in[i][q]: what i has of q's block
	out    [][]nvlib.Ptr    // out[i][q]: where i wants the sum of q's block; of others nothing if only q does
	room   int64            // bytes of staging for each member
}

// pieceLeast is up to how many bytes of a block are not worth a copy of their own.
const pieceLeast = 64 << 10

// pieceParts is in how many parts blocks of so many bytes are cut, and how long each
// is, in hundredths of the one before: the link idles before the first sum can go
// out, and behind the last piece.
func pieceParts(bytes int64, all bool) (n int, ratio int64) {
	n, ratio = 3, 50
	if all {
		ratio = 70
	}
	for n > 1 && bytes/int64(n) < pieceLeast {
		n--
	}
	return n, ratio
}

// pieceEnds cuts cells in n parts, whole cache lines each.
func pieceEnds(cells int64, n int, ratio int64) []int64 {
	const line = 8
	total, w := int64(0), int64(1<<20)
	weights := make([]int64, n)
	for k := range weights {
		weights[k] = w
		total += w
		w = max(w*ratio/100, 1)
	}
	ends := make([]int64, n)
	sum := int64(0)
	for k, w := range weights {
		sum += w
		ends[k] = cells * sum / total / line * line
	}
	ends[n-1] = cells
	return ends
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
		for q := range s.Members {
			s.Src[q] = s.Src[i]
		}
		s.Blocks = min(s.Blocks, kernels.BlocksMost)
		if _, err := s.Sum(0, 1); err != nil {
			return err
		}
	}
	return nil
}

// sumLaunch completes a tuning.
func sumLaunch(tune device.Tuning, members int) (blocks, threads, unroll int) {
	threads, unroll = cmp.Or(tune.Threads, threadsMost), 1
	switch {
	case members == 2:
		unroll = 4
	case members <= 4:
		unroll = 2
	}
	return cmp.Or(tune.Blocks, 32), threads, cmp.Or(tune.Unroll, unroll)
}

func (a copySum) plan(t *team, tune device.Tuning, c *collective) (*sumPlan, error) {
	n := len(t.members)
	if n < 2 {
		return nil, fmt.Errorf("%w: a team of one", device.ErrUnsupported)
	}
	if c.Red == ir.Avg && dtypeOf(c).IsInt() {
		return nil, fmt.Errorf("%w: the average of integers", device.ErrUnsupported)
	}
	blocks, threads, unroll := sumLaunch(tune, n)
	p := &sumPlan{shares: make([]kernels.Pieces, n), in: make([][]nvlib.Ptr, n), out: make([][]nvlib.Ptr, n)}
	for i := range p.shares {
		p.shares[i] = kernels.Pieces{Members: n, Me: i, DType: dtypeOf(c), Red: c.Red, Blocks: blocks, Threads: threads, Unroll: unroll}
		p.in[i], p.out[i] = make([]nvlib.Ptr, n), make([]nvlib.Ptr, n)
	}
	err := a.scatter(t, c, p)
	if a.all {
		err = a.spread(t, c, p)
	}
	if err != nil {
		return nil, err
	}
	return p, p.cut(a.all)
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

// cut cuts all blocks in as many pieces.
func (p *sumPlan) cut(all bool) error {
	longest := p.shares[0].Run
	n, ratio := pieceParts(longest, all)
	if longest < pieceLeast/16 {
		return fmt.Errorf("%w: blocks of %d bytes are not worth a copy", device.ErrUnsupported, longest)
	}
	for i := range p.shares {
		s := &p.shares[i]
		s.Src[i], s.Dst = p.in[i][i], p.out[i][i]
		s.Ends = pieceEnds(s.Cells(), n, ratio)
	}
	p.room = roundUp(longest+16, 256)
	return nil
}

// prepare reserves staging memory and words that say what is there.
func (a copySum) prepare(t *team, tune device.Tuning, c *collective) ([][]step, error) {
	p, err := a.plan(t, tune, c)
	if err != nil {
		return nil, err
	}
	n := len(t.members)
	staging, err := t.reserve("pieces", int64(n)*p.room)
	if err != nil {
		return nil, err
	}
	words, err := t.reserve("words of pieces", kernels.PieceFlagBytes)
	if err != nil {
		return nil, err
	}
	flags, err := t.halves("flags of moves", kernels.MoveFlagBytes)
	if err != nil {
		return nil, err
	}
	for i := range p.shares {
		s := &p.shares[i]
		copy(s.Flags[:], words.at)
		for q := range n {
			if q != i { // as far from multiples of 16 as its own
				s.Src[q] = staging.at[i] + nvlib.Ptr(int64(q)*p.room) + p.in[i][i]&15
			}
		}
	}
	steps := make([][]step, n)
	for i, m := range t.members {
		if steps[i], err = m.sums(p, i, a.all, flags, words); err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// sumStep is what a member does between two meetings, or behind one.
type sumStep struct {
	dev     *dev
	pieces  []*sumPiece
	engines *stream // that gives copy engines their work
	behind  *stream // that tells of copies
	events  []nvlib.Event
}

// sumPiece is the work of a member for one piece.
type sumPiece struct {
	parts []nvlib.Rect // to those who add up
	raise step         // behind that
	sum   step         // of what others gave; nil where a kernel of a piece before does it
	sums  []nvlib.Rect // to those who want them
}

// sums makes member i's steps.
func (m *member) sums(p *sumPlan, i int, all bool, flags, words *area) ([]step, error) {
	share := &p.shares[i]
	share.Blocks = min(share.Blocks, max(1, m.team.room(share.Threads)-1)) // kernels that tell of copies want room
	meet := kernels.Move{Kind: kernels.MoveMeet, Members: share.Members, Me: i, Run: 1, Blocks: 1, Threads: 32, Unroll: 1}
	copy(meet.Slots[:], words.at)
	meet.SlotHalf = kernels.PieceFlagBytes
	before, err := m.move(&meet, flags)
	if err != nil {
		return nil, err
	}
	st := &sumStep{dev: m.dev}
	for k := range share.Ends {
		piece, err := m.piece(p, k, all)
		if err != nil {
			return nil, err
		}
		st.pieces = append(st.pieces, piece)
	}
	if err := st.open(m); err != nil {
		return nil, err
	}
	if !all {
		return []step{before, st}, nil
	}
	meet.SlotHalf = 0
	after, err := m.move(&meet, flags)
	return []step{before, st, after}, err
}

// piece makes the work for piece k.
func (m *member) piece(p *sumPlan, k int, all bool) (*sumPiece, error) {
	i := m.index
	mine := &p.shares[i]
	x := &sumPiece{}
	var err error
	if x.raise, err = m.kernelBehind(mine.Raise(k, 1)); err != nil {
		return nil, err
	}
	if n := len(mine.Ends); all || k == 0 {
		if all {
			n = 1
		}
		sum, err := mine.Sum(k, n)
		if err != nil {
			return nil, err
		}
		if x.sum, err = m.kernel(sum); err != nil {
			return nil, err
		}
	}
	for d := 1; d < mine.Members; d++ {
		q := (i + d) % mine.Members // not everybody at the same member first
		theirs := &p.shares[q]
		if lo, hi := theirs.Bytes(k); hi > lo {
			x.parts = append(x.parts, nvlib.Rect{Dst: theirs.Src[i] + nvlib.Ptr(lo), Src: p.in[i][q] + nvlib.Ptr(lo), Width: hi - lo, Height: 1})
		}
		if lo, hi := mine.Bytes(k); all && hi > lo {
			x.sums = append(x.sums, nvlib.Rect{Dst: p.out[q][i] + nvlib.Ptr(lo), Src: mine.Dst + nvlib.Ptr(lo), Width: hi - lo, Height: 1})
		}
	}
	return x, nil
}

// open takes streams and events: one for where the copies begin, two for each piece,
// and two for their end.
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
		for range 2*len(st.pieces) + 3 {
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
	order := func(from, to *stream) error {
		e := st.events[used]
		used++
		if err := drv.Record(e, from.h); err != nil {
			return err
		}
		return drv.WaitEvent(to.h, e)
	}
	if err := order(s, st.engines); err != nil {
		return err
	}
	for _, x := range st.pieces {
		if err := st.copies(x.parts); err != nil {
			return err
		}
		if err := order(st.engines, st.behind); err != nil {
			return err
		}
		if err := x.raise.run(st.behind); err != nil {
			return err
		}
	}
	for _, x := range st.pieces {
		if x.sum != nil {
			if err := x.sum.run(s); err != nil {
				return err
			}
		}
		if len(x.sums) == 0 {
			continue
		}
		if err := order(s, st.engines); err != nil {
			return err
		}
		if err := st.copies(x.sums); err != nil {
			return err
		}
	}
	if err := order(st.engines, s); err != nil {
		return err
	}
	return order(st.behind, s)
}

func (st *sumStep) copies(list []nvlib.Rect) error {
	for _, r := range list {
		if err := st.dev.w.drv.Copy(r.Dst, r.Src, r.Width, st.engines.h, &st.engines.args); err != nil {
			return err
		}
	}
	return nil
}

func (st *sumStep) free() {
	for _, x := range st.pieces {
		x.raise.free()
		if x.sum != nil {
			x.sum.free()
		}
	}
	if st.dev.w.cause == errClosed {
		return
	}
	st.dev.site.events = append(st.dev.site.events, st.events...)
	st.events = nil
}
