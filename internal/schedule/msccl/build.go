package msccl

import (
	"fmt"

	"hocket.example/hocket/internal/schedule"
)

// connection is the map key of a first-in first-out queue of messages from one rank to another.
type connection struct{ from, to, channel int }

// traffic describes the messages on a connection, in order: the number of chunks of each message, and its cells.
type traffic struct {
	sender, receiver int // thread blocks of the two ranks; -1 for none
	counts           []int
	cells            []int
	sent, free       int // counters of sent messages and of free slots
	received         int
}

type builder struct {
	f     *File
	p     *schedule.Plan
	links map[connection]*traffic
	// The counters of progress, by rank and block, and the position of the current step.
	progress [][]int
	rank, tb int
	at       int
}

// slots returns the number of messages that a connection can hold. A send on a full connection waits.
func (f *File) slots() int {
	if f.Slots > 0 {
		return f.Slots
	}
	if f.Proto == "Simple" {
		return 4
	}
	return 8
}

// Plan returns the algorithm as a plan for the checker. It returns an error that names the step if no loader could read
// the algorithm.
func (f *File) Plan() (*schedule.Plan, error) {
	p := &schedule.Plan{Name: f.Name, Ranks: len(f.GPUs), Parts: 1, InPlace: f.InPlace == 1}
	var err error
	if p.Collective, p.Shift, err = f.collective(); err != nil {
		return nil, err
	}
	if f.Slots == 0 && f.Proto != "" && f.Proto != "Simple" && f.Proto != "LL" && f.Proto != "LL128" {
		return nil, fmt.Errorf("unknown proto %.40q: the known ones are Simple, LL and LL128, which differ in the number of "+
			"messages that a connection holds", f.Proto)
	}
	if p.InPlace && f.OutOfPlace != nil && *f.OutOfPlace == 1 {
		p.Notes = append(p.Notes, "it also allows separate buffers, but only execution in place is checked")
	}
	b := &builder{f: f, p: p, links: map[connection]*traffic{}}
	if err := b.memory(); err != nil {
		return nil, err
	}
	if err := b.connections(); err != nil {
		return nil, err
	}
	for r := range f.GPUs {
		for t := range f.GPUs[r].TBs {
			b.rank, b.tb = r, t
			p.Blocks = append(p.Blocks, schedule.Block{Rank: r, ID: f.GPUs[r].TBs[t].ID})
			if err := b.threadblock(&f.GPUs[r].TBs[t]); err != nil {
				return nil, err
			}
		}
	}
	for c, l := range b.links {
		if l.received < len(l.counts) {
			p.Notes = append(p.Notes, fmt.Sprintf("rank %d sends %d messages to rank %d on channel %d, of which %d are received",
				c.from, len(l.counts), c.to, c.channel, l.received))
		}
	}
	return p, nil
}

