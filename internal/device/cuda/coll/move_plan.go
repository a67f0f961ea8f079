package coll

import (
	"fmt"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// MovePlan holds the members' moves. It also records which inputs are copied first because a result overlaps them.
type MovePlan struct {
	Moves  []kernels.Move
	staged []bool
	stage  int64 // bytes of a copied input
}

// launchable returns an error if the kernel cannot run some member's move, regardless of the available memory.
func (p *MovePlan) launchable() error {
	for i := range p.Moves {
		m := &p.Moves[i]
		m.Blocks = min(m.Blocks, kernels.BlocksMost)
		if _, err := m.Meeting(); err != nil {
			return err
		}
	}
	return nil
}

func (a MoveAlgorithm) plan(t Team, tune device.Tuning, c *Collective) (*MovePlan, error) {
	f, err := FlowOf(c, t.Members())
	if err != nil {
		return nil, err
	}
	kind, err := a.kind(f)
	if err != nil {
		return nil, err
	}
	if err := movable(t, c, f, kind); err != nil {
		return nil, err
	}
	p := &MovePlan{Moves: make([]kernels.Move, f.n), staged: make([]bool, f.n)}
	r, err := p.rows(c, f)
	if err != nil {
		return nil, err
	}
	if most := mostInSlots(kind); r.bytes() > most {
		return nil, fmt.Errorf("%w: blocks of %d bytes do not fit into the algorithm's buffers of %d bytes", device.ErrUnsupported, r.bytes(), most)
	}
	blocks, threads, unroll := launchOf(tune, kind, r, f.n)
	for i := range p.Moves {
		p.Moves[i] = kernels.Move{Kind: kind, Members: f.n, Me: i, Run: r.run, Extents: r.extents, DType: DTypeOf(c), Red: c.Red,
			Blocks: blocks, Threads: threads, Unroll: unroll, Shared: t.BlockShared(), Root: c.Root}
	}
	if spreads(kind) {
		p.spread(c)
	} else {
		f.fill(p, r)
	}
	return p, nil
}

func spreads(k kernels.MoveKind) bool { return k == kernels.MoveSpread || k == kernels.ReduceSpread }

// pushes reports whether members write into other members' results.
func pushes(k kernels.MoveKind) bool { return k == kernels.MovePush }

// movable returns an error if the kernel does not support the collective, or if the devices do not support the kernel.
func movable(t Team, c *Collective, f *flow, kind kernels.MoveKind) error {
	if f.reduces && c.Red == ir.Avg && DTypeOf(c).IsInt() {
		return fmt.Errorf("%w: the average of integers", device.ErrUnsupported)
	}
	if spreads(kind) {
		if err := spreadable(c); err != nil {
			return err
		}
	}
	if kind.LL128() {
		if err := t.Keeps128(); err != nil {
			return err
		}
	}
	return reach(t, f, kind)
}

// rows returns the common layout of all blocks, including the copies of inputs.
func (p *MovePlan) rows(c *Collective, f *flow) (blockRows, error) {
	var views []strided.View
	f.Pairs(func(i, q int) { views = append(views, f.In(i, q), f.Out(q, i)) })
	if len(views) == 0 {
		return blockRows{}, fmt.Errorf("%w: no member sends a block", device.ErrUnsupported)
	}
	if err := Alike(views); err != nil {
		return blockRows{}, err
	}
	for i := range c.Operands {
		if p.staged[i] = overlapping(c, f, i); p.staged[i] {
			p.stage = max(p.stage, c.Operands[i].In.Bytes())
			part := c.Operands[i].In.At(c.Operands[i].In.Addr) // the copy is dense; its address is not needed for the layout
			views = append(views, cutLike(c, part, f.n))
		}
	}
	r := rowsOf(views)
	if len(r.extents) > mostExtents {
		return r, fmt.Errorf("%w: blocks are rows of %d contiguous bytes in the shape %v, which has too many dimensions", device.ErrUnsupported, r.run, r.extents)
	}
	return r, nil
}

// MostInLL128 is the largest block, in bytes, for which slots of LL128 lines are reserved.
const MostInLL128 = 8 << 20

// mostInSlots returns the largest block, in bytes, that a kernel passes through slots. Packs use twice the bandwidth of
// stores, so other algorithms are faster well below this limit.
func mostInSlots(k kernels.MoveKind) int64 {
	switch {
	case k == kernels.MoveLL, k == kernels.ReduceLL:
		return 2 << 20
	case k.LL128() && !spreads(k):
		return MostInLL128
	}
	return 1 << 62
}

// mostExtents is the largest number of dimensions that kernels support in addition to the contiguous bytes of a row.
const mostExtents = 3

// cutLike splits an input into n blocks as c does, and returns the first block.
func cutLike(c *Collective, in strided.View, n int) strided.View {
	if axis := InAxis(c); axis != Whole {
		return in.Block(axis, 0, n)
	}
	return in
}

// DTypeOf returns the element type of c's operands.
func DTypeOf(c *Collective) ir.DType {
	for i := range c.Operands {
		if c.Operands[i].Reads {
			return c.Operands[i].In.DType
		}
	}
	return c.Operands[0].Out.DType
}

// reach returns an error if a member would have to access private memory of another GPU.
func reach(t Team, f *flow, kind kernels.MoveKind) (err error) {
	if !kind.Pulls() && !pushes(kind) {
		return nil
	}
	f.Pairs(func(i, q int) {
		far := f.Out(q, i)
		if kind.Pulls() {
			far = f.In(i, q)
		}
		if far.Mem != nil && far.Mem.Kind() == device.Private && !t.SharesGPU(i, q) {
			err = fmt.Errorf("%w: members access each other's operands, and an operand of member %d is in private memory", device.ErrUnsupported, far.Mem.Rank())
		}
	})
	return err
}

// overlapping reports whether member i's result overlaps its input such that the input has to be copied first.
func overlapping(c *Collective, f *flow, i int) bool {
	p := &c.Operands[i]
	if !p.Reads || !p.Writes || !p.In.Overlaps(&p.Out) {
		return false
	}
	switch c.Op {
	case ir.OpAllGather, ir.OpGather:
		mine := f.Out(i, i)
		return !p.In.Same(&mine)
	case ir.OpReduceScatter, ir.OpScatter:
		mine := f.In(i, i)
		return !p.Out.Same(&mine)
	case ir.OpBroadcast, ir.OpReduce:
		return !p.In.Same(&p.Out)
	}
	return true
}

// fill sets the senders, receivers and addresses of all blocks.
func (f *flow) fill(p *MovePlan, r blockRows) {
	f.Pairs(func(i, q int) {
		in, out := f.In(i, q), f.Out(q, i)
		giver, taker := &p.Moves[i], &p.Moves[q]
		kind := giver.Kind
		switch {
		case i != q:
			giver.To |= 1 << q
			taker.From |= 1 << i
		case f.reduces || !in.Same(&out):
			giver.Own = true
		}
		if kind.Pulls() {
			taker.Src[i], taker.SrcStrides[i] = in.Addr, r.strides(&in)
		} else {
			giver.Src[q], giver.SrcStrides[q] = in.Addr, r.strides(&in)
		}
		switch {
		case pushes(kind):
			giver.Dst[q], giver.DstStrides[q] = out.Addr, r.strides(&out)
		case !f.reduces:
			taker.Dst[i], taker.DstStrides[i] = out.Addr, r.strides(&out)
		default:
			taker.Dst[q], taker.DstStrides[q] = out.Addr, r.strides(&out)
		}
	})
}

// spreadable requires a broadcast or a reduce with at least two members besides the root.
func spreadable(c *Collective) error {
	if c.Op != ir.OpBroadcast && c.Op != ir.OpReduce || len(c.Operands) < 3 {
		return fmt.Errorf("%w: the algorithm is for a broadcast to two others or more, or a reduce from them", device.ErrUnsupported)
	}
	for p := range c.Operands {
		if c.Op == ir.OpBroadcast && p != c.Root && !c.Operands[p].Writes {
			return fmt.Errorf("%w: member %d gets nothing", device.ErrUnsupported, p)
		}
	}
	return nil
}

// spread sets the addresses of the root's input and of all results of a broadcast, or of all inputs and the root's
// result of a reduce.
func (p *MovePlan) spread(c *Collective) {
	for i := range c.Operands {
		q, m := &c.Operands[i], &p.Moves[i]
		if q.Reads {
			m.Src[i] = q.In.Addr
		}
		if q.Writes {
			m.Dst[i] = q.Out.Addr
		}
		m.Own = i == c.Root && q.Writes && (c.Op == ir.OpReduce || !q.In.Same(&q.Out))
	}
}

// Parts returns the launches that carry out the member's move m. A block that is longer than a slot that passes through
// slots is sent in several launches, one after another.
func Parts(m *kernels.Move) []kernels.Move {
	if !spreads(m.Kind) {
		return []kernels.Move{*m}
	}
	var list []kernels.Move
	for off := int64(0); off < m.Run; off += MostInLL128 {
		x := *m
		x.Run = min(m.Run-off, MostInLL128)
		x.Src[m.Me] += nvlib.Ptr(off)
		x.Dst[m.Me] += nvlib.Ptr(off)
		list = append(list, x)
	}
	return list
}

// Shares plans c for p, and adds copies of the inputs that results overlap. The returned moves may read these copies,
// so they are complete only after memory has been reserved for p.
func (a MoveAlgorithm) Shares(p *Plan, t Team, tune device.Tuning, c *Collective) (*MovePlan, [][]Action, error) {
	first := make([][]Action, t.Members())
	m, err := a.plan(t, tune, c)
	if err != nil || m.stage == 0 {
		return m, first, err
	}
	// The copies have no addresses yet, so the plan is made for dense inputs at address 0.
	staged, inputs := m.staged, make([]strided.View, len(c.Operands))
	for i := range c.Operands {
		if staged[i] {
			inputs[i] = c.Operands[i].In
			c.Operands[i].In = inputs[i].In(sharedCopy{inputs[i].Mem}, 0)
		}
	}
	stage := m.stage
	if m, err = a.plan(t, tune, c); err != nil {
		return nil, nil, err
	}
	p.reserve("copies of inputs", stage, func(mem Area) {
		for i := range c.Operands {
			if !staged[i] {
				continue
			}
			safe := inputs[i].In(sharedCopy{inputs[i].Mem}, mem.At[i])
			first[i] = append(first[i], Copy{safe, inputs[i]})
			c.Operands[i].In = safe
		}
		if now, err := a.plan(t, tune, c); err == nil { // plans again, with the addresses of the copies
			*m = *now
		}
	})
	return m, first, nil
}

// sharedCopy stands for the memory of a copied input. It is marked as shared, on the same device as the input.
type sharedCopy struct{ strided.Memory }

func (sharedCopy) Kind() device.MemKind { return device.Shared }
