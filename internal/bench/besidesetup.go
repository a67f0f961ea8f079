package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// besides is a measurement of products and collectives under way.
type besides struct {
	*job
	*contest.Arena
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
		return contest.Usagef("%s takes one shape", j.report.Bench)
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
	if b.Arena, err = contest.OpenArena(ctx, j.machine, j.Ranks, calls, j.DType, false); err != nil {
		return err
	}
	found := comm.Find(j.machine.Name(), b.World)
	b.Dispatch = comm.NewDispatch(b.World, j.machine.Caps(), found.Table, comm.Policy{})
	j.report.Table = tableUse(found)
	for _, name := range j.Algorithms {
		if err := b.Dispatch.Check(name); err != nil {
			return b.Arena.Close(contest.Usagef("%v", err))
		}
	}
	j.report.Beside = &Beside{Shape: b.shape}
	b.describe()
	return b.Arena.Close(contest.Within(ctx, b.World, func() error { return b.all(ctx, calls) }))
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
			return contest.Usagef("there is no collective %q to measure; there are %s", n, strings.Join(known, ", "))
		}
	}
	return nil
}

// calls lists the collectives.
func (b *besides) calls() []contest.Call {
	sizes := b.Sizes
	if sizes == nil {
		sizes = []int64{64 << 20}
		if b.embedded() {
			sizes = []int64{64 << 10}
		}
	}
	var list []contest.Call
	for _, op := range besideOps {
		if b.Options.Beside != nil && !slices.Contains(b.Options.Beside, op.String()) {
			continue
		}
		for _, n := range sizes {
			list = append(list, contest.NewCall(op, max(n, b.DType.Size()*int64(b.Ranks)), b.Ranks, b.DType))
		}
	}
	return list
}

// targets lists the multiprocessors that the product counts on.
func (b *besides) targets() []int {
	if b.SMs != nil {
		return b.SMs
	}
	m, ok := b.World.(interface{ Multiprocessors() int })
	if !ok {
		return []int{0}
	}
	n := m.Multiprocessors()
	return []int{0, n - 4, n - 8, n - 16, n - 32}
}

// all prepares products and measures every collective.
func (b *besides) all(ctx context.Context, calls []contest.Call) (err error) {
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
			return fmt.Errorf("%s of %s: %w", c.Op, contest.BytesText(c.Bytes), err)
		}
		b.report.Beside.Collectives = append(b.report.Beside.Collectives, *row)
	}
	base := contest.FigureOf(b.gemm[0]).Median
	for _, sms := range b.targets() {
		f := contest.FigureOf(b.gemm[sms])
		b.report.Beside.GEMMs = append(b.report.Beside.GEMMs, GEMMAlone{SMs: sms, Time: f, Slowdown: contest.Figure{Median: f.Median / base, Spread: f.Spread / base}})
	}
	return nil
}

// prepare makes the streams and the products.
func (b *besides) prepare(ctx context.Context) error {
	for r := range b.Ranks {
		d := b.World.Device(r)
		side, err := d.NewStream(device.StreamOptions{Name: "beside", Priority: 1})
		if err != nil {
			return err
		}
		b.Members[r].Stream = side
		main, err := d.NewStream(device.StreamOptions{Name: "main"})
		if err != nil {
			return err
		}
		b.main = append(b.main, main)
		if err := b.product(r); err != nil {
			return err
		}
	}
	b.report.Beside.Guesses = b.World.Guesses()
	return b.World.Sync(ctx)
}

// product makes rank r's operands and launches.
func (b *besides) product(r int) error {
	d, s := b.World.Device(r), b.shape
	var views []device.View
	for i, shape := range [][]int64{{s.M, s.K}, {s.N, s.K}, {s.M, s.N}} {
		mem, err := d.Alloc((shape[0]*shape[1]*b.DType.Size()+3)&^3, device.Private)
		if err != nil {
			return err
		}
		b.operands = append(b.operands, mem)
		views = append(views, device.View{Mem: mem, DType: b.DType, Shape: shape, Strides: []int64{shape[1], 1}})
		if i < 2 {
			if err := contest.Spread(b.main[r], mem, normalBlock(b.DType, mem.Bytes(), uint64(r*2+i))); err != nil {
				return err
			}
		}
	}
	var own []device.Launch
	for _, sms := range append(slices.Clone(b.targets()), 0) {
		if len(b.products[sms]) > r {
			continue
		}
		op := device.Linear{Product: device.Product{SMs: sms}}
		l, err := d.Prepare(device.Kernel{Op: op, Ins: views[:2], Outs: views[2:]})
		if err != nil {
			return err
		}
		b.products[sms] = append(b.products[sms], l)
		own = append(own, l)
	}
	return b.main[r].PrepareLaunches(own)
}

// normalBlock returns normal numbers for up to so many bytes: how operands differ
// from bit to bit is what products cost in power, and so in time.
func normalBlock(dt ir.DType, bytes int64, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 5))
	vals := make([]float64, min(contest.PatternLength, bytes/dt.Size()))
	for i := range vals {
		vals[i] = rng.NormFloat64()
	}
	block := make([]byte, (int64(len(vals))*dt.Size()+3)&^3)
	tensor.FromFloat64(block[:int64(len(vals))*dt.Size()], vals, dt)
	return block
}
