package certify

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Plan makes the statement of a plan: two runs of its commands, back to back. It fails if the plan cannot be right in
// ways that need no execution.
//
// A chain is a stream. Events, elements of counters, collectives and transfers become counters: whoever takes part in a
// collective adds when it begins, and goes on when all have; what it learns is what the data bring.
func Plan(p *plan.Plan) (*Statement, error) {
	if err := plan.Validate(p); err != nil {
		return nil, err
	}
	b := &planStatement{p: p, s: &Statement{Plan: p.HashString(), Chains: len(p.Streams)}, places: map[string]int32{}}
	for _, f := range []func() error{b.parameters, b.operands, b.classes} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	for _, c := range p.Counters {
		b.elems = append(b.elems, b.counters(len(c.PerRun)))
	}
	for run := range int32(2) {
		b.events, b.pairs = b.counters(p.Events), b.counters(2*len(p.Pairs))
		b.colls = b.colls[:0]
		for i := range p.Colls {
			b.colls = append(b.colls, b.counters(1+len(p.Colls[i].Parts)))
		}
		for i := range p.Cmds {
			if err := b.command(int32(i), run); err != nil {
				return nil, fmt.Errorf("command %d: %w", i, err)
			}
		}
	}
	return b.s, nil
}

type planStatement struct {
	p *plan.Plan
	s *Statement
	// refs are the different tensors, wherever they lie; at are those of the commands.
	refs   []*plan.Ref
	places map[string]int32
	spots  [][]int32 // by tensor: the classes of bytes that it covers
	width  int32     // classes

	elems, colls  []int32 // first counters
	events, pairs int32
}

// counters returns the first of n new counters.
func (b *planStatement) counters(n int) int32 {
	b.s.Counters += n
	return int32(b.s.Counters - n)
}

// parameters checks that parameters share no bytes, since the caller may write one once for many runs.
func (b *planStatement) parameters() error {
	var order []*plan.Buffer
	for i := range b.p.Buffers {
		if b.p.Buffers[i].Bytes > 0 {
			order = append(order, &b.p.Buffers[i])
		}
	}
	slices.SortFunc(order, func(x, y *plan.Buffer) int {
		if x.Space != y.Space {
			return int(x.Space) - int(y.Space)
		}
		return int(max(-1, min(1, x.Offset-y.Offset)))
	})
	var far, input *plan.Buffer // of those so far the one that reaches furthest, and the parameter that does
	meets := func(x, y *plan.Buffer) bool {
		return x != nil && x.Space == y.Space && x.Offset+x.Bytes > y.Offset
	}
	further := func(x, y *plan.Buffer) *plan.Buffer {
		if meets(x, y) && x.Offset+x.Bytes > y.Offset+y.Bytes {
			return x
		}
		return y
	}
	for _, y := range order {
		if meets(input, y) || y.Role == plan.RoleInput && meets(far, y) {
			return fmt.Errorf("buffer %s shares bytes with a parameter, or is one that does", y.Name)
		}
		far = further(far, y)
		if y.Role == plan.RoleInput {
			input = further(input, y)
		}
	}
	return nil
}

// key is equal for tensors that cover the same bytes, each of its rank.
func (b *planStatement) key(r *plan.Ref) string {
	buf := &b.p.Buffers[r.Buf]
	k := binary.AppendVarint([]byte{byte(buf.Space)}, buf.Offset+r.Off)
	k = binary.AppendVarint(k, r.DType.Size())
	for i := range r.Shape {
		k = binary.AppendVarint(binary.AppendVarint(k, r.Shape[i]), r.Strides[i])
	}
	return string(k)
}

func (b *planStatement) operands() error {
	inout := map[int32]bool{}
	for i := range b.p.Inputs {
		for _, part := range b.p.Inputs[i].Parts {
			if part.Ref.Present() && b.p.Inputs[i].Inout {
				inout[part.Ref.Buf] = true
			}
		}
	}
	for i := range b.p.Cmds {
		c := &b.p.Cmds[i]
		reads, writes := b.p.Accesses(c)
		for j, r := range slices.Concat(reads, writes) {
			if !r.Present() {
				continue
			}
			buf := &b.p.Buffers[r.Buf]
			if r.Rank != c.Rank && !buf.Symmetric {
				return fmt.Errorf("command %d reaches %s on rank %d, and it is not symmetric", i, buf.Name, r.Rank)
			}
			if j >= len(reads) && buf.Role == plan.RoleInput && c.Kind != plan.Input && !inout[r.Buf] {
				return fmt.Errorf("command %d writes the parameter %s, which is not inout", i, buf.Name)
			}
			if k := b.key(&r); b.places[k] == 0 {
				b.refs = append(b.refs, &r)
				b.places[k] = int32(len(b.refs))
			}
		}
	}
	return nil
}

