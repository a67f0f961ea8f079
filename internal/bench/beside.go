package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// Beside is collectives beside products.
type Beside struct {
	// Shape is the product's, on every rank; it is of bf16.
	Shape
	// GEMMs is the product alone, for each number of multiprocessors that it
	// counted on.
	GEMMs []GEMMAlone `json:"gemm_alone"`
	// Collectives are those measured beside it.
	Collectives []BesideCollective `json:"collectives"`
}

// GEMMAlone is the product with nothing beside it: microseconds on the slowest
// rank, and that over the one which counts on all multiprocessors.
type GEMMAlone struct {
	SMs      int    `json:"sms"` // 0 for all
	Time     Figure `json:"us"`
	Slowdown Figure `json:"slowdown"`
}

// BesideCollective is a collective beside the product. Rates are the bytes that
// the busiest rank must send or receive, over the time of the slowest: GB/s of a
// link.
type BesideCollective struct {
	Op    string `json:"op"`
	Bytes int64  `json:"bytes"` // of the message
	// Best is the largest rate of any way alone.
	Best float64     `json:"best_gbps"`
	Ways []BesideWay `json:"ways"`
}

// BesideWay is the fastest way found with so many blocks.
type BesideWay struct {
	// CTAs is the number of blocks, 0 for copy engines, -1 for any.
	CTAs   int           `json:"ctas"`
	Tuning device.Tuning `json:"tuning"`
	Alone  Figure        `json:"alone_gbps"`
	// OfBest is the part of the largest rate of any way.
	OfBest float64      `json:"of_best"`
	Pairs  []BesidePair `json:"pairs,omitempty"`
	// Wrong is how many of the elements looked at (Checked) were wrong.
	Wrong   int64 `json:"wrong"`
	Checked int64 `json:"checked"`
	// Refused says why nothing was measured; empty where something was.
	Refused string `json:"refused,omitempty"`
}

// BesidePair is a way beside the product that counts on so many
// multiprocessors.
type BesidePair struct {
	SMs int `json:"sms"` // 0 for all
	// Slowdown is the product's time over that of it alone, with all
	// multiprocessors, of the same round.
	Slowdown Figure `json:"slowdown"`
	// Rate is the collective's.
	Rate Figure `json:"gbps"`
	// Covered is the part of the product's time during which collectives ran.
	Covered float64 `json:"covered"`
}

// Limits of what counts as good: a product that takes at most bearable times as
// long, with collectives for most of its time; a collective that reaches most of
// its best rate with fewCTAs.
const (
	bearable = 1.08
	most     = 0.90
	fewCTAs  = 8
)

// BestPair returns the pair with the largest rate of those that slow the product
// down bearably though collectives run for most of its time, or else the one that slows it down least, and whether it is
// bearable; nil where nothing was measured.
func (c *BesideCollective) BestPair() (w *BesideWay, p *BesidePair, ok bool) {
	for i := range c.Ways {
		for k := range c.Ways[i].Pairs {
			x := &c.Ways[i].Pairs[k]
			good := x.Slowdown.Median <= bearable && x.Covered >= most
			if p == nil || good && !ok || good == ok && (good && x.Rate.Median > p.Rate.Median || !good && x.Slowdown.Median < p.Slowdown.Median) {
				w, p, ok = &c.Ways[i], x, good
			}
		}
	}
	return w, p, ok
}

// Few returns the way with at most fewCTAs blocks, but not none, that is fastest
// alone; nil where there is none.
func (c *BesideCollective) Few() *BesideWay {
	var best *BesideWay
	for i := range c.Ways {
		if w := &c.Ways[i]; w.Refused == "" && w.CTAs > 0 && w.CTAs <= fewCTAs && (best == nil || w.Alone.Median > best.Alone.Median) {
			best = w
		}
	}
	return best
}

// besides is a measurement of products and collectives under way.
type besides struct {
	*job
	*arena
	shape    Shape
	main     []device.Stream
	products map[int][]device.Launch // by multiprocessors, of each rank
	operands []device.Memory
	gemm     map[int][]float64 // samples of the product alone, microseconds
	round    float64           // microseconds of the product alone with all multiprocessors, of this round
}

