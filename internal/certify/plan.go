package certify

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// Plan makes the statement of a plan: two runs of its commands, back to back. It fails if the plan cannot be right in
// ways that need no execution. Two runs stand for any number: commands, memory and counts are the same in each run, run
// k + 1 waits for what run k does as run 1 does for run 0, and each stream's run k + 1 comes after its run k. So what
// orders run 0 before run 1 orders any run before the next, and by these all later ones.
//
// Chains and threads are streams. Events, elements of counters, collectives and transfers become counters: whoever takes part in a
// collective adds when it begins, and goes on when all have; what it learns is what the data bring.
func Plan(p *plan.Plan) (*Statement, error) {
	if err := plan.Validate(p); err != nil {
		return nil, err
	}
	b := &planStatement{p: p, numbers: map[string]int32{}, s: &Statement{Plan: p.HashString(),
		Chains: len(p.Streams), Threads: len(p.Streams), numbers: map[key]int32{}}}
	for run := range int32(2) {
		for i := range p.Cmds {
			if err := b.command(&p.Cmds[i], run); err != nil {
				return nil, fmt.Errorf("command %d %w", i, err)
			}
		}
	}
	return b.s, b.classes()
}

type planStatement struct {
	p       *plan.Plan
	s       *Statement
	tensors []*plan.Ref
	numbers map[string]int32 // of tensors, from 1
}

// number returns the number of a tensor: the same for those that cover the same bytes, each of its rank.
func (b *planStatement) number(r *plan.Ref) int32 {
	buf := &b.p.Buffers[r.Buf]
	key := binary.AppendVarint(binary.AppendVarint([]byte{byte(buf.Space)}, buf.Offset+r.Off), r.DType.Size())
	for i := range r.Shape {
		key = binary.AppendVarint(binary.AppendVarint(key, r.Shape[i]), r.Strides[i])
	}
	n := b.numbers[string(key)]
	if n == 0 {
		b.tensors = append(b.tensors, r)
		n = int32(len(b.tensors))
		b.numbers[string(key)] = n
	}
	return n
}

// edge is where a run of bytes begins (n is 1) or ends (-1): of a tensor, or of buffer -1-of.
type edge struct {
	at    int64
	of, n int32
}

// classes makes spots of bytes that each tensor covers wholly or not at all, the same on all ranks, and gives them to
// accesses. Each tensor has 128 random bits, whose sum stands for those that cover a byte. It checks that parameters
// share no bytes with other buffers, since the caller may write one once for many runs.
func (b *planStatement) classes() error {
	spots, width := make([][]int32, len(b.tensors)), int32(0)
	marks, edges := make([][2]uint64, len(b.tensors)), [2][]edge{} // by space
	cut := func(list *[]edge, lo, n int64, of int32) {
		*list = append(*list, edge{lo, of, 1}, edge{lo + n, of, -1})
	}
	for i := range b.p.Buffers {
		if buf := &b.p.Buffers[i]; buf.Bytes > 0 {
			cut(&edges[buf.Space], buf.Offset, buf.Bytes, int32(-1-i))
		}
	}
	for i, r := range b.tensors {
		marks[i] = [2]uint64{rand.Uint64(), rand.Uint64()}
		buf := &b.p.Buffers[r.Buf]
		list, n := runs(r, maxRuns-int64(len(edges[0])+len(edges[1]))/2)
		if n == 0 {
			return fmt.Errorf("has tensors of more than %d runs of bytes", maxRuns)
		}
		for _, lo := range list {
			cut(&edges[buf.Space], buf.Offset+r.Off+lo, n, int32(i))
		}
	}
	for _, list := range edges {
		slices.SortFunc(list, func(x, y edge) int { return cmp.Compare(x.at, y.at) })
		cover, known, set, buffers, inputs := map[int32]int32{}, map[[2]uint64]bool{}, [2]uint64{}, int32(0), int32(0)
		for i, e := range list {
			if e.of < 0 {
				buffers += e.n
				if b.p.Buffers[-1-e.of].Role == plan.RoleInput {
					inputs += e.n
				}
			} else {
				set[0], set[1] = set[0]+uint64(e.n)*marks[e.of][0], set[1]+uint64(e.n)*marks[e.of][1]
				if cover[e.of] += e.n; cover[e.of] == 0 {
					delete(cover, e.of)
				}
			}
			if i+1 < len(list) && list[i+1].at == e.at {
				continue
			}
			if inputs > 0 && buffers > 1 {
				return fmt.Errorf("a parameter shares bytes with another buffer, at %d", e.at)
			}
			if len(cover) > 0 && !known[set] {
				for t := range cover {
					spots[t] = append(spots[t], width)
				}
				known[set] = true
				width++
			}
		}
	}
	if b.s.Spots = int(width) * b.p.Ranks; b.s.Spots > 1<<27 {
		return fmt.Errorf("its memory falls into %d pieces on each of %d ranks", width, b.p.Ranks)
	}
	for i := range b.s.Events {
		for j := range b.s.Events[i].Accesses {
			a := &b.s.Events[i].Accesses[j]
			a.Base, a.Spots = a.Base*width, spots[a.Spots[0]-1]
		}
	}
	return nil
}