// maxRuns bounds the contiguous runs of bytes of all different tensors together.
const maxRuns = 1 << 23

type edge struct {
	at   int64
	ref  int32
	open bool
}

// classes cuts memory into classes of bytes that each tensor covers wholly or not at all. Classes are the same on all
// ranks. Each tensor has 128 random bits, whose sum stands for the set of tensors that cover a byte.
func (b *planStatement) classes() error {
	b.spots = make([][]int32, len(b.refs))
	marks, edges := make([][2]uint64, len(b.refs)), [2][]edge{} // by space
	for i, r := range b.refs {
		marks[i] = [2]uint64{rand.Uint64(), rand.Uint64()}
		buf := &b.p.Buffers[r.Buf]
		full := false
		runs(r, func(lo, n int64) bool {
			lo += buf.Offset + r.Off
			edges[buf.Space] = append(edges[buf.Space], edge{lo, int32(i), true}, edge{lo + n, int32(i), false})
			full = len(edges[buf.Space]) > 2*maxRuns
			return !full
		})
		if full {
			return fmt.Errorf("its tensors have more than %d runs of bytes", maxRuns)
		}
	}
	for _, list := range edges {
		slices.SortFunc(list, func(x, y edge) int { return int(max(-1, min(1, x.at-y.at))) })
		active, known := map[int32]int{}, map[[2]uint64]bool{}
		var set [2]uint64
		for i, e := range list {
			n := active[e.ref]
			if active[e.ref]--; e.open {
				active[e.ref] += 2
			}
			if active[e.ref] == 0 {
				delete(active, e.ref)
			}
			if (n == 0) != (active[e.ref] == 0) {
				set[0], set[1] = set[0]^marks[e.ref][0], set[1]^marks[e.ref][1]
			}
			if i+1 < len(list) && list[i+1].at == e.at || len(active) == 0 || known[set] {
				continue
			}
			known[set] = true
			for ref := range active {
				b.spots[ref] = append(b.spots[ref], b.width)
			}
			b.width++
		}
	}
	if int64(b.width)*int64(b.p.Ranks) > 1<<27 {
		return fmt.Errorf("its memory falls into %d pieces on each of %d ranks", b.width, b.p.Ranks)
	}
	b.s.Spots = int(b.width) * b.p.Ranks
	return nil
}

// runs calls f with the contiguous runs of bytes that a tensor covers, until that returns false.
func runs(r *plan.Ref, f func(lo, n int64) bool) {
	type dim struct{ n, stride int64 }
	var dims []dim
	size := r.DType.Size()
	for i, n := range r.Shape {
		switch {
		case n == 0:
			return
		case n > 1 && r.Strides[i] > 0:
			dims = append(dims, dim{n, r.Strides[i] * size})
		}
	}
	slices.SortFunc(dims, func(x, y dim) int { return int(max(-1, min(1, x.stride-y.stride))) })
	for len(dims) > 0 && dims[0].stride == size {
		size *= dims[0].n
		dims = dims[1:]
	}
	var walk func(k int, lo int64) bool
	walk = func(k int, lo int64) bool {
		if k < 0 {
			return f(lo, size)
		}
		for i := range dims[k].n {
			if !walk(k-1, lo+i*dims[k].stride) {
				return false
			}
		}
		return true
	}
	walk(len(dims)-1, 0)
}

// access returns an event's access to a tensor.
func (b *planStatement) access(r *plan.Ref, write bool) Access {
	spots := b.spots[b.places[b.key(r)]-1]
	if r.Rank > 0 {
		spots = slices.Clone(spots)
		for i := range spots {
			spots[i] += r.Rank * b.width
		}
	}
	return Access{Spots: spots, Write: write, Owner: r.Buf}
}

func (b *planStatement) event(c *plan.Cmd, waits []Wait, adds []int32) {
	e := Event{Chain: c.Stream, Waits: waits}
	for _, a := range adds {
		e.Adds = append(e.Adds, Add{Counter: a})
	}
	b.s.Events = append(b.s.Events, e)
}

