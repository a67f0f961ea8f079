package sim

import (
	"hocket.example/hocket/internal/exec/fuse"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Bound is the minimum time, in microseconds, that each resource of a machine needs for a set of operations. No kernel,
// fusion or overlap can be faster.
type Bound struct {
	Memory  float64 `json:"memory_us"`  // time for the traffic of the device's own memory
	Compute float64 `json:"compute_us"` // time for GEMMs and attention
	Wire    float64 `json:"wire_us"`    // time for bytes received from other devices
}

// Time returns the longest of the three times: the time if all three overlap perfectly.
func (b Bound) Time() float64 { return max(b.Memory, b.Compute, b.Wire) }

// By returns the name of the resource (memory, compute or wire) whose time is the longest, or "" if all times are 0.
func (b Bound) By() string {
	switch b.Time() {
	case 0:
		return ""
	case b.Memory:
		return "memory"
	case b.Compute:
		return "compute"
	}
	return "wire"
}

// Bounds computes the bounds of a plan's commands on a machine.
type Bounds struct {
	p *plan.Plan
	m *machine.Description
	// readers lists, for each buffer of a rank, the commands that read some of it.
	readers map[block][]int
	// within holds each attention_lse that one kernel may compute together with the attention before it.
	within map[*plan.Cmd]bool
}

// block identifies a buffer on a rank.
type block struct{ rank, buf int32 }

func blockOf(r plan.Ref) block { return block{r.Rank, r.Buf} }

// NewBounds returns the Bounds of p on m.
func NewBounds(p *plan.Plan, m *machine.Description) *Bounds {
	b := &Bounds{p: p, m: m, readers: map[block][]int{}, within: map[*plan.Cmd]bool{}}
	_ = fuse.NewFinder(p).Attentions(func(_, lse int) error {
		b.within[&p.Cmds[lse]] = true
		return nil
	})
	for i := range p.Cmds {
		reads, _ := p.Accesses(&p.Cmds[i])
		for _, r := range reads {
			b.readers[blockOf(r)] = append(b.readers[blockOf(r)], i)
		}
	}
	return b
}

// Group returns the bound for commands that may be fused into one launch. A result that only other members of the group
// read is not counted, because it need not be stored in memory. Memory that user kernels (ir.OpLaunch) access is
// unknown and not counted.
func (b *Bounds) Group(members []int) Bound {
	var flops float64
	var moved, bytes int64
	within := map[int]bool{}
	made, seen := map[block]bool{}, map[string]bool{}
	for _, m := range members {
		within[m] = true
	}
	for _, m := range members {
		c := &b.p.Cmds[m]
		flops += b.flopTime(c)
		moved += b.moved(c)
		reads, writes := b.touched(c)
		for _, r := range reads {
			if name := r.name(); !made[blockOf(r.ref)] && !seen[name] {
				seen[name] = true
				bytes += r.bytes
			}
		}
		for _, w := range writes {
			made[blockOf(w.ref)] = true
			if b.leaves(w.ref, within) {
				bytes += w.bytes
			}
		}
	}
	return Bound{Memory: b.m.MemoryBound(bytes), Compute: flops, Wire: b.m.WireBound(moved)}
}

// leaves reports whether a command outside the group reads r, or r belongs to an input and so
// outlives the run.
func (b *Bounds) leaves(r plan.Ref, within map[int]bool) bool {
	if b.p.Buffers[r.Buf].Role == plan.RoleInput {
		return true // an input that is updated in place
	}
	for _, i := range b.readers[blockOf(r)] {
		if !within[i] {
			return true
		}
	}
	return false
}

// Whole returns a bound for the whole plan. It assumes that each byte of the parameters is read from memory once, that
// each byte of results and of updated inputs is written to memory once, and that all other data remain on chip. Each of
// the three times is the maximum over all ranks, so they may be times of different ranks.
func (b *Bounds) Whole() Bound {
	ranks := make([]struct {
		flops        float64
		moved, bytes int64
	}, b.p.Ranks)
	type direction struct {
		block
		write bool
	}
	touched, seen := map[direction]int64{}, map[string]bool{}
	add := func(t touch, write bool) {
		buf := &b.p.Buffers[t.ref.Buf]
		if buf.Role != plan.RoleInput && !(write && buf.Role == plan.RoleOutput) {
			return
		}
		name := t.name()
		if write {
			name += " write"
		}
		if at := (direction{blockOf(t.ref), write}); !seen[name] {
			seen[name] = true
			touched[at] = min(touched[at]+t.bytes, buf.Bytes)
		}
	}
	for i := range b.p.Cmds {
		c := &b.p.Cmds[i]
		r := &ranks[c.Rank]
		r.flops += b.flopTime(c)
		r.moved += b.moved(c)
		if c.Kind == plan.Input || c.Kind == plan.Output {
			continue
		}
		reads, writes := b.touched(c)
		for _, t := range reads {
			add(t, false)
		}
		for _, t := range writes {
			add(t, true)
		}
	}
	for at, n := range touched {
		ranks[at.rank].bytes += n
	}
	var out Bound
	for _, r := range ranks {
		out.Memory = max(out.Memory, b.m.MemoryBound(r.bytes))
		out.Compute = max(out.Compute, r.flops)
		out.Wire = max(out.Wire, b.m.WireBound(r.moved))
	}
	return out
}

// touch is the part of a tensor, in bytes, that a command must read or write.
type touch struct {
	ref   plan.Ref
	bytes int64
}

// name returns a key that identifies the tensor and the number of bytes.
func (t touch) name() string {
	r := t.ref
	key := make([]byte, 0, 16*(3+2*len(r.Shape)))
	for _, list := range [][]int64{{int64(r.Rank), int64(r.Buf), r.Off}, r.Shape, r.Strides} {
		for _, v := range list {
			for range 8 {
				key = append(key, byte(v))
				v >>= 8
			}
		}
	}
	return string(key)
}

// wholly returns one touch for each tensor, which covers all of its elements.
func wholly(refs []plan.Ref) []touch {
	var out []touch
	for _, r := range refs {
		if r.Present() {
			out = append(out, touch{r, r.Distinct()})
		}
	}
	return out
}

// touched returns the parts of tensors that a command reads or writes in the memory of its own device.
func (b *Bounds) touched(c *plan.Cmd) (reads, writes []touch) {
	in, out := b.p.Accesses(c)
	reads, writes = wholly(in), wholly(out)
	switch {
	case c.Kind == plan.Copy:
		return own(reads, c.Rank), own(writes, c.Rank)
	case c.Kind != plan.Compute:
		return reads, writes
	case c.Op == ir.OpLaunch:
		return nil, nil
	case c.Op == ir.OpAttention && len(c.Ins) > 3 && c.Ins[3].DType.IsInt(): // the number of keys that are read depends on lengths that are known only at run time
		return []touch{reads[0], reads[3]}, writes
	case c.Op == ir.OpGroupedLinear: // the number of rows and experts that are read depends on counts that are known only at run time
		return []touch{reads[2]}, writes
	case c.Op == ir.OpAttention && c.Attr.Number(1).Float > 0: // with a window, at least the keys in the window of the last query are read
		keys := c.Ins[1].Shape
		if n := keys[len(keys)-3]; n > 0 {
			share := min(1, c.Attr.Number(1).Float/float64(n))
			if len(reads) == 4 {
				reads = reads[:3] // without the mask, of which only a part is read
			}
			reads[1].bytes, reads[2].bytes = int64(share*float64(reads[1].bytes)), int64(share*float64(reads[2].bytes))
		}
		return reads, writes
	}
	sizes := make([]int64, len(reads))
	for i := range reads {
		sizes[i] = reads[i].bytes
	}
	sizes, writes[0].bytes = Touched(c.Op, sizes, writes[0].bytes)
	reads = reads[:len(sizes)]
	for i := range reads {
		reads[i].bytes = sizes[i]
	}
	return reads, writes
}

func own(list []touch, rank int32) []touch {
	var out []touch
	for _, t := range list {
		if t.ref.Rank == rank {
			out = append(out, t)
		}
	}
	return out
}

// moved returns the number of bytes that a command receives from other ranks. The bytes of a put are counted for the
// sending rank.
func (b *Bounds) moved(c *plan.Cmd) (n int64) {
	switch c.Kind {
	case plan.Collective:
		return b.p.Colls[c.Coll].Moved(int(c.Part))
	case plan.Copy:
		if c.Ins[0].Rank != c.Outs[0].Rank {
			return c.Ins[0].Bytes()
		}
	case plan.Group:
		for _, t := range c.Group {
			if pair := &b.p.Pairs[t.Pair]; !t.Send && pair.Src.Rank != pair.Dst.Rank {
				n += pair.Dst.Bytes()
			}
		}
	}
	return n
}

// flopTime returns the time of a command's multiplications at the machine's peak rate.
func (b *Bounds) flopTime(c *plan.Cmd) float64 {
	if c.Kind != plan.Compute || b.within[c] {
		return 0
	}
	switch c.Op {
	case ir.OpLinear, ir.OpMatmul:
		x := c.Ins[0].Shape
		k := x[len(x)-1]
		if c.Attr.TA {
			k = x[len(x)-2]
		}
		flops := 2 * float64(c.Outs[0].Elements()) * float64(k)
		if len(c.Ins) == 4 && c.Ins[0].DType.IsFloat8() {
			return b.m.ScaledBound(machine.Scaled{Blocks: len(c.Ins[2].Shape) == len(x) || len(c.Ins[3].Shape) == 2,
				FastAccum: c.Attr.FastAccum}, flops)
		}
		return b.m.ComputeBound(c.Outs[0].DType, flops)
	case ir.OpAttention, ir.OpAttentionLSE, ir.OpAttentionDQ, ir.OpAttentionDKV:
		if c.Op == ir.OpAttention && len(c.Ins) > 3 && c.Ins[3].DType.IsInt() {
			return 0
		}
		q, k := c.Ins[0].Shape, c.Ins[1].Shape
		tq, tk := q[len(q)-3], k[len(k)-3]
		seen := float64(tq) * float64(tk)
		if c.Attr.Causal { // query i uses i+1 keys in addition to the keys before the first query
			seen = float64(tq)*float64(tk-tq) + float64(tq)*float64(tq+1)/2
		}
		if w := c.Attr.Number(1).Float; w > 0 {
			// The first w queries may use fewer keys than the window has.
			seen = min(seen, max(0, float64(tq)-w)*w)
		}
		pairs := seen
		if tq > 0 {
			pairs *= float64(c.Ins[0].Elements()) / float64(tq)
		}
		return b.m.ComputeBound(c.Ins[0].DType, 2*float64(attentionProducts(c.Op))*pairs)
	}
	return 0
}