func (j *job) besides(ctx context.Context) error {
	b := &besides{job: j, shape: Shape{8192, 7168, 8192}, products: map[int][]device.Launch{}, gemm: map[int][]float64{}}
	if j.embedded() {
		b.shape = Shape{64, 64, 64}
	}
	if len(j.Shapes) > 1 {
		return usagef("%s takes one shape", j.report.Bench)
	}
	for _, s := range j.Shapes {
		b.shape = s
	}
	if err := checkBeside(j.Options.Beside); err != nil {
		return err
	}
	j.DType = ir.BF16
	calls := b.calls()
	var err error
	if b.arena, err = openArena(ctx, j.machine, j.Ranks, calls, j.DType, false); err != nil {
		return err
	}
	found := comm.Find(j.machine.Name(), b.world)
	b.dispatch = comm.NewDispatch(b.world, j.machine.Caps(), found.Table, comm.Policy{})
	j.report.Table = &TableUse{From: found.From, Ignored: found.Ignored}
	if found.Table != nil {
		j.report.Table.Hash = found.Table.Hash()
	}
	for _, name := range j.Algorithms {
		if err := b.dispatch.Check(name); err != nil {
			return b.arena.close(usagef("%v", err))
		}
	}
	j.report.Beside = &Beside{Shape: b.shape}
	b.describe()
	return b.arena.close(b.all(ctx, calls))
}

func (b *besides) describe() {
	b.method("a product of bf16, normal numbers, one behind the other on every rank's main stream; collectives on a stream of higher priority, one behind the other, issued eagerly, each when the one before has ended")
	b.method("slow-down: time a product among those that ran wholly while collectives did, slowest rank, over that of a product alone on all multiprocessors in the same round; GB/s: bytes that a rank must send or receive over the time of a collective among those that ran wholly while products did, slowest rank")
	b.method("of each number of blocks (CTAs) the way that is fastest alone; 0: copy engines, each way; any: as it is chosen, or NCCL's, whichever is faster; everything in turns, median of %d rounds", b.Rounds)
}

// besideOps are the collectives measured, what only moves first.
var besideOps = []ir.Op{ir.OpAllGather, ir.OpAllToAll, ir.OpBroadcast, ir.OpReduceScatter, ir.OpAllReduce}

// checkBeside refuses names that are none of besideOps.
func checkBeside(names []string) error {
	var known []string
	for _, op := range besideOps {
		known = append(known, op.String())
	}
	for _, n := range names {
		if !slices.Contains(known, n) {
			return usagef("there is no collective %q to measure; there are %s", n, strings.Join(known, ", "))
		}
	}
	return nil
}

// calls lists the collectives.
func (b *besides) calls() []call {
	sizes := b.Sizes
	if sizes == nil {
		sizes = []int64{64 << 20}
		if b.embedded() {
			sizes = []int64{64 << 10}
		}
	}
	var list []call
	for _, op := range besideOps {
		if b.Options.Beside != nil && !slices.Contains(b.Options.Beside, op.String()) {
			continue
		}
		for _, n := range sizes {
			list = append(list, newCall(op, max(n, b.DType.Size()*int64(b.Ranks)), b.Ranks, b.DType))
		}
	}
	return list
}

// targets lists the multiprocessors that the product counts on.
func (b *besides) targets() []int {
	if b.SMs != nil {
		return b.SMs
	}
	m, ok := b.world.(interface{ Multiprocessors() int })
	if !ok {
		return []int{0}
	}
	n := m.Multiprocessors()
	return []int{0, n - 4, n - 8, n - 16, n - 32}
}

// all prepares products and measures every collective.
func (b *besides) all(ctx context.Context, calls []call) (err error) {
	defer func() {
		for _, list := range b.products {
			for _, l := range list {
				l.Release()
			}
		}
		for _, mem := range b.operands {
			err = errors.Join(err, mem.Free())
		}
	}()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for _, c := range calls {
		row, err := b.collective(ctx, c)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", c.op, bytesText(c.bytes), err)
		}
		b.report.Beside.Collectives = append(b.report.Beside.Collectives, *row)
	}
	base := figure(b.gemm[0]).Median
	for _, sms := range b.targets() {
		f := figure(b.gemm[sms])
		b.report.Beside.GEMMs = append(b.report.Beside.GEMMs, GEMMAlone{SMs: sms, Time: f, Slowdown: Figure{f.Median / base, f.Spread / base}})
	}
	return nil
}

