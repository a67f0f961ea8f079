package coll

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

var allReduce = []ir.Op{ir.OpAllReduce}

// ReduceAlgorithms lists the algorithms for all_reduce.
var ReduceAlgorithms = []Entry{
	{Info{Name: "ll", Ops: allReduce, MostBytes: 4 << 20, OneShot: true,
		How: "one shot; 8 of 16 bytes are flags, by which a receiver sees that the data has arrived"},
		ReduceAlgorithm{kind: kernels.AllReduceLL{}, unrolls: []int{1, 2, 4}}},
	{Info{Name: "ll2", Ops: allReduce, MostBytes: 16 << 20, How: "the same in two shots"},
		ReduceAlgorithm{kind: kernels.AllReduceLL2{}, unrolls: []int{1}, shots: 2}},
	{Info{Name: "ll128", Ops: allReduce, MostBytes: 64 << 20, OneShot: true, How: "one shot, with one flag for each 128 bytes"},
		ReduceAlgorithm{kind: kernels.AllReduceLL128{}, unrolls: []int{1, 2, 4}, ll128: true}},
	{Info{Name: "ll128x2", Ops: allReduce, MostBytes: 64 << 20, How: "the same in two shots"},
		ReduceAlgorithm{kind: kernels.AllReduceLL128x2{}, unrolls: []int{1, 2, 4}, shots: 2, ll128: true}},
	{Info{Name: "lamport", Ops: allReduce, MostBytes: 64 << 20, OneShot: true, Takes: "all_reduce of f32, f16 and bf16",
		How: "one shot without flags: receive memory is filled with the bits of one NaN, and that NaN is sent as " +
			"another NaN, so any other value is data that has arrived; the receiver then restores the fill"},
		ReduceAlgorithm{kind: kernels.AllReduceLamport{}, unrolls: []int{1, 2}, lamport: true}},
	{Info{Name: "lamportx2", Ops: allReduce, MostBytes: 64 << 20, Takes: "all_reduce of f32, f16 and bf16",
		How: "the same in two shots"},
		ReduceAlgorithm{kind: kernels.AllReduceLamportx2{}, unrolls: []int{1, 2}, shots: 2, lamport: true}},
	{Info{Name: "lamport-host", Ops: allReduce, MostBytes: 64 << 20, HostLink: true,
		Takes: "all_reduce of f32, f16 and bf16; operands at multiples of 16 bytes; of two members not in place",
		How: "two members: as lamport, but a part of the data goes through host memory; more members: two shots, with " +
			"results written directly into the peers' outputs, a part of them through host memory as in push-host"},
		ReduceAlgorithm{kind: kernels.AllReduceLamportHost{}, unrolls: []int{1, 2}, Direct: true, lamport: true}},
	{Info{Name: "push", Ops: allReduce, Takes: "all_reduce; operands at multiples of 16 bytes",
		How: "two shots through staging memory, with a flag for each chunk; results are written directly into the peers' outputs"},
		ReduceAlgorithm{kind: kernels.AllReducePush{}, unrolls: []int{1, 2, 4, 8}, Direct: true}},
	{Info{Name: "pull", Ops: allReduce, Memory: device.MemoryFlags, Takes: "all_reduce; operands at multiples of 16 bytes",
		How: "each member reads its share from the peers' inputs, and writes the results into their outputs"},
		ReduceAlgorithm{kind: kernels.AllReducePull{}, unrolls: []int{1, 2, 4}, Direct: true}},
	{Info{Name: "few", Ops: allReduce, Memory: device.MemoryFixed, Takes: "all_reduce; operands at multiples of 16 bytes",
		How: "as pull, but with few thread blocks, which keep more loads in flight by loading into shared memory; of four members, from 24 MiB on, " +
			"some results are copied through host memory"},
		ReduceAlgorithm{kind: kernels.AllReduceSMLimited{}, unrolls: []int{1, 2, 4}, Direct: true}},
	{Info{Name: "push-host", Ops: allReduce, HostLink: true,
		Takes: "all_reduce; operands at multiples of 16 bytes; of two members not in place",
		How: "as push, but a part goes through host memory: a part of the operands of two members; or, of more members, " +
			"a part of the results: thread blocks of one member write it there, and those of all others read it"},
		ReduceAlgorithm{kind: kernels.AllReduceHost{}, unrolls: []int{1, 2, 4}, Direct: true}},
}

// ReduceAlgorithm runs an all_reduce as one kernel on each member.
type ReduceAlgorithm struct {
	kind    kernels.ReduceBy // identifies the kernel: the zero value of its launch type
	unrolls []int
	shots   int64 // 1 if members exchange whole operands; 2 if each member reduces a share and then distributes it
	Direct  bool  // members access peers' operands directly, in packs of 16 bytes
	ll128   bool  // every 128 bytes contain a flag
	lamport bool  // a receiver recognizes arrived data by its value
}

