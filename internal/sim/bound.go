package sim

import (
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Bound is what a resource of a machine takes at the least, in microseconds, whatever runs
// beside it: no kernel, fusion or overlap is faster.
type Bound struct {
	Memory  float64 `json:"memory_us"`  // a device's own memory
	Compute float64 `json:"compute_us"` // products and attention
	Wire    float64 `json:"wire_us"`    // what comes from other devices
}

// Time is the longest of them: of what overlaps perfectly.
func (b Bound) Time() float64 { return max(b.Memory, b.Compute, b.Wire) }

// By names the resource that takes longest; empty where none takes any time.
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

// Bounds tells the bounds of a plan's commands on a machine.
type Bounds struct {
	p *plan.Plan
	m *machine.Description
	// readers are the commands that read some of a buffer of a rank, by it.
	readers map[block][]int
}

// block is a buffer of a rank.
type block struct{ rank, buf int32 }

func blockOf(r plan.Ref) block { return block{r.Rank, r.Buf} }

// NewBounds prepares to tell the bounds of p's commands.
func NewBounds(p *plan.Plan, m *machine.Description) *Bounds {
	b := &Bounds{p: p, m: m, readers: map[block][]int{}}
	for i := range p.Cmds {
		reads, _ := p.Accesses(&p.Cmds[i])
		for _, r := range reads {
			b.readers[blockOf(r)] = append(b.readers[blockOf(r)], i)
		}
	}
	return b
}

// Group is the bound of commands that may be one launch: what one of them makes for the
// others alone need not go through memory. What launched kernels touch of their operands is
// not known, and so not counted.
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

// leaves reports whether something outside of a group reads what a member writes.
func (b *Bounds) leaves(r plan.Ref, within map[int]bool) bool {
	if b.p.Buffers[r.Buf].Role == plan.RoleInput {
		return true // inout
	}
	for _, i := range b.readers[blockOf(r)] {
		if !within[i] {
			return true
		}
	}
	return false
}

// Whole is the bound of all that a rank does, the largest of all ranks': every byte of
// parameters that is read comes from memory once, every byte of results and state that is
// written goes there once, and all else stays on chip. Each of the resources may be another
// rank's.
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

// touch is how many bytes of a tensor a command cannot do without.
type touch struct {
	ref   plan.Ref
	bytes int64
}

// name identifies the tensor.
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

// once is the bytes of a tensor's elements, of which those that stand for several count once.
func once(r plan.Ref) int64 {
	n := r.DType.Size()
	for i, e := range r.Shape {
		if e == 0 || r.Strides[i] != 0 {
			n *= e
		}
	}
	return n
}

// wholly counts all elements of tensors.
func wholly(refs []plan.Ref) []touch {
	var out []touch
	for _, r := range refs {
		if r.Present() {
			out = append(out, touch{r, once(r)})
		}
	}
	return out
}

// touched lists what a command reads and writes of its own device's memory.
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
	case c.Op == ir.OpAttention && len(c.Ins) > 3 && c.Ins[3].DType.IsInt(): // how many keys count is in the lengths
		return []touch{reads[0], reads[3]}, writes
	case c.Op == ir.OpGroupedLinear: // how many rows and experts count is in the counts
		return []touch{reads[2]}, writes
	case c.Op == ir.OpAttention && c.Attr.Number(1).Float > 0: // as many keys as the last query sees, at least
		keys := c.Ins[1].Shape
		if n := keys[len(keys)-3]; n > 0 {
			share := min(1, c.Attr.Number(1).Float/float64(n))
			if len(reads) == 4 {
				reads = reads[:3] // a mask, of which a part is read
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

// moved returns the bytes that a command brings its rank from others, or, of a put, takes there.
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

// flopTime is what the multiplications of a command take at the machine's peak.
func (b *Bounds) flopTime(c *plan.Cmd) float64 {
	if c.Kind != plan.Compute {
		return 0
	}
	switch c.Op {
	case ir.OpLinear, ir.OpMatmul:
		x := c.Ins[0].Shape
		k := x[len(x)-1]
		if c.Attr.TA {
			k = x[len(x)-2]
		}
		return b.m.ComputeBound(c.Outs[0].DType, 2*float64(c.Outs[0].Elements())*float64(k))
	case ir.OpAttention, ir.OpAttentionLSE, ir.OpAttentionDQ, ir.OpAttentionDKV:
		if c.Op == ir.OpAttention && len(c.Ins) > 3 && c.Ins[3].DType.IsInt() {
			return 0
		}
		q, k := c.Ins[0].Shape, c.Ins[1].Shape
		tq, tk := q[len(q)-3], k[len(k)-3]
		seen := float64(tq) * float64(tk)
		if c.Attr.Causal { // query i sees i+1 more than what there is before the first
			seen = float64(tq)*float64(tk-tq) + float64(tq)*float64(tq+1)/2
		}
		if w := c.Attr.Number(1).Float; w > 0 {
			// The first w queries may see fewer keys than the window has.
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