// prepare makes the streams and the products.
func (b *besides) prepare(ctx context.Context) error {
	for r := range b.Ranks {
		d := b.world.Device(r)
		side, err := d.NewStream(device.StreamOptions{Name: "beside", Priority: 1})
		if err != nil {
			return err
		}
		b.members[r].Stream = side
		main, err := d.NewStream(device.StreamOptions{Name: "main"})
		if err != nil {
			return err
		}
		b.main = append(b.main, main)
		if err := b.product(r); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	return b.world.Sync(ctx)
}

// product makes rank r's operands and launches.
func (b *besides) product(r int) error {
	d, s := b.world.Device(r), b.shape
	var views []device.View
	for i, shape := range [][]int64{{s.M, s.K}, {s.N, s.K}, {s.M, s.N}} {
		mem, err := d.Alloc((shape[0]*shape[1]*b.dt.Size()+3)&^3, device.Private)
		if err != nil {
			return err
		}
		b.operands = append(b.operands, mem)
		views = append(views, device.View{Mem: mem, DType: b.dt, Shape: shape, Strides: []int64{shape[1], 1}})
		if i < 2 {
			if err := spread(b.main[r], mem, normalBlock(b.dt, mem.Bytes(), uint64(r*2+i))); err != nil {
				return err
			}
		}
	}
	for _, sms := range append(slices.Clone(b.targets()), 0) {
		if len(b.products[sms]) > r {
			continue
		}
		l, err := d.Prepare(device.Kernel{Op: ir.OpLinear, Ins: views[:2], Outs: views[2:], SMs: sms % 1000, Fixed: sms >= 1000})
		if err != nil {
			return err
		}
		b.products[sms] = append(b.products[sms], l)
	}
	return nil
}

// normalBlock returns normal numbers for up to so many bytes: how operands differ
// from bit to bit is what products cost in power, and so in time.
func normalBlock(dt ir.DType, bytes int64, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 5))
	vals := make([]float64, min(patternLength, bytes/dt.Size()))
	for i := range vals {
		vals[i] = rng.NormFloat64()
	}
	block := make([]byte, (int64(len(vals))*dt.Size()+3)&^3)
	tensor.FromFloat64(block[:int64(len(vals))*dt.Size()], vals, dt)
	return block
}

// gemms is how many products run in a measurement.
const gemms = 6

// microsOf waits and returns what lies in brackets: of each rank, from the first
// bracket's begin to the last one's end, over their number.
func (b *besides) microsOf(ctx context.Context, ids [][]int64) ([]float64, error) {
	spans, err := b.spans(ctx, ids)
	if err != nil {
		return nil, err
	}
	var out []float64
	for _, list := range spans {
		out = append(out, float64(list[len(list)-1][1]-list[0][0])/1e3/float64(len(list)))
	}
	return out, nil
}

// spans waits and returns when brackets began and ended, in nanoseconds.
func (b *besides) spans(ctx context.Context, ids ...[][]int64) ([][][2]int64, error) {
	if err := b.world.Sync(ctx); err != nil {
		return nil, err
	}
	b.marks.mu.Lock()
	defer b.marks.mu.Unlock()
	var out [][][2]int64
	for _, list := range slices.Concat(ids...) {
		var spans [][2]int64
		for _, id := range list {
			spans = append(spans, b.marks.at[id])
		}
		out = append(out, spans)
	}
	clear(b.marks.at)
	return out, nil
}

// multiply issues a product on each rank.
func (b *besides) multiply(sms int, ids [][]int64) error {
	for r, s := range b.main {
		id, err := b.marks.around(s, func() error { return s.Launch(b.products[sms][r]) })
		if err != nil {
			return err
		}
		ids[r] = append(ids[r], id)
	}
	return nil
}

// exchange issues a call on each rank.
func (b *besides) exchange(e *entrant, ids [][]int64) error {
	t := e.done
	e.done++
	for m, x := range b.members {
		id, err := b.marks.around(x.Stream, func() error { return e.ch.Issue(0, m, t) })
		if err != nil {
			return err
		}
		ids[m] = append(ids[m], id)
	}
	return nil
}

// timeProduct measures the product alone.
func (b *besides) timeProduct(ctx context.Context, sms int) (float64, error) {
	ids := make([][]int64, b.Ranks)
	for range gemms {
		if err := b.multiply(sms, ids); err != nil {
			return 0, err
		}
	}
	for r := range ids {
		ids[r] = ids[r][1:] // the first one warms up
	}
	us, err := b.microsOf(ctx, ids)
	if err != nil {
		return 0, err
	}
	return slices.Max(us), nil
}

// timeCall measures the collective alone.
func (b *besides) timeCall(ctx context.Context, e *entrant, count int) (float64, error) {
	ids := make([][]int64, b.Ranks)
	for range count + 1 {
		if err := b.exchange(e, ids); err != nil {
			return 0, err
		}
	}
	for r := range ids {
		ids[r] = ids[r][1:]
	}
	us, err := b.microsOf(ctx, ids)
	if err != nil {
		return 0, err
	}
	return slices.Max(us), nil
}

// rate is GB/s of a link.
func (b *besides) rate(c call, us float64) float64 {
	return wireBytesOf(c, b.Ranks) / max(us, 0.001) / 1e3
}