// Supports returns an error if the algorithm cannot carry out c.
func (a ReduceAlgorithm) Supports(t Team, tune device.Tuning, c *Collective) error {
	if c.Red < ir.Sum || c.Red > ir.Avg {
		return fmt.Errorf("there is no reduction %d", c.Red)
	}
	if t.Members() < 2 {
		return fmt.Errorf("%w: a team of one", device.ErrUnsupported)
	}
	if tune.Unroll != 0 && !slices.Contains(a.unrolls, tune.Unroll) {
		return fmt.Errorf("%w: unroll %d; it has %v", device.ErrUnsupported, tune.Unroll, a.unrolls)
	}
	if tune.Threads != 0 && (tune.Threads%32 != 0 || tune.Threads < 32 || tune.Threads > threadsMost) {
		return fmt.Errorf("%w: %d threads; threads must be a multiple of 32 up to %d", device.ErrUnsupported, tune.Threads, threadsMost)
	}
	if tune.Blocks < 0 || tune.Blocks > kernels.BlocksMost {
		return fmt.Errorf("%w: %d blocks; at most %d are possible", device.ErrUnsupported, tune.Blocks, kernels.BlocksMost)
	}
	if is[kernels.AllReduceSMLimited](a) {
		if err := smLimitedFits(t, tune); err != nil {
			return err
		}
	}
	return a.supportsParts(t, tune, c)
}

func (a ReduceAlgorithm) supportsParts(t Team, tune device.Tuning, c *Collective) error {
	for i := range c.Operands {
		p := &c.Operands[i]
		if !p.Reads || !p.Writes {
			return fmt.Errorf("member %d: an all_reduce needs an operand and a result", i)
		}
		if p.In.N != c.Operands[0].In.N || p.Out.N != p.In.N {
			return fmt.Errorf("member %d: %d elements to reduce into %d, but member 0 has %d", i, p.In.N, p.Out.N, c.Operands[0].In.N)
		}
		if !p.In.Dense() || !p.Out.Dense() {
			return fmt.Errorf("%w: member %d: there are gaps between the elements of an operand", device.ErrUnsupported, i)
		}
		if p.In.Overlaps(&p.Out) && p.In.Addr != p.Out.Addr {
			return fmt.Errorf("%w: member %d: the result overlaps the operand at another address", device.ErrUnsupported, i)
		}
		if a.Direct && (p.In.Mem.Kind() != device.Shared || p.Out.Mem.Kind() != device.Shared) {
			return fmt.Errorf("%w: member %d: peers cannot access its memory", device.ErrUnsupported, i)
		}
		if a.Direct && (p.In.Addr|p.Out.Addr)%16 != 0 {
			return fmt.Errorf("%w: member %d: an operand does not begin at a multiple of 16 bytes", device.ErrUnsupported, i)
		}
	}
	if a.lamport {
		if err := spares(c.Operands[0].In.DType); err != nil {
			return err
		}
	}
	switch {
	case a.ll128:
		return t.Keeps128()
	case is[kernels.AllReduceLamportHost](a):
		return lamportHostable(t, a.request(tune, c), c)
	case is[kernels.AllReduceHost](a):
		return hostable(t, a.request(tune, c), c)
	}
	return nil
}

// is is a predicate: it reports whether a's launches have the type K.
func is[K kernels.ReduceBy](a ReduceAlgorithm) bool {
	_, ok := a.kind.(K)
	return ok
}

// request returns the launch. The launch has all fields that the tuning and the collective determine.
func (a ReduceAlgorithm) request(tune device.Tuning, c *Collective) *kernels.AllReduce {
	first := &c.Operands[0].In
	r := &kernels.AllReduce{By: a.kind, DType: first.DType, Red: c.Red, Count: first.N, Threads: tune.Threads,
		Unroll: tune.Unroll}
	if r.Threads == 0 {
		r.Threads = TeamThreads
		switch a.kind.(type) {
		case kernels.AllReducePush, kernels.AllReduceHost, kernels.AllReduceLamportHost:
			r.Threads = threadsMost
		}
	}
	if r.Unroll == 0 {
		r.Unroll = a.unroll(first.Bytes(), len(c.Operands))
	}
	for i := range c.Operands {
		r.In, r.Out = append(r.In, c.Operands[i].In.Addr), append(r.Out, c.Operands[i].Out.Addr)
	}
	return r
}

// unroll returns the factor of loop unrolling that was fastest for each size on H200.
func (a ReduceAlgorithm) unroll(bytes int64, members int) int {
	switch {
	case (is[kernels.AllReduceHost](a) || is[kernels.AllReduceLamportHost](a)) && members > 2:
		return 1
	case a.ll128 && bytes > 8<<20, is[kernels.AllReduceHost](a):
		return 4
	case a.ll128 && bytes > 1<<20, a.Direct:
		return 2
	}
	return 1
}