func (b *builder) memory() error {
	p, f := b.p, b.f
	if f.Chunks < 0 || f.Chunks > maxChunks {
		return fmt.Errorf("nchunksperloop is %d", f.Chunks)
	}
	n := len(f.GPUs)
	if (p.Collective == schedule.AllGather || p.Collective == schedule.ReduceScatter) && f.Chunks%n != 0 {
		return fmt.Errorf("nchunksperloop is %d, but %s of %d ranks needs a multiple of %d: each rank has a part of the chunks",
			f.Chunks, p.Collective, n, n)
	}
	for r := range f.GPUs {
		g := &f.GPUs[r]
		if g.ID != r {
			return fmt.Errorf("gpu %d has id %d: ids must be 0, 1, 2, …", r, g.ID)
		}
		in, out := g.Input, g.Output
		for i, c := range []int{in, out, g.Scratch} {
			if c < 0 || c > maxChunks {
				return fmt.Errorf("gpu %d: %s_chunks is %d, want 0 to %d", r, []string{"i", "o", "s"}[i], c, maxChunks)
			}
		}
		base, inAt, outAt, size := p.Cells, 0, 0, 0
		switch p.Collective {
		case schedule.AllReduce, schedule.AllToAll, schedule.Broadcast:
			in, out = max(in, f.Chunks), max(out, f.Chunks)
			if p.InPlace {
				in = max(in, out)
				out = in
			}
		case schedule.AllGather:
			in, out = f.Chunks/n, max(out, f.Chunks)
			inAt = r * in
		case schedule.ReduceScatter:
			in, out = max(in, f.Chunks), f.Chunks/n
			outAt = r * out
		}
		if p.InPlace && p.Collective != schedule.Undefined && p.Collective != schedule.ToNext {
			size = max(inAt+in, outAt+out)
		} else {
			inAt, outAt, size = 0, in, in+out
		}
		p.Buffers = append(p.Buffers, schedule.Buffer{Rank: r, Kind: schedule.Input, Base: base + inAt, Cells: in},
			schedule.Buffer{Rank: r, Kind: schedule.Output, Base: base + outAt, Cells: out})
		p.Cells += size
	}
	p.ScratchBase = p.Cells
	for r := range f.GPUs {
		p.Buffers = append(p.Buffers, schedule.Buffer{Rank: r, Kind: schedule.Scratch, Base: p.Cells,
			Cells: f.GPUs[r].Scratch})
		p.Cells += f.GPUs[r].Scratch
		if err := p.Within(); err != nil {
			return err
		}
	}
	p.MessageBase = p.Cells
	return nil
}

func (b *builder) link(c connection) *traffic {
	l := b.links[c]
	if l == nil {
		l = &traffic{sender: -1, receiver: -1}
		b.links[c] = l
		name := fmt.Sprintf("the connection from rank %d to rank %d on channel %d", c.from, c.to, c.channel)
		l.sent, l.free = len(b.p.Counters), len(b.p.Counters)+1
		b.p.Counters = append(b.p.Counters, schedule.Counter{Name: name, Unit: "message", Kept: true},
			schedule.Counter{Name: name, Unit: "free slot", Init: b.f.slots()})
	}
	return l
}

// connections determines which blocks send and receive on each connection, and the cells of each message.
func (b *builder) connections() error {
	f, p := b.f, b.p
	for r := range f.GPUs {
		b.progress = append(b.progress, nil)
		for t := range f.GPUs[r].TBs {
			tb := &f.GPUs[r].TBs[t]
			b.rank, b.tb, b.at = r, t, -1
			if tb.ID != t {
				return fmt.Errorf("gpu %d: the tb at %d has id %d: ids must be 0, 1, 2, …", r, t, tb.ID)
			}
			b.progress[r] = append(b.progress[r], len(p.Counters))
			p.Counters = append(p.Counters, schedule.Counter{Name: fmt.Sprintf("the progress of rank %d tb %d", r, t)})
			for _, q := range []int{tb.Send, tb.Recv} {
				if q < -1 || q >= len(f.GPUs) {
					return fmt.Errorf("gpu %d tb %d: its peer is rank %d, but the ranks are 0 to %d", r, t, q,
						len(f.GPUs)-1)
				}
			}
			if tb.Send >= 0 {
				l := b.link(connection{r, tb.Send, tb.Chan})
				if l.sender >= 0 {
					return fmt.Errorf("gpu %d: tb %d and tb %d both send to rank %d on channel %d", r, l.sender, t,
						tb.Send, tb.Chan)
				}
				l.sender = t
				for i := range tb.Steps {
					b.at = i
					s := &tb.Steps[i]
					if !sends(s.Type) {
						continue
					}
					if s.Count < 1 || s.Count > maxChunks {
						return b.errorf("it has a count of %d", s.Count)
					}
					l.counts = append(l.counts, s.Count)
					l.cells = append(l.cells, p.Cells)
					p.Cells += s.Count
					if err := p.Within(); err != nil {
						return b.errorf("%w", err)
					}
				}
			}
			if tb.Recv >= 0 {
				l := b.link(connection{tb.Recv, r, tb.Chan})
				if l.receiver >= 0 {
					return fmt.Errorf("gpu %d: tb %d and tb %d both receive from rank %d on channel %d", r, l.receiver,
						t, tb.Recv, tb.Chan)
				}
				l.receiver = t
			}
		}
	}
	return nil
}