// together issues products, and calls, so many for each. The first call precedes
// them; the others come last, so that the host keeps no product waiting.
func (b *besides) together(e *entrant, sms int, calls float64) (main, side [][]int64, err error) {
	main, side = make([][]int64, b.Ranks), make([][]int64, b.Ranks)
	if err := b.exchange(e, side); err != nil {
		return nil, nil, err
	}
	for range gemms {
		if err := b.multiply(sms, main); err != nil {
			return nil, nil, err
		}
	}
	for range int(calls*gemms) + 2 {
		if err := b.exchange(e, side); err != nil {
			return nil, nil, err
		}
	}
	return main, side, nil
}

// timeBoth measures the product beside the collective, and that beside it:
// microseconds of each, and the part of the products' time in which collectives
// ran. It begins with as many collectives as would last alone, and takes more
// until they outlast the products.
func (b *besides) timeBoth(ctx context.Context, e *entrant, sms int, alone float64) (product, collective, covered float64, err error) {
	calls := 1.5 * b.round / alone
	for range 4 {
		main, side, err := b.together(e, sms, calls)
		if err != nil {
			return 0, 0, 0, err
		}
		spans, err := b.spans(ctx, main, side)
		if err != nil {
			return 0, 0, 0, err
		}
		product, collective, covered = 0, 0, 1
		for r := range b.Ranks {
			p, c := spans[r], spans[b.Ranks+r]
			product = max(product, meanWithin(p[1:], c))
			collective = max(collective, meanWithin(c, p))
			covered = min(covered, cover(p[1:], c))
		}
		if covered == 1 {
			break
		}
		calls = 2*calls + 2
	}
	return product, collective, covered, nil
}

// meanWithin returns microseconds a span of those that lie within the time of the
// others, or of all where none does.
func meanWithin(list, others [][2]int64) float64 {
	lo, hi := others[0][0], others[len(others)-1][1]
	in := slices.DeleteFunc(slices.Clone(list), func(s [2]int64) bool { return s[0] < lo || s[1] > hi })
	if len(in) == 0 {
		in = list
	}
	return float64(in[len(in)-1][1]-in[0][0]) / 1e3 / float64(len(in))
}

// cover returns the part of the time of list that falls into that of the others.
func cover(list, others [][2]int64) float64 {
	lo, hi := list[0][0], list[len(list)-1][1]
	in := min(hi, others[len(others)-1][1]) - max(lo, others[0][0])
	if hi <= lo || in <= 0 {
		return 0
	}
	return float64(in) / float64(hi-lo)
}

// rival is a way with what was measured of it.
type rival struct {
	*entrant
	row   int // among the ways of the collective
	alone []float64
	// By multiprocessors.
	slow, rates, covered map[int][]float64
}

// collective measures one collective.
func (b *besides) collective(ctx context.Context, c call) (*BesideCollective, error) {
	row := &BesideCollective{Op: c.op.String(), Bytes: c.bytes}
	var list []*rival
	for _, n := range b.ctas() {
		for _, tunings := range b.contests(c, n) {
			w := BesideWay{CTAs: n}
			r, err := b.fastest(ctx, c, tunings, &row.Best)
			if err != nil {
				return nil, err
			}
			if r == nil {
				w.Refused = "no algorithm takes it so"
			} else {
				r.row = len(row.Ways)
				w.Tuning, list = r.way.Tuning, append(list, r)
			}
			row.Ways = append(row.Ways, w)
		}
	}
	for range b.Rounds {
		if err := b.turn(ctx, list); err != nil {
			return nil, err
		}
	}
	for _, r := range list {
		w := &row.Ways[r.row]
		if err := b.conclude(ctx, r, w); err != nil {
			return nil, err
		}
		row.Best = max(row.Best, w.Alone.Median)
		if err := r.leave(); err != nil {
			return nil, err
		}
	}
	for i := range row.Ways {
		row.Ways[i].OfBest = row.Ways[i].Alone.Median / row.Best
	}
	return row, nil
}

// turn measures everything once.
func (b *besides) turn(ctx context.Context, list []*rival) error {
	for _, sms := range append([]int{0}, slices.DeleteFunc(slices.Clone(b.targets()), func(n int) bool { return n == 0 })...) {
		us, err := b.timeProduct(ctx, sms)
		if err != nil {
			return err
		}
		b.gemm[sms] = append(b.gemm[sms], us)
		if sms == 0 {
			b.round = us
		}
	}
	for _, r := range list {
		us, err := b.timeCall(ctx, r.entrant, r.chains.eager)
		if err != nil {
			return err
		}
		r.alone = append(r.alone, b.rate(r.call, us))
		for _, sms := range b.targets() {
			product, collective, covered, err := b.timeBoth(ctx, r.entrant, sms, us)
			if err != nil {
				return fmt.Errorf("%s beside a product for %d multiprocessors: %w", tuningText(r.way.Tuning), sms, err)
			}
			r.slow[sms] = append(r.slow[sms], product/b.round)
			r.rates[sms] = append(r.rates[sms], b.rate(r.call, collective))
			r.covered[sms] = append(r.covered[sms], covered)
		}
	}
	return nil
}