// Plan determines the number of thread blocks and requests the memory.
func (a ReduceAlgorithm) Plan(t Team, tune device.Tuning, c *Collective) (*Plan, error) {
	r, p := a.request(tune, c), &Plan{}
	switch a.kind.(type) {
	case kernels.AllReduceLL, kernels.AllReduceLL2:
		a.planLL(p, t, tune, r)
	case kernels.AllReduceLL128, kernels.AllReduceLL128x2:
		a.planLL128(p, t, tune, r)
	case kernels.AllReduceLamport, kernels.AllReduceLamportx2:
		a.planLamport(p, t, tune, r)
	case kernels.AllReduceLamportHost:
		a.planLamportHost(p, t, tune, r)
	case kernels.AllReducePush:
		planPush(p, t, tune, r)
	case kernels.AllReduceSMLimited:
		planSMLimited(p, t, tune, r)
	case kernels.AllReduceHost:
		planPushHost(p, t, tune, r)
	default:
		planPull(p, t, tune, r)
	}
	return p.meeting(t, r), nil
}

// meeting adds the launches to p, one on each member, and returns p.
func (p *Plan) meeting(t Team, r *kernels.AllReduce) *Plan {
	p.Launches = func() ([][]Action, error) {
		list := make([][]Action, t.Members())
		for i := range list {
			list[i] = []Action{Kernel{r.Meeting(i)}}
		}
		return list, nil
	}
	return p
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }

// grid returns the number of thread blocks: as many as can run at once, but at most the tuned number, and at most work.
func grid(t Team, tune device.Tuning, threads int, work int64) int {
	n := int64(t.Room(threads))
	if tune.Blocks > 0 {
		n = min(n, int64(tune.Blocks))
	}
	return int(max(1, min(n, work)))
}

// shared returns how much of n each member reduces, and for how many such shares the receive memory has room.
func (a ReduceAlgorithm) shared(n, members, grain int64) (share, times int64) {
	if a.shots < 2 {
		return n, members
	}
	return ceil(ceil(n, members), grain) * grain, 2 * members
}

// planLL plans a kernel that sends packs; half of each pack is data and half is flags.
func (a ReduceAlgorithm) planLL(p *Plan, t Team, tune device.Tuning, r *kernels.AllReduce) {
	units := ceil(r.Count*r.DType.Size(), 8)
	var times int64
	r.Share, times = a.shared(units, int64(t.Members()), 16)
	r.Blocks = grid(t, tune, r.Threads, ceil(r.Share, int64(r.Threads*r.Unroll)))
	p.pushed(r, "ll", times*r.Share*16)
}

func (p *Plan) pushed(r *kernels.AllReduce, name string, half int64) {
	p.halves(name, half, func(a Area) { r.Data, r.Half = a.At, a.half() })
}

// planLL128 plans a kernel that sends LL128 lines.
func (a ReduceAlgorithm) planLL128(p *Plan, t Team, tune device.Tuning, r *kernels.AllReduce) {
	sheets := ceil(ceil(r.Count*r.DType.Size(), 16), kernels.LL128Packs(r.Unroll))
	var times int64
	r.Share, times = a.shared(sheets, int64(t.Members()), 1)
	r.Blocks = grid(t, tune, r.Threads, r.Share)
	p.pushed(r, "ll128", times*r.Share*512*int64(r.Unroll))
}

// ShareOut sets how many packs of 16 bytes each member reduces: a multiple of a cache line.
func ShareOut(r *kernels.AllReduce, members int64) {
	r.Share = ceil(ceil(ceil(r.Count*r.DType.Size(), 16), members), 8) * 8
}

// planPush plans a kernel that sends chunks through staging memory.
func planPush(p *Plan, t Team, tune device.Tuning, r *kernels.AllReduce) {
	members := int64(t.Members())
	ShareOut(r, members)
	chunks := ceil(r.Share, int64(r.Threads*r.Unroll))
	r.Blocks = grid(t, tune, r.Threads, chunks)
	p.reserve("staging", members*r.Share*16, func(a Area) { r.Data = a.At })
	flagged(p, t, r, chunks+kernels.BlocksMost)
}

// planPull plans a kernel in which members read each other's operands.
func planPull(p *Plan, t Team, tune device.Tuning, r *kernels.AllReduce) {
	ShareOut(r, int64(t.Members()))
	r.Blocks = grid(t, tune, r.Threads, ceil(r.Share, int64(r.Threads)))
	flagged(p, t, r, 2*kernels.BlocksMost)
}

// flagged requests the given number of flags for each pair of members.
func flagged(p *Plan, t Team, r *kernels.AllReduce, slots int64) {
	r.Slots = slots
	p.halves("flags", int64(t.Members())*slots*4, func(a Area) { r.Flags, r.FlagHalf = a.At, a.half() })
}