// maxRuns bounds the contiguous runs of bytes of all different tensors together.
const maxRuns = 1 << 23

// runs returns where the contiguous runs of bytes of a tensor begin, and their length; 0 if there are more than most.
func runs(r *plan.Ref, most int64) ([]int64, int64) {
	size, list, dims := r.DType.Size(), []int64{0}, make([][2]int64, len(r.Shape)) // a dim is its stride and extent
	length := size
	for i := range dims {
		dims[i] = [2]int64{r.Strides[i] * size, r.Shape[i]}
	}
	slices.SortFunc(dims, func(x, y [2]int64) int { return cmp.Compare(x[0], y[0]) })
	for _, d := range dims {
		switch n := int64(len(list)); {
		case d[1] == 0:
			return nil, size
		case d[0] == 0:
		case d[0] == length && n == 1:
			length *= d[1]
		case d[1] > most/n:
			return nil, 0
		default:
			for k := n; k < d[1]*n; k++ {
				list = append(list, list[k-n]+d[0])
			}
		}
	}
	return list, length
}

// event adds an event of a command.
func (b *planStatement) event(c *plan.Cmd, waits []Wait, adds ...int32) {
	e := Event{Chain: c.Stream, Thread: c.Stream, Waits: waits}
	for _, a := range adds {
		e.Adds = append(e.Adds, Add{Counter: a})
	}
	b.s.Events = append(b.s.Events, e)
}

// accesses adds an event with what a command reads and then writes, so far with the rank for Base and the tensor's number
// for Spots. The caller and a collective, which stages its operand, may write what they read. A computation may if both
// are one tensor, and single says so of the operand.
func (b *planStatement) accesses(c *plan.Cmd) error {
	reads, writes := b.p.Accesses(c)
	if c.Kind == plan.Output { // the caller may overwrite a result
		writes = reads
	}
	e := Event{Chain: c.Stream, Thread: c.Stream}
	for j, r := range slices.Concat(reads, writes) {
		if !r.Present() {
			continue
		}
		buf, n := &b.p.Buffers[r.Buf], b.number(&r)
		a := Access{Base: r.Rank, Spots: []int32{n}, Write: j >= len(reads), Owner: r.Buf}
		own := func(part plan.IOPart) bool { return part.Ref.Buf == r.Buf }
		inout := func(io plan.IO) bool { return io.Inout && slices.ContainsFunc(io.Parts, own) }
		twice := func(w Access) bool { return w.Write && w.Group == n }
		switch {
		case r.Rank != c.Rank && !buf.Symmetric:
			return fmt.Errorf("reaches %s on rank %d, and it is not symmetric", buf.Name, r.Rank)
		case a.Write && buf.Role == plan.RoleInput && c.Kind != plan.Input && !slices.ContainsFunc(b.p.Inputs, inout):
			return fmt.Errorf("writes the parameter %s, which is not inout", buf.Name)
		case c.Kind == plan.Input || c.Kind == plan.Output || c.Kind == plan.Collective:
		case c.Kind == plan.Group || !a.Write && !b.single(c, j) || a.Write && slices.ContainsFunc(e.Accesses, twice):
			a.Group = int32(-1 - j)
		default:
			a.Group = n
		}
		e.Accesses = append(e.Accesses, a)
	}
	b.s.Events = append(b.s.Events, e)
	return nil
}

