package plan

import (
	"fmt"
	"math/bits"
	"slices"

	"hocket.example/hocket/ir"
)

// Validate returns an error if the plan cannot be executed: if an index is out of range, a tensor is not inside its
// buffer, or events or signals are inconsistent. Validate does not check for races or wrong results; package verify
// does that.
func Validate(p *Plan) error {
	if p.Ranks < 1 {
		return fmt.Errorf("the plan is for %d ranks, which is not supported", p.Ranks)
	}
	c := &validator{p: p, inputs: Held(p.Inputs), outputs: Held(p.Outputs)}
	for _, f := range []func() error{c.streams, c.buffers, c.counters, c.channels, c.colls, c.pairs, c.ios, c.cmds, c.totals} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

type validator struct {
	p               *Plan
	inputs, outputs []IO
	inChannel       []int              // number of instances of each channel
	issued          map[[2]int32]int32 // for each channel and member: number of instances issued so far
	posted          map[P2P]bool       // sides of pairs that were issued
	event           []int32            // for each event: the rank that has recorded the event, or -1
	raised          [][]int64          // for each counter: number of signals so far, indexed like PerRun
	moved           map[[3]int32]bool  // for each direction, IO and rank: whether the block was uploaded or read back
}

func (c *validator) streams() error {
	p := c.p
	for i, s := range p.Streams {
		if !within(s.Rank, p.Ranks) {
			return fmt.Errorf("stream %d belongs to rank %d, which does not exist", i, s.Rank)
		}
	}
	if len(p.Main) != p.Ranks {
		return fmt.Errorf("%d main streams for %d ranks", len(p.Main), p.Ranks)
	}
	for r, s := range p.Main {
		if !within(s, len(p.Streams)) || int(p.Streams[s].Rank) != r {
			return fmt.Errorf("the main stream of rank %d is not one of its streams", r)
		}
	}
	return nil
}

func within(i int32, n int) bool { return i >= 0 && int(i) < n }

func (c *validator) buffers() error {
	if c.p.ArenaBytes < 0 || c.p.HostBytes < 0 || c.p.Events < 0 || c.p.Events > len(c.p.Cmds) {
		return fmt.Errorf("the size of the arena (%d bytes) or the number of events (%d) is out of range",
			c.p.ArenaBytes, c.p.Events)
	}
	for i := range c.p.Buffers {
		b, space, size := &c.p.Buffers[i], "the arena", c.p.ArenaBytes
		if b.Space == Host {
			space, size = "the host memory", c.p.HostBytes
		}
		if b.Offset < 0 || b.Bytes < 0 || b.Offset > size-b.Bytes {
			return fmt.Errorf("buffer %s, %d bytes at offset %d, is not inside %s of %d bytes", b.Name, b.Bytes, b.Offset, space, size)
		}
	}
	return nil
}

// ref reports whether r lies inside its buffer.
func (c *validator) ref(r Ref) error {
	if !within(r.Rank, c.p.Ranks) || !within(r.Buf, len(c.p.Buffers)) {
		return fmt.Errorf("a tensor in buffer %d of rank %d, which does not exist", r.Buf, r.Rank)
	}
	b := &c.p.Buffers[r.Buf]
	if len(r.Shape) != len(r.Strides) || !isDType(r.DType) {
		return fmt.Errorf("a tensor in %s has no element type, or strides that do not fit its shape", b.Name)
	}
	end, ok := extent(r)
	if !ok || r.Off < 0 || end > b.Bytes || r.Off > b.Bytes-end {
		return fmt.Errorf("a tensor of shape %v and strides %v at byte %d is not inside buffer %s of %d bytes", r.Shape, r.Strides, r.Off, b.Name, b.Bytes)
	}
	return nil
}

func isDType(d ir.DType) bool { return slices.Contains(ir.DTypes(), d) }

// extent returns the number of bytes from r's first to its last element. If a number is negative or overflows, ok is
// false.
func extent(r Ref) (int64, bool) {
	if slices.Contains(r.Shape, 0) {
		return 0, !slices.ContainsFunc(r.Shape, func(e int64) bool { return e < 0 })
	}
	last, count := uint64(0), uint64(1)
	for i, e := range r.Shape {
		if e < 0 || r.Strides[i] < 0 {
			return 0, false
		}
		hi, step := bits.Mul64(uint64(e-1), uint64(r.Strides[i]))
		hi2, n := bits.Mul64(count, uint64(e))
		if hi != 0 || hi2 != 0 || n > 1<<48 || step > 1<<48 {
			return 0, false
		}
		last, count = last+step, n
	}
	return int64(last+1) * r.DType.Size(), last <= 1<<48
}

func (c *validator) refs(lists ...[]Ref) error {
	for _, refs := range lists {
		for _, r := range refs {
			if err := c.ref(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *validator) counters() error {
	for i := range c.p.Counters {
		ctr := &c.p.Counters[i]
		if ctr.Len < 0 || int64(len(ctr.PerRun)) != int64(ctr.Len)*int64(c.p.Ranks) {
			return fmt.Errorf("counter %s has %d elements on each of %d ranks, but numbers of signals for %d elements",
				ctr.Name, ctr.Len, c.p.Ranks, len(ctr.PerRun))
		}
		c.raised = append(c.raised, make([]int64, len(ctr.PerRun)))
	}
	return nil
}

func (c *validator) channels() error {
	for i := range c.p.Channels {
		ch := &c.p.Channels[i]
		if len(ch.Team) == 0 || len(ch.Streams) != len(ch.Team) {
			return fmt.Errorf("channel %d has %d members and %d streams", i, len(ch.Team), len(ch.Streams))
		}
		for m, r := range ch.Team {
			if s := ch.Streams[m]; !within(s, len(c.p.Streams)) || c.p.Streams[s].Rank != r {
				return fmt.Errorf("channel %d: stream %d is not one of rank %d", i, s, r)
			}
			if slices.Contains(ch.Team[:m], r) {
				return fmt.Errorf("channel %d: rank %d is in its team twice", i, r)
			}
		}
	}
	c.inChannel = make([]int, len(c.p.Channels))
	return nil
}

func (c *validator) colls() error {
	for i := range c.p.Colls {
		coll := &c.p.Colls[i]
		if !within(coll.Channel, len(c.p.Channels)) {
			return fmt.Errorf("collective %d: channel %d does not exist", i, coll.Channel)
		}
		ch := &c.p.Channels[coll.Channel]
		if int(coll.Seq) != c.inChannel[coll.Channel] || len(coll.Parts) != len(ch.Team) {
			return fmt.Errorf("collective %d: it is number %d of its channel with %d parts, want number %d with %d",
				i, coll.Seq, len(coll.Parts), c.inChannel[coll.Channel], len(ch.Team))
		}
		c.inChannel[coll.Channel]++
		for m, part := range coll.Parts {
			for _, refs := range [][]Ref{{part.In, part.Out}, part.Counts} {
				if err := c.part(refs, ch.Team[m]); err != nil {
					return fmt.Errorf("collective %d: %w", i, err)
				}
			}
		}
	}
	return nil
}

// part checks the tensors that a rank contributes to a collective.
func (c *validator) part(refs []Ref, rank int32) error {
	for _, r := range refs {
		if !r.Present() {
			continue
		}
		if err := c.ref(r); err != nil {
			return err
		}
		if r.Rank != rank {
			return fmt.Errorf("the part of rank %d refers to memory of rank %d", rank, r.Rank)
		}
	}
	return nil
}

func (c *validator) pairs() error {
	for i, pr := range c.p.Pairs {
		if err := c.refs([]Ref{pr.Src, pr.Dst}); err != nil {
			return fmt.Errorf("send/recv pair %d: %w", i, err)
		}
	}
	return nil
}

// ios checks the inputs and outputs: each block must be inside its global tensor at the correct position, and the
// blocks of an output must together cover the global tensor.
func (c *validator) ios() error {
	for k, ios := range [][]IO{c.inputs, c.outputs} {
		names := map[string]bool{}
		for i := range ios {
			io := &ios[i]
			if names[io.Name] {
				return fmt.Errorf("there are two %s named %s", [2]string{"inputs", "outputs"}[k], io.Name)
			}
			names[io.Name] = true
			if err := c.blocks(io, k == 1); err != nil {
				return fmt.Errorf("%s: %w", io.Name, err)
			}
		}
	}
	return nil
}

func (c *validator) blocks(io *IO, whole bool) error {
	global := Ref{Shape: io.Shape}.Elements()
	covered := int64(0)
	ranks, places := map[int32]bool{}, map[string][]int64{}
	for _, part := range io.Parts {
		if err := c.ref(part.Ref); err != nil {
			return err
		}
		if ranks[part.Ref.Rank] || part.Ref.DType != io.DType || len(part.Lo) != len(io.Shape) || len(part.Ref.Shape) != len(io.Shape) {
			return fmt.Errorf("rank %d has two blocks, or one of another type or number of dimensions", part.Ref.Rank)
		}
		ranks[part.Ref.Rank] = true
		for d, lo := range part.Lo {
			if n := part.Ref.Shape[d]; lo < 0 || n > io.Shape[d] || lo > io.Shape[d]-n {
				return fmt.Errorf("rank %d's block at %v of shape %v is not inside the shape %v", part.Ref.Rank, part.Lo, part.Ref.Shape, io.Shape)
			}
		}
		at := fmt.Sprint(part.Lo)
		if shape, again := places[at]; !again {
			places[at] = part.Ref.Shape
			covered += part.Ref.Elements()
		} else if !slices.Equal(shape, part.Ref.Shape) {
			return fmt.Errorf("two blocks at %v have the shapes %v and %v", part.Lo, shape, part.Ref.Shape)
		}
	}
	if whole && covered != global {
		return fmt.Errorf("its blocks hold %d of %d elements", covered, global)
	}
	return nil
}

// cmds checks every command, in the order of Plan.Cmds.
func (c *validator) cmds() error {
	c.event = slices.Repeat([]int32{-1}, c.p.Events)
	c.issued = map[[2]int32]int32{}
	c.posted = map[P2P]bool{}
	c.moved = map[[3]int32]bool{}
	for i := range c.p.Cmds {
		if err := c.cmd(&c.p.Cmds[i]); err != nil {
			return fmt.Errorf("command %d, %s of rank %d: %w", i, c.p.Cmds[i].Kind, c.p.Cmds[i].Rank, err)
		}
	}
	return nil
}

func (c *validator) cmd(m *Cmd) error {
	p := c.p
	switch {
	case m.Kind > Output:
		return fmt.Errorf("its kind does not exist")
	case !within(m.Rank, p.Ranks) || !within(m.Stream, len(p.Streams)) || p.Streams[m.Stream].Rank != m.Rank:
		return fmt.Errorf("stream %d is not one of the rank's", m.Stream)
	case !within(m.Site, len(p.Sites)):
		return fmt.Errorf("its site %d does not exist", m.Site)
	}
	checks := [...]func(*Cmd) error{
		Compute: c.compute, Copy: c.copying, Collective: c.collective, Group: c.group,
		Record: c.record, WaitEvent: c.wait, Signal: c.signal, WaitCounter: c.waitCounter,
		Input: c.input, Output: c.output,
	}
	return checks[m.Kind](m)
}

func (c *validator) compute(m *Cmd) error {
	if len(m.Outs) == 0 {
		return fmt.Errorf("it has no tensor to write")
	}
	if err := c.refs(m.Ins, m.Outs); err != nil {
		return err
	}
	if err := c.launch(m); err != nil {
		return err
	}
	for _, refs := range [][]Ref{m.Ins, m.Outs} {
		for _, r := range refs {
			if r.Rank != m.Rank {
				return fmt.Errorf("it refers to memory of rank %d", r.Rank)
			}
		}
	}
	return nil
}

// launch checks that every tensor argument refers to an operand, and that every operand is an argument.
func (c *validator) launch(m *Cmd) error {
	if m.Op != ir.OpLaunch {
		return nil
	}
	if !within(m.Launch-1, len(c.p.Launches)) || !within(c.p.Launches[m.Launch-1].Kernel, len(c.p.Kernels)) {
		return fmt.Errorf("launch %d does not exist", m.Launch-1)
	}
	ins, outs := 0, 0
	for _, p := range c.p.Launches[m.Launch-1].Params {
		if p.In >= 0 && int(p.In) != ins || p.Out >= 0 && int(p.Out) != outs {
			return fmt.Errorf("an argument is operand %d and result %d, which is not the next operand or result",
				p.In, p.Out)
		}
		if p.In >= 0 {
			ins++
		}
		if p.Out >= 0 {
			outs++
		}
	}
	if ins != len(m.Ins) || outs != len(m.Outs) {
		return fmt.Errorf("%d of %d operands and %d of %d results are arguments", ins, len(m.Ins), outs, len(m.Outs))
	}
	return nil
}

func (c *validator) copying(m *Cmd) error {
	if len(m.Ins) != 1 || len(m.Outs) != 1 {
		return fmt.Errorf("it has %d sources and %d destinations", len(m.Ins), len(m.Outs))
	}
	if m.Ins[0].DType != m.Outs[0].DType || !slices.Equal(m.Ins[0].Shape, m.Outs[0].Shape) {
		return fmt.Errorf("source %s%v and destination %s%v differ", m.Ins[0].DType, m.Ins[0].Shape, m.Outs[0].DType, m.Outs[0].Shape)
	}
	return c.refs(m.Ins, m.Outs)
}

// collective checks that each member issues the instances of a channel in order.
func (c *validator) collective(m *Cmd) error {
	if !within(m.Coll, len(c.p.Colls)) {
		return fmt.Errorf("collective %d does not exist", m.Coll)
	}
	coll := &c.p.Colls[m.Coll]
	ch := &c.p.Channels[coll.Channel]
	if !within(m.Part, len(ch.Team)) || ch.Team[m.Part] != m.Rank || ch.Streams[m.Part] != m.Stream {
		return fmt.Errorf("part %d of collective %d is not this rank's on this stream", m.Part, m.Coll)
	}
	key := [2]int32{coll.Channel, m.Part}
	if coll.Seq != c.issued[key] {
		return fmt.Errorf("it issues number %d of its channel, want number %d", coll.Seq, c.issued[key])
	}
	c.issued[key]++
	return nil
}

func (c *validator) group(m *Cmd) error {
	for _, t := range m.Group {
		if !within(t.Pair, len(c.p.Pairs)) {
			return fmt.Errorf("send/recv pair %d does not exist", t.Pair)
		}
		ref := c.p.Pairs[t.Pair].Dst
		if t.Send {
			ref = c.p.Pairs[t.Pair].Src
		}
		if ref.Rank != m.Rank || c.posted[t] {
			return fmt.Errorf("its side of send/recv pair %d belongs to another rank, or was already issued", t.Pair)
		}
		c.posted[t] = true
	}
	return nil
}

func (c *validator) record(m *Cmd) error {
	if !within(m.Event, len(c.event)) || c.event[m.Event] >= 0 {
		return fmt.Errorf("event %d does not exist or is recorded twice", m.Event)
	}
	c.event[m.Event] = m.Rank
	return nil
}

// wait checks a wait for an event. Only the rank that records an event may wait for it. Different ranks must be
// ordered by counters, collectives, or pairs of send and recv, which also work between processes.
func (c *validator) wait(m *Cmd) error {
	switch {
	case !within(m.Event, len(c.event)) || c.event[m.Event] < 0:
		return fmt.Errorf("it waits for event %d, which no earlier command records", m.Event)
	case c.event[m.Event] != m.Rank:
		return fmt.Errorf("it waits for event %d of rank %d; a rank can wait for other ranks only by counters and "+
			"communication", m.Event, c.event[m.Event])
	}
	return nil
}

func (c *validator) element(m *Cmd, rank int32) (int32, error) {
	if !within(m.Counter, len(c.p.Counters)) || !within(m.Elem, int(c.p.Counters[m.Counter].Len)) || !within(rank, c.p.Ranks) {
		return 0, fmt.Errorf("counter %[2]d has no element %[1]d on rank %[3]d", m.Elem, m.Counter, rank)
	}
	return rank*c.p.Counters[m.Counter].Len + m.Elem, nil
}

func (c *validator) signal(m *Cmd) error {
	e, err := c.element(m, m.Peer)
	if err == nil {
		c.raised[m.Counter][e]++
	}
	return err
}

func (c *validator) waitCounter(m *Cmd) error {
	_, err := c.element(m, m.Rank)
	return err
}

func (c *validator) input(m *Cmd) error  { return c.transfer(m, 0, c.inputs) }
func (c *validator) output(m *Cmd) error { return c.transfer(m, 1, c.outputs) }

func (c *validator) transfer(m *Cmd, way int32, ios []IO) error {
	if !within(m.IO, len(ios)) || ios[m.IO].Of(m.Rank) == nil {
		return fmt.Errorf("the rank holds no block of parameter or result %d", m.IO)
	}
	if m.Stream != c.p.Main[m.Rank] {
		return fmt.Errorf("it is not on the main stream")
	}
	key := [3]int32{way, m.IO, m.Rank}
	if c.moved[key] {
		return fmt.Errorf("the block of parameter or result %d is uploaded or read back twice", m.IO)
	}
	c.moved[key] = true
	return nil
}

// totals checks the conditions that must hold at the end of the list.
func (c *validator) totals() error {
	for i := range c.p.Channels {
		for m := range c.p.Channels[i].Team {
			if got := c.issued[[2]int32{int32(i), int32(m)}]; int(got) != c.inChannel[i] {
				return fmt.Errorf("channel %d: rank %d issues %d of %d collectives", i, c.p.Channels[i].Team[m], got, c.inChannel[i])
			}
		}
	}
	for i := range c.p.Counters {
		if !slices.Equal(c.raised[i], c.p.Counters[i].PerRun) {
			return fmt.Errorf("counter %s: the commands signal it another number of times than the plan states",
				c.p.Counters[i].Name)
		}
	}
	for i := range c.outputs {
		for _, part := range c.outputs[i].Parts {
			if !c.moved[[3]int32{1, int32(i), part.Ref.Rank}] {
				return fmt.Errorf("output %s of rank %d is never read back", c.outputs[i].Name, part.Ref.Rank)
			}
		}
	}
	if len(c.posted) != 2*len(c.p.Pairs) {
		return fmt.Errorf("%d sides of %d send/recv pairs are issued; each pair has two", len(c.posted), len(c.p.Pairs))
	}
	return nil
}