func sends(kind string) bool { return kind == "s" || kind == "rcs" || kind == "rrs" || kind == "rrcs" }
func receives(kind string) bool {
	return kind == "r" || kind == "rcs" || kind == "rrc" || kind == "rrs" || kind == "rrcs"
}

func (b *builder) place() schedule.Place {
	p := schedule.Place{Rank: b.rank, Block: b.tb, Index: b.at}
	if tb := &b.f.GPUs[b.rank].TBs[b.tb]; b.at >= 0 && b.at < len(tb.Steps) {
		p.Name = tb.Steps[b.at].Type
	}
	return p
}

func (b *builder) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", b.place(), fmt.Errorf(format, args...))
}

func (b *builder) fault(format string, args ...any) {
	if b.p.Fault == nil {
		b.p.Fault = &schedule.Finding{Kind: schedule.Wrong,
			Message: b.place().String() + ": " + fmt.Sprintf(format, args...),
			Places:  []schedule.Place{b.place()}}
	}
}

func (b *builder) threadblock(tb *TB) error {
	sent := 0
	for i := range tb.Steps {
		b.at = i
		s := &tb.Steps[i]
		if s.S != i {
			return b.errorf("the block has it at %d, but its attribute s is %d", i, s.S)
		}
		var before, after []schedule.Lane
		if s.DepID >= 0 {
			l, err := b.dependence(s)
			if err != nil {
				return err
			}
			before = append(before, l)
		}
		m, err := b.move(tb, s, &sent, &before, &after)
		if err != nil {
			return err
		}
		if s.HasDep == 1 && s.Type != "nop" {
			after = append(after, schedule.Lane{Kind: schedule.Add, Counter: b.progress[b.rank][b.tb], Engine: -1})
		}
		op := schedule.Op{Name: s.Type, Index: i, Inner: -1}
		add := func(kind schedule.OpKind, lanes []schedule.Lane) {
			if err == nil {
				op.Kind, op.Lanes = kind, lanes
				err = b.p.Add(op)
			}
		}
		if len(before) > 0 {
			add(schedule.Sync, before)
			add(schedule.Join, nil)
		}
		if m != nil {
			op.Moves = []schedule.Move{*m}
			add(schedule.Data, nil)
			op.Moves = nil
		}
		add(schedule.Join, nil)
		if len(after) > 0 {
			add(schedule.Sync, after)
		}
		if err != nil {
			return b.errorf("%w", err)
		}
	}
	return nil
}

// dependence returns the lane with which step s waits for a step of another block. Blocks signal their progress only at
// steps that have the attribute hasdep.
func (b *builder) dependence(s *Step) (schedule.Lane, error) {
	blocks := b.f.GPUs[b.rank].TBs
	if s.DepID >= len(blocks) {
		return schedule.Lane{}, b.errorf("it depends on tb %d, but the rank has %d thread blocks", s.DepID, len(blocks))
	}
	if s.Dep < 0 || s.Dep >= len(blocks[s.DepID].Steps) {
		return schedule.Lane{}, b.errorf("it depends on op %d of tb %d, which has %d", s.Dep, s.DepID,
			len(blocks[s.DepID].Steps))
	}
	l := schedule.Lane{Kind: schedule.Await, Counter: b.progress[b.rank][s.DepID], Value: schedule.Never, Engine: -1}
	n := 0
	for i := range blocks[s.DepID].Steps {
		if o := &blocks[s.DepID].Steps[i]; o.HasDep == 1 && o.Type != "nop" {
			if n++; i >= s.Dep {
				l.Value = n
				break
			}
		}
	}
	return l, nil
}

