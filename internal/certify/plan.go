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

// Plan makes the statement of a plan. The statement describes two consecutive runs of the plan's commands. Plan
// returns an error if the plan has a mistake that is visible without execution.
//
// Two runs represent any number of runs, for this reason. Commands, memory and counts are the same in each run. Run
// k + 1 waits for run k as run 1 waits for run 0. On each stream, run k + 1 follows run k. Therefore an order
// between accesses of run 0 and run 1 also holds between any run and the next, and by transitivity between any run
// and all later ones.
//
// Each stream is a chain and a thread of the statement. The statement's counters represent the events, the elements of
// counters, the collectives and the transfers of the plan. A member of a collective adds to the collective's counter
// when it begins, and continues when all members have added. In the order of memory, a member follows only the members
// whose data it receives.
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
	numbers map[string]int32 // numbers of tensors, from 1, by a key that encodes a tensor's location and shape
}

// number returns the number of a tensor. Tensors on different ranks that cover the same offsets of the same buffer
// have the same number.
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

// edge is the beginning (n is 1) or the end (n is -1) of an interval of bytes. The interval belongs to the tensor with
// the number in field of or, if that number is negative, to buffer -1-of.
type edge struct {
	at    int64
	of, n int32
}

// classes divides memory into spots, and replaces tensors in accesses by spots. Each tensor covers all bytes of a
// spot or none, and the spots are the same on all ranks. To find the spots, each tensor gets 128 random bits; the
// sum of these bits over the tensors that cover a byte identifies the byte's spot. classes also checks that
// parameters share no bytes with other buffers, since the caller may write a parameter once for many runs.
func (b *planStatement) classes() error {
	spots, width := make([][]int32, len(b.tensors)), int32(0)
	marks, edges := make([][2]uint64, len(b.tensors)), [2][]edge{} // edges by memory space
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
			return fmt.Errorf("has tensors of more than %d contiguous intervals of bytes", maxRuns)
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
				return fmt.Errorf("a parameter shares bytes with another buffer, at offset %d", e.at)
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
		return fmt.Errorf("its memory has %d separate pieces on each of %d ranks, which is too much to check", width,
			b.p.Ranks)
	}
	for i := range b.s.Events {
		for j := range b.s.Events[i].Accesses {
			a := &b.s.Events[i].Accesses[j]
			a.Base, a.Spots = a.Base*width, spots[a.Spots[0]-1]
		}
	}
	return nil
}

// maxRuns limits the number of contiguous intervals of bytes, summed over all different tensors.
const maxRuns = 1 << 23

// runs returns the start of each contiguous interval of bytes of a tensor, and the length of the intervals, which is
// the same for all. The length is 0 if there are more intervals than the parameter most allows.
func runs(r *plan.Ref, most int64) ([]int64, int64) {
	size, list, dims := r.DType.Size(), []int64{0}, make([][2]int64, len(r.Shape)) // stride and extent of each dimension
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

// event adds an event for a command.
func (b *planStatement) event(c *plan.Cmd, waits []Wait, adds ...int32) {
	e := Event{Chain: c.Stream, Thread: c.Stream, Waits: waits}
	for _, a := range adds {
		e.Adds = append(e.Adds, Add{Counter: a})
	}
	b.s.Events = append(b.s.Events, e)
}

// accesses adds an event for the accesses of a command: its reads, followed by its writes. In these accesses, Base is
// the rank, and Spots holds the number of the tensor until the method classes replaces it. Some commands may write
// memory that they also read. An input or output may, because the caller may overwrite its memory. A collective may,
// because it copies its operand first. A computation may if operand and result are the same tensor and the function
// single returns true for the operand.
func (b *planStatement) accesses(c *plan.Cmd) error {
	reads, writes := b.p.Accesses(c)
	if c.Kind == plan.Output { // the caller may overwrite a result after reading it
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
			return fmt.Errorf("accesses buffer %s on rank %d, but the buffer is not symmetric", buf.Name, r.Rank)
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

// single reports whether a computation needs, for each element of its result, only the element with the same index
// of operand j.
func (b *planStatement) single(c *plan.Cmd, j int) bool {
	return c.Kind == plan.Copy || c.Op.Info().Elementwise || c.Op == ir.OpReduceSlots && j == 1 ||
		c.Op == ir.OpIndexCopy && j == 2 || c.Op == ir.OpLaunch && b.p.Launches[c.Launch-1].Updates(j)
}

// The following constants are the kinds of objects for which the statement of a plan has counters.
const (
	recorded int32 = iota
	raised
	begun
	posted
)

// command adds the events of one command in the given run.
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
	case plan.Collective: // a member of a collective arrives, accesses memory, and leaves after all members have arrived
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
	case plan.Group: // a command posts its ends of transfers, and finishes when the other ends have been posted
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