// accesses adds an event with what the command reads and then writes.
func (b *planStatement) accesses(c *plan.Cmd) {
	reads, writes := b.p.Accesses(c)
	if c.Kind == plan.Output { // the caller may overwrite a result
		writes = reads
	}
	e := Event{Chain: c.Stream, InPlace: b.inPlace(c)}
	for i := range reads {
		if reads[i].Present() {
			e.Accesses = append(e.Accesses, b.access(&reads[i], false))
		}
	}
	for i := range writes {
		e.Accesses = append(e.Accesses, b.access(&writes[i], true))
	}
	b.s.Events = append(b.s.Events, e)
}

// inPlace reports whether a command may read and write the same bytes: the caller; a collective, which stages its
// operand; and what needs for each element of its result only that element of what it overwrites.
func (b *planStatement) inPlace(c *plan.Cmd) bool {
	switch c.Kind {
	case plan.Input, plan.Output, plan.Collective:
		return true
	case plan.Group:
		return false
	}
	for i, out := range c.Outs {
		for j, in := range c.Ins {
			single := c.Kind == plan.Copy || c.Op.Info().Elementwise || c.Op == ir.OpReduceSlots && j == 1 ||
				c.Op == ir.OpIndexCopy && j == 2 || c.Op == ir.OpLaunch && b.p.Launches[c.Launch-1].Updates(j)
			if out.Overlaps(in) && !(single && out.Same(in)) {
				return false
			}
		}
		if slices.ContainsFunc(c.Outs[:i], out.Overlaps) {
			return false
		}
	}
	return true
}

func (b *planStatement) command(i, run int32) error {
	c := &b.p.Cmds[i]
	switch c.Kind {
	case plan.Record:
		b.event(c, nil, []int32{b.events + c.Event})
	case plan.WaitEvent:
		b.event(c, []Wait{{Counter: b.events + c.Event, N: 1}}, nil)
	case plan.Signal:
		at := b.elems[c.Counter] + c.Peer*b.p.Counters[c.Counter].Len + c.Elem
		b.event(c, nil, []int32{at})
	case plan.WaitCounter:
		at := c.Rank*b.p.Counters[c.Counter].Len + c.Elem
		perRun := b.p.Counters[c.Counter].PerRun[at]
		if c.Value < 1 || c.Value > perRun || perRun > 1<<28 {
			return fmt.Errorf("waits for %d of %d signals", c.Value, perRun)
		}
		b.event(c, []Wait{{Counter: b.elems[c.Counter] + at, N: int32(c.Value) + run*int32(perRun)}},
			nil)
	case plan.Collective:
		b.collective(c)
	case plan.Group:
		b.group(c)
	default:
		b.accesses(c)
	}
	return nil
}

// collective has a member arrive, access memory, and leave once all have arrived. The first counter of a collective is
// of all members, the others of one each.
func (b *planStatement) collective(c *plan.Cmd) {
	coll, all := &b.p.Colls[c.Coll], b.colls[c.Coll]
	own := all + 1 + c.Part
	b.event(c, nil, []int32{all, own})
	b.accesses(c)
	leave := []Wait{{Counter: all, N: int32(len(coll.Parts))}}
	from := int32(-1)
	switch coll.Op {
	case ir.OpBroadcast, ir.OpScatter:
		from, leave[0].Blind = coll.Root, true
	case ir.OpPermute:
		from, leave[0].Blind = coll.Parts[c.Part].From, true
	case ir.OpReduce, ir.OpGather:
		leave[0].Blind = c.Part != coll.Root
	}
	if from >= 0 {
		leave = append(leave, Wait{Counter: all + 1 + from, N: 1})
	}
	b.event(c, leave, nil)
}

// group posts the sides of its transfers, and ends when the other sides are posted.
func (b *planStatement) group(c *plan.Cmd) {
	var posts []int32
	var waits []Wait
	for _, t := range c.Group {
		mine, other := b.pairs+2*t.Pair, b.pairs+2*t.Pair+1
		if t.Send {
			mine, other = other, mine
		}
		posts = append(posts, mine)
		waits = append(waits, Wait{Counter: other, N: 1})
	}
	b.event(c, nil, posts)
	b.accesses(c)
	b.event(c, waits, nil)
}
