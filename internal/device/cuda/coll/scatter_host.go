package coll

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// pushSum runs a reduce_scatter, in the same way as the first phase of the algorithm push. Members store each other's
// blocks into staging memory in chunks. The receiver reduces the chunks that have arrived. The first chunks of each
// block are transferred through the sender's host memory. These stores are faster than the loads of the algorithm
// move-pull.
type pushSum struct{}

// SumAlgorithms lists the reduction algorithms that use host memory.
var SumAlgorithms = []Entry{{Info{Name: "move-sum-host", Ops: []ir.Op{ir.OpReduceScatter}, HostLink: true,
	Takes: "reduce_scatter; contiguous blocks, multiples of 16 bytes, from about 400 KiB on",
	How: "as the first shot of push: blocks are written into staging memory of the member that adds them, with a flag for each " +
		"chunk; a part of each block goes through host memory"},
	pushSum{}}}

// pushSumUnrolls lists the supported unrollings. A thread loads at most pushSumTogether packs at once. With a larger
// unrolling, a block sends one signal for several chunks, because each signal costs a round trip over the link.
var pushSumUnrolls = []int{1, 2, 4, 8}

const pushSumTogether = 2

// Supports returns an error if the algorithm cannot run c.
func (a pushSum) Supports(t Team, tune device.Tuning, c *Collective) error {
	if c.Empty() {
		return nil
	}
	_, _, err := a.request(t, tune, c)
	return err
}

// request returns the launch, of which only the memory is not set, and how many packs of a share are transferred
// through host memory.
func (a pushSum) request(t Team, tune device.Tuning, c *Collective) (r *kernels.AllReduce, split int64, err error) {
	f, err := FlowOf(c, t.Members())
	if err != nil {
		return nil, 0, err
	}
	if err := movable(t, c, f, kernels.ReduceLL); err != nil {
		return nil, 0, err
	}
	r = &kernels.AllReduce{DType: DTypeOf(c), Red: c.Red, Threads: cmp.Or(tune.Threads, threadsMost),
		Unroll: cmp.Or(tune.Unroll, 2)}
	switch {
	case !slices.Contains(pushSumUnrolls, r.Unroll):
		return nil, 0, fmt.Errorf("%w: unroll %d; it has %v", device.ErrUnsupported, r.Unroll, pushSumUnrolls)
	case r.Threads%32 != 0 || r.Threads < 32 || r.Threads > threadsMost:
		return nil, 0, fmt.Errorf("%w: %d threads; threads must be a multiple of 32 up to %d", device.ErrUnsupported, r.Threads,
			threadsMost)
	case tune.Blocks < 0 || tune.Blocks > kernels.BlocksMost:
		return nil, 0, fmt.Errorf("%w: %d blocks; at most %d are possible", device.ErrUnsupported, tune.Blocks,
			kernels.BlocksMost)
	}
	if err := a.operands(r, c, f); err != nil {
		return nil, 0, err
	}
	by := kernels.AllReduceScatter{}
	if r.Unroll > pushSumTogether {
		r.Unroll, by.Group = pushSumTogether, int64(r.Unroll/pushSumTogether)
	}
	r.By = by
	if split = hostAddends(t, r); split == 0 {
		return nil, 0, fmt.Errorf("%w: blocks of %d bytes are not worth cutting", device.ErrUnsupported, r.Share*16)
	}
	return r, split, nil
}

// addendsByHost returns the part of a reduce_scatter's data that goes through host memory. The values were the fastest
// on two and four H200. Each member reads as much as it writes, 30 to 37 GB/s in each direction. The bandwidth is
// highest with few writing thread blocks, because readers then read data that was just written. Large blocks of data
// need fewer writers.
func addendsByHost(members int, bytes int64) HostPart {
	switch {
	case members == 2:
		return HostPart{80, 6, 12}
	case bytes < 48<<20:
		return HostPart{70, 6, 12}
	case bytes < 192<<20:
		return HostPart{75, 4, 8}
	}
	return HostPart{65, 3, 12}
}

// hostAddends returns the number of packs of a share that are transferred through host memory, a multiple of a chunk.
func hostAddends(t Team, r *kernels.AllReduce) int64 {
	chunk := int64(r.Threads * r.Unroll)
	return r.Share * t.HostParts().Addends(len(r.In), r.Count*r.DType.Size()).Permille / 1000 / chunk * chunk
}

// operands returns an error unless the blocks consist of whole packs and are contiguous in the order of members. A
// result may overlap its member's input only if it is the member's own block.
func (pushSum) operands(r *kernels.AllReduce, c *Collective, f *flow) error {
	first := f.In(0, 0)
	bytes := first.Bytes()
	r.Share, r.Count = bytes/16, first.N*int64(f.n)
	for i := range f.n {
		in, out, own := f.In(i, 0), f.Out(i, 0), f.In(i, i)
		if !in.Dense() || !out.Dense() {
			return fmt.Errorf("%w: member %d: there are gaps between the elements of a block", device.ErrUnsupported, i)
		}
		for p := range f.n {
			if b := f.In(i, p); b.Addr != in.Addr+nvlib.Ptr(int64(p)*bytes) {
				return fmt.Errorf("%w: member %d: blocks are not contiguous", device.ErrUnsupported, i)
			}
		}
		if bytes%16 != 0 || (in.Addr|out.Addr)%16 != 0 {
			return fmt.Errorf("%w: member %d: a block does not begin at a multiple of 16 bytes, or has another size than a multiple of them", device.ErrUnsupported, i)
		}
		if whole := &c.Operands[i].In; whole.Overlaps(&out) && out.Addr != own.Addr {
			return fmt.Errorf("%w: member %d: the result overlaps the operand elsewhere than at its own block", device.ErrUnsupported, i)
		}
		r.In, r.Out = append(r.In, in.Addr), append(r.Out, out.Addr)
	}
	return nil
}

// Plan returns a plan of one launch on each member.
func (a pushSum) Plan(t Team, tune device.Tuning, c *Collective) (*Plan, error) {
	r, split, err := a.request(t, tune, c)
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	aside := addends(p, t, tune, r, split)
	chunks := ceil(r.Share, int64(r.Threads*r.Unroll))
	r.Blocks = grid(t, tune, r.Threads, chunks+aside)
	p.reserve("staging", int64(t.Members())*r.Share*16, func(a Area) { r.Data = a.At })
	flagged(p, t, r, chunks+kernels.BlocksMost)
	return p.meeting(t, r), nil
}

// addends requests host memory for a part of r's blocks, and sets the thread blocks that write and read this memory.
// It returns the number of these thread blocks. If too few thread blocks would remain for the link, it changes nothing
// and returns 0.
func addends(p *Plan, t Team, tune device.Tuning, r *kernels.AllReduce, split int64) (aside int64) {
	part := t.HostParts().Addends(t.Members(), r.Count*r.DType.Size())
	aside = part.Writers + part.Readers
	if int64(grid(t, tune, r.Threads, math.MaxInt64)) < 6*aside {
		return 0
	}
	by := kernels.AllReduceAddends{Group: r.By.(kernels.AllReduceScatter).Group,
		ByHost: kernels.ByHost{Split: split, Writers: part.Writers, Readers: part.Readers}}
	p.hostMemory(int64(t.Members())*split*16, func(a Area) {
		by.Host = a.At
		r.By = by
	})
	return aside
}