// single reports whether a computation needs for each element of its result only that element of operand j.
func (b *planStatement) single(c *plan.Cmd, j int) bool {
	return c.Kind == plan.Copy || c.Op.Info().Elementwise || c.Op == ir.OpReduceSlots && j == 1 ||
		c.Op == ir.OpIndexCopy && j == 2 || c.Op == ir.OpLaunch && b.p.Launches[c.Launch-1].Updates(j)
}

// What counters of plans count.
const (
	recorded int32 = iota
	raised
	begun
	posted
)

// command adds the events of a command in a run.
func (b *planStatement) command(c *plan.Cmd, run int32) error {
	switch c.Kind {
	case plan.Record:
		b.event(c, nil, b.s.counter(key{recorded, c.Event, run}))
	case plan.WaitEvent:
		b.event(c, []Wait{{Counter: b.s.counter(key{recorded, c.Event, run}), N: 1}})
	case plan.Signal:
		b.event(c, nil, b.s.counter(key{raised, c.Counter, c.Peer, c.Elem}))
	case plan.WaitCounter:
		counter := &b.p.Counters[c.Counter]
		n := counter.PerRun[c.Rank*counter.Len+c.Elem]
		if c.Value < 1 || c.Value > n || n > 1<<28 {
			return fmt.Errorf("waits for %d of %d signals", c.Value, n)
		}
		at := b.s.counter(key{raised, c.Counter, c.Rank, c.Elem})
		b.event(c, []Wait{{Counter: at, N: int32(c.Value) + run*int32(n)}})
	case plan.Collective: // a member arrives, accesses memory, and leaves once all have arrived
		coll, all := &b.p.Colls[c.Coll], b.s.counter(key{begun, c.Coll, 0, run})
		leave, from := []Wait{{Counter: all, N: int32(len(coll.Parts))}}, int32(-1)
		switch coll.Op {
		case ir.OpBroadcast, ir.OpScatter:
			from, leave[0].Blind = coll.Root, true
		case ir.OpPermute:
			from, leave[0].Blind = coll.Parts[c.Part].From, true
		case ir.OpReduce, ir.OpGather:
			leave[0].Blind = c.Part != coll.Root
		}
		if from >= 0 {
			leave = append(leave, Wait{Counter: b.s.counter(key{begun, c.Coll, 1 + from, run}), N: 1})
		}
		b.event(c, nil, all, b.s.counter(key{begun, c.Coll, 1 + c.Part, run}))
		if err := b.accesses(c); err != nil {
			return err
		}
		b.event(c, leave)
	case plan.Group: // it posts the sides of its transfers, and ends when the other sides are posted
		var posts []int32
		var waits []Wait
		for _, t := range c.Group {
			sides := [2]int32{b.s.counter(key{posted, t.Pair, 0, run}), b.s.counter(key{posted, t.Pair, 1, run})}
			if t.Send {
				sides[0], sides[1] = sides[1], sides[0]
			}
			posts, waits = append(posts, sides[0]), append(waits, Wait{Counter: sides[1], N: 1})
		}
		b.event(c, nil, posts...)
		if err := b.accesses(c); err != nil {
			return err
		}
		b.event(c, waits)
	default:
		return b.accesses(c)
	}
	return nil
}