// move returns the data movement of a step, or nil if the step moves no data. It adds the step's waits and signals to
// before and after.
func (b *builder) move(tb *TB, s *Step, sent *int, before, after *[]schedule.Lane) (*schedule.Move, error) {
	m := &schedule.Move{Engine: -1}
	switch s.Type {
	case "nop":
		return nil, nil
	case "s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re":
	default:
		return nil, b.errorf("unknown type %.40q: the types are cpy, nop, r, rcs, re, rrc, rrcs, rrs and s", s.Type)
	}
	if s.Count < 1 || s.Count > maxChunks {
		return nil, b.errorf("it has a count of %d", s.Count)
	}
	if s.Type != "r" && s.Type != "rcs" {
		src, err := b.span(s.SrcBuf, s.SrcOff, s.Count)
		if err != nil {
			return nil, err
		}
		m.From = append(m.From, src)
	}
	if s.Type != "s" && s.Type != "rrs" {
		dst, err := b.span(s.DstBuf, s.DstOff, s.Count)
		if err != nil {
			return nil, err
		}
		m.To = append(m.To, dst)
		if s.Type == "re" {
			m.From = append(m.From, dst)
		}
	}
	if receives(s.Type) {
		if tb.Recv < 0 {
			return nil, b.errorf("the block has no peer to receive from")
		}
		l := b.links[connection{tb.Recv, b.rank, tb.Chan}]
		*before = append(*before, schedule.Lane{Kind: schedule.Take, Counter: l.sent, Engine: -1})
		*after = append(*after, schedule.Lane{Kind: schedule.Add, Counter: l.free, Engine: -1})
		if l.received < len(l.counts) {
			if n := l.counts[l.received]; n != s.Count {
				b.fault("it receives %d chunks, and the message has %d", s.Count, n)
				return m, nil
			}
			m.From = append(m.From, schedule.Span{Cell: l.cells[l.received], N: s.Count})
		}
		l.received++
	}
	if sends(s.Type) {
		if tb.Send < 0 {
			return nil, b.errorf("the block has no peer to send to")
		}
		l := b.links[connection{b.rank, tb.Send, tb.Chan}]
		*before = append(*before, schedule.Lane{Kind: schedule.Take, Counter: l.free, Thread: 1, Engine: -1})
		*after = append(*after, schedule.Lane{Kind: schedule.Add, Counter: l.sent, Engine: -1})
		m.To = append(m.To, schedule.Span{Cell: l.cells[*sent], N: s.Count})
		*sent++
	}
	if len(m.From) == 0 { // no rank sends this message, so the step waits forever
		return nil, nil
	}
	return m, nil
}

func (b *builder) span(kind string, off, n int) (schedule.Span, error) {
	var buf *schedule.Buffer
	switch kind {
	case "i":
		buf = &b.p.Buffers[2*b.rank]
	case "o":
		buf = &b.p.Buffers[2*b.rank+1]
	case "s":
		buf = &b.p.Buffers[2*b.p.Ranks+b.rank]
	default:
		return schedule.Span{}, b.errorf("there is no buffer %q", kind)
	}
	if off < 0 || off > maxChunks || off+n > buf.Cells {
		size := fmt.Sprint(buf.Cells)
		if part := map[string]schedule.Collective{"i": schedule.AllGather,
			"o": schedule.ReduceScatter}[kind]; part != "" &&
			part == b.p.Collective {
			size += ", nchunksperloop divided by ngpus"
		}
		b.fault("chunks %d to %d are outside the %s buffer, which has %s", off, off+n-1, buf.Kind, size)
		return schedule.Span{Cell: buf.Base}, nil
	}
	return schedule.Span{Cell: buf.Base + off, N: n}, nil
}