// conclude fills in a way's figures, and has its results beside the product
// checked.
func (b *besides) conclude(ctx context.Context, r *rival, w *BesideWay) error {
	w.Alone = figure(r.alone)
	for _, sms := range b.targets() {
		w.Pairs = append(w.Pairs, BesidePair{SMs: sms, Slowdown: figure(r.slow[sms]), Rate: figure(r.rates[sms]), Covered: slices.Min(r.covered[sms])})
	}
	var err error
	w.Wrong, w.Checked, err = b.check(ctx, r.entrant, func() error {
		_, _, err := b.together(r.entrant, 0, 1)
		return err
	})
	return err
}

// ctas lists numbers of blocks.
func (b *besides) ctas() []int {
	if b.CTAs != nil {
		return b.CTAs
	}
	return []int{0, 4, 8, 16, 32, -1}
}

// fastest returns the tuning that is fastest alone, nil where none takes the call,
// and raises best to its rate.
func (b *besides) fastest(ctx context.Context, c call, list []device.Tuning, best *float64) (*rival, error) {
	var found *entrant
	least := 0.0
	for _, t := range list {
		e, err := b.enter(c, b.dispatch, t, t.Algo != "")
		if err != nil && !errors.Is(err, device.ErrUnsupported) && b.ended(ctx) {
			return nil, fmt.Errorf("%s: %w", tuningText(t), err)
		}
		if err != nil {
			continue
		}
		us, err := b.tried(ctx, e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", tuningText(e.way.Tuning), err)
		}
		if us > 0 && (found == nil || us < least) {
			found, e, least = e, found, us
		}
		if e != nil {
			if err := e.leave(); err != nil {
				return nil, err
			}
		}
	}
	if found == nil {
		return nil, nil
	}
	*best = max(*best, b.rate(c, least))
	return &rival{entrant: found, slow: map[int][]float64{}, rates: map[int][]float64{}, covered: map[int][]float64{}}, nil
}

// tried returns microseconds of a call alone, the better of two tries; 0 where
// its results are wrong.
func (b *besides) tried(ctx context.Context, e *entrant) (float64, error) {
	wrong, _, err := b.check(ctx, e, func() error { return b.run(e, 1) })
	if err != nil || wrong > 0 {
		return 0, err
	}
	one, err := b.timeCall(ctx, e, 3)
	if err != nil {
		return 0, err
	}
	two, err := b.timeCall(ctx, e, 3)
	return min(one, two), err
}

// contests lists the tunings of so many blocks, of each list of which the one
// that is fastest alone is measured. Copy engines are measured each way: between
// kernels of one block in which members meet, which wait for a multiprocessor, and
// between events.
func (b *besides) contests(c call, ctas int) [][]device.Tuning {
	if ctas != 0 {
		return [][]device.Tuning{b.candidates(ctas)}
	}
	if c.op == ir.OpReduceScatter || c.op == ir.OpAllReduce {
		return [][]device.Tuning{nil} // something has to add up
	}
	lists := [][]device.Tuning{namesOnly([]string{"direct"})}
	for _, t := range namesOnly(named(b.dispatch, "move-copy")) {
		lists = append(lists, []device.Tuning{t})
	}
	return lists
}

// candidates lists the tunings of so many blocks.
func (b *besides) candidates(ctas int) []device.Tuning {
	own := slices.DeleteFunc(b.dispatch.Algorithms(), func(n string) bool {
		return slices.Contains(comm.Schedules(), n) || strings.HasPrefix(n, "nccl") || b.Algorithms != nil && !slices.Contains(b.Algorithms, n)
	})
	if ctas < 0 {
		return append([]device.Tuning{{}}, namesOnly(append(own, named(b.dispatch, "nccl")...))...)
	}
	var list []device.Tuning
	for _, n := range own {
		for _, threads := range []int{0, 512, 1024} {
			for _, unroll := range []int{0, 1, 2, 8} {
				list = append(list, device.Tuning{Algo: n, Blocks: ctas, Threads: threads, Unroll: unroll})
			}
		}
	}
	return list
}
