package exec

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/ir"
)

// memory is where buffers lie on each rank.
type memory struct {
	arenas  []device.Memory
	host    []device.Memory         // by rank, Space Host; nil where it has none
	lent    map[place]device.Memory // what is the store's, and
	gaps    []gap                   // what would be its place in the arena, by address
	staging int64                   // of collectives, on the rank with the most
}

// place is a buffer on a rank.
type place struct{ rank, buf int32 }

func (p *Program) makeStreams() error {
	seen := map[string]int{}
	for _, s := range p.plan.Streams {
		name := s.Name
		key := fmt.Sprintf("%d %s", s.Rank, name)
		if seen[key]++; seen[key] > 1 {
			name = fmt.Sprintf("%s#%d", name, seen[key])
		}
		opts := device.StreamOptions{Name: name}
		switch {
		case s.High:
			opts.Priority = 1
		case s.Low:
			opts.Priority = -1
		}
		st, err := p.world.Device(int(s.Rank)).NewStream(opts)
		if err != nil {
			return fmt.Errorf("stream %s of rank %d: %w", name, s.Rank, err)
		}
		p.streams = append(p.streams, st)
	}
	return nil
}

// makeEvents makes each event on the rank that records it.
func (p *Program) makeEvents() error {
	p.events = make([]device.Event, p.plan.Events)
	for i := range p.plan.Cmds {
		c := &p.plan.Cmds[i]
		if c.Kind != plan.Record {
			continue
		}
		e, err := p.world.Device(int(c.Rank)).NewEvent()
		if err != nil {
			return fmt.Errorf("event: %w", err)
		}
		p.events[c.Event] = e
	}
	return nil
}

func (p *Program) makeCounters() error {
	for _, c := range p.plan.Counters {
		row := make([]device.Counters, p.plan.Ranks)
		for r := range row {
			ctr, err := p.world.Device(r).NewCounters(int(c.Len))
			if err != nil {
				return fmt.Errorf("counter %s of rank %d: %w", c.Name, r, err)
			}
			row[r] = ctr
		}
		p.counters = append(p.counters, row)
	}
	return nil
}

// afford refuses to reserve more than the budget allows.
func (p *Program) afford() error {
	need := p.plan.ArenaBytes + p.memory.staging
	switch {
	case p.opts.MaxArena <= 0 || need <= p.opts.MaxArena:
		return nil
	case p.memory.staging == 0: // not known before the arena is there
		return fmt.Errorf("the plan needs %s of device memory on each rank, besides what collectives stage in, %w of %s",
			tensor.Size(need), ErrBudget, tensor.Size(p.opts.MaxArena))
	default:
		return fmt.Errorf("the plan needs %s of device memory on each rank (arena %s, staging of collectives %s), %w of %s",
			tensor.Size(need), tensor.Size(p.plan.ArenaBytes), tensor.Size(p.memory.staging), ErrBudget, tensor.Size(p.opts.MaxArena))
	}
}

func (p *Program) reserveArenas() error {
	if err := p.afford(); err != nil {
		return err
	}
	for r := range p.plan.Ranks {
		mem, err := p.world.Device(r).Alloc(max(p.arenaBytes(), plan.Align), device.Shared)
		if err != nil {
			return fmt.Errorf("the arena of rank %d, %s: %w", r, tensor.Size(p.arenaBytes()), err)
		}
		p.memory.arenas = append(p.memory.arenas, mem)
	}
	p.memory.host = make([]device.Memory, p.plan.Ranks)
	return nil
}

// view returns where r lies. A rank's host memory is reserved when the first buffer in it is met.
func (p *Program) view(r plan.Ref) (device.View, error) {
	b := &p.plan.Buffers[r.Buf]
	v := device.View{DType: r.DType, Shape: r.Shape, Strides: r.Strides}
	at := place{r.Rank, r.Buf}
	if lent := p.memory.lent[at]; lent != nil {
		v.Mem, v.Off = lent, r.Off
		return v, nil
	}
	if b.Space == plan.Arena {
		v.Mem, v.Off = p.memory.arenas[r.Rank], b.Offset-p.gapsBelow(b.Offset)+r.Off
		return v, nil
	}
	if p.memory.host[r.Rank] == nil {
		mem, err := p.world.Device(int(r.Rank)).Alloc(max(p.plan.HostBytes, plan.Align), device.Pinned)
		if err != nil {
			return v, fmt.Errorf("host memory of rank %d, %s, for buffer %s and others: %w", r.Rank, tensor.Size(p.plan.HostBytes), b.Name, err)
		}
		p.memory.host[r.Rank] = mem
	}
	v.Mem, v.Off = p.memory.host[r.Rank], b.Offset+r.Off
	return v, nil
}

func (p *Program) views(refs []plan.Ref) ([]device.View, error) {
	vs := make([]device.View, len(refs))
	for i, r := range refs {
		v, err := p.view(r)
		if err != nil {
			return nil, err
		}
		vs[i] = v
	}
	return vs, nil
}

// designChannels resolves the collectives and learns what they need.
func (p *Program) designChannels() error {
	insts := make([][]comm.Instance, len(p.plan.Channels))
	p.together = meets(p.plan)
	if err := p.findTails(); err != nil {
		return err
	}
	for i := range p.plan.Colls {
		c := &p.plan.Colls[i]
		in, err := p.instance(c)
		if err != nil {
			return err
		}
		if t := p.tails[int32(i)]; t != nil {
			in.Norm = &t.norm
		}
		insts[c.Channel] = append(insts[c.Channel], in)
	}
	for i := range p.plan.Channels {
		ch := &p.plan.Channels[i]
		members := make([]comm.Member, len(ch.Team))
		for m, r := range ch.Team {
			members[m] = comm.Member{Rank: int(r), Stream: p.streams[ch.Streams[m]]}
		}
		c, err := p.dispatch.Design(members, insts[i])
		if err != nil {
			return p.placeInstance(i, err)
		}
		p.channels = append(p.channels, c)
	}
	return p.countStaging()
}

// countStaging learns what collectives take on the rank with the most.
func (p *Program) countStaging() error {
	staging := make([]int64, p.plan.Ranks)
	for i, c := range p.channels {
		for _, r := range p.plan.Channels[i].Team {
			staging[r] += c.StagingBytes()
		}
	}
	p.memory.staging = slices.Max(staging)
	return p.afford()
}

// findTable looks for what is known of collectives on this machine. Where the
// order of work is drawn at random nothing is measured, nor looked up.
func (p *Program) findTable() error {
	policy := comm.Policy{Algorithm: p.opts.Algorithm, Fixed: p.opts.Fixed}
	var found comm.Found
	if !p.caps.Virtual {
		found = comm.Find(p.machine, p.world)
		p.log.Debug("table of collectives", "from", found.From, "hash", found.Table.Hash(), "ignored", found.Ignored)
		if found.PassedOver() {
			p.passedOver = found.Ignored
			p.log.Warn("the tuned table of collectives is not used; hocket tune makes it anew", "func", p.plan.Func, "why", found.Ignored)
		}
	}
	p.dispatch = comm.NewDispatch(p.world, p.caps, found.Table, policy)
	if policy.Algorithm != "" {
		if err := p.dispatch.Check(policy.Algorithm); err != nil {
			return &UnknownAlgorithm{err}
		}
	}
	return nil
}

func (p *Program) instance(c *plan.Coll) (comm.Instance, error) {
	in := comm.Instance{Pin: device.Tuning{Algo: c.Algo}, CTAs: int(c.CTAs), Shared: true,
		Collective: device.Collective{Op: c.Op, Red: c.Red, Root: int(c.Root), Axis: int(c.Axis), Split: int(c.Split), AnyOrder: c.AnyOrd, Together: p.together}}
	for _, part := range c.Parts {
		cp := comm.Part{To: int(part.To), From: int(part.From), Rows: part.Rows}
		for _, side := range []struct {
			ref  plan.Ref
			view *device.View
			has  *bool
		}{{part.In, &cp.In, &cp.Reads}, {part.Out, &cp.Out, &cp.Writes}} {
			if !side.ref.Present() {
				continue
			}
			v, err := p.view(side.ref)
			if err != nil {
				return in, err
			}
			*side.view, *side.has = v, true
			in.Shared = in.Shared && p.plan.Buffers[side.ref.Buf].Space == plan.Arena
		}
		for _, r := range part.Counts {
			v, err := p.view(r)
			if err != nil {
				return in, err
			}
			cp.Counts, cp.Counted = v, true
			in.Shared = in.Shared && p.plan.Buffers[r.Buf].Space == plan.Arena
		}
		in.Parts = append(in.Parts, cp)
	}
	return in, nil
}

func (p *Program) openChannels() error {
	for _, c := range p.channels {
		c.Foresee()
	}
	for i, c := range p.channels {
		if err := c.Open(); err != nil {
			return p.placeInstance(i, err)
		}
	}
	p.algorithms = make([]string, len(p.plan.Colls))
	for i := range p.plan.Colls {
		c := &p.plan.Colls[i]
		p.algorithms[i] = p.channels[c.Channel].Algorithm(int(c.Seq))
	}
	return p.countStaging() // teams tell only now what they take
}

// placeInstance adds to an error about an instance of channel where in the
// program it is.
func (p *Program) placeInstance(channel int, err error) error {
	var in *comm.InstanceError
	if !errors.As(err, &in) {
		return err
	}
	for i := range p.plan.Cmds {
		c := &p.plan.Cmds[i]
		if c.Kind != plan.Collective {
			continue
		}
		if coll := &p.plan.Colls[c.Coll]; int(coll.Channel) == channel && int(coll.Seq) == in.Index {
			return fmt.Errorf("%s: %w", p.where(int64(i)), err)
		}
	}
	return err
}

func (p *Program) openPairs() error {
	pairs := make([]comm.Pair, len(p.plan.Pairs))
	for i, pr := range p.plan.Pairs {
		vs, err := p.views([]plan.Ref{pr.Src, pr.Dst})
		if err != nil {
			return err
		}
		pairs[i] = comm.Pair{SrcRank: int(pr.Src.Rank), DstRank: int(pr.Dst.Rank), Src: vs[0], Dst: vs[1]}
	}
	var err error
	p.pairs, err = comm.OpenPairs(p.world, pairs)
	return err
}

// command is a resolved plan.Cmd: what the issue loop needs and no more.
type command struct {
	kind     plan.Kind
	marked   bool // bracketed by marks
	stream   device.Stream
	launch   device.Launch // Compute, nil when there is nothing to compute; Copy by a kernel
	dst, src device.View   // Copy; Input: dst; Output: src
	event    device.Event
	counters device.Counters
	elem     int
	value    int64 // WaitCounter, in run 0
	perRun   int64
	channel  *comm.Channel
	seq      int
	part     int // Collective: member; Input, Output: index in frame blocks
	group    *comm.Group
}

func (p *Program) resolveCommands() error {
	p.cmds = make([]command, len(p.plan.Cmds))
	blocks := blockIndex{in: indexBlocks(p.inputs), out: indexBlocks(p.outputs)}
	var err error
	if p.chains, err = p.fuse(); err != nil {
		return err
	}
	p.joinTails()
	p.foreseeCommands()
	for i := range p.plan.Cmds {
		if p.chains[i] != nil && p.plan.Cmds[i].Kind != plan.Collective {
			continue
		}
		if err := p.resolve(&p.plan.Cmds[i], &p.cmds[i], blocks); err != nil {
			return fmt.Errorf("%s: %w", p.where(int64(i)), err)
		}
	}
	return nil
}

func (p *Program) resolve(c *plan.Cmd, out *command, blocks blockIndex) error {
	*out = command{kind: c.Kind, stream: p.streams[c.Stream], elem: int(c.Elem), marked: c.Kind != plan.Record}
	var err error
	switch c.Kind {
	case plan.Compute:
		out.launch, err = p.prepare(c)
	case plan.Copy:
		err = p.resolveCopy(c, out)
	case plan.Collective:
		coll := &p.plan.Colls[c.Coll]
		out.channel, out.seq, out.part = p.channels[coll.Channel], int(coll.Seq), int(c.Part)
	case plan.Group:
		posts := make([]comm.Post, len(c.Group))
		for i, t := range c.Group {
			posts[i] = comm.Post{Pair: int(t.Pair), Send: t.Send}
		}
		out.group, err = p.pairs.Group(int(c.Rank), out.stream, posts)
	case plan.Record, plan.WaitEvent:
		out.event = p.events[c.Event]
	case plan.Signal:
		out.counters = p.counters[c.Counter][c.Peer]
	case plan.WaitCounter:
		ctr := &p.plan.Counters[c.Counter]
		out.counters, out.value = p.counters[c.Counter][c.Rank], c.Value
		out.perRun = ctr.PerRun[c.Rank*ctr.Len+c.Elem]
	case plan.Input:
		out.part = blocks.in[ioKey{c.IO, c.Rank}]
		out.dst, err = p.view(partOf(&p.inputs[c.IO], c.Rank).Ref)
	case plan.Output:
		out.part = blocks.out[ioKey{c.IO, c.Rank}]
		out.src, err = p.view(partOf(&p.outputs[c.IO], c.Rank).Ref)
	}
	return err
}

// resolveCopy takes a kernel where one is asked for and the machine has it, else what
// the machine copies by.
func (p *Program) resolveCopy(c *plan.Cmd, out *command) error {
	vs, err := p.views([]plan.Ref{c.Outs[0], c.Ins[0]})
	if err != nil {
		return err
	}
	out.dst, out.src = vs[0], vs[1]
	d := p.world.Device(int(c.Rank))
	if m, ok := d.(device.Mover); ok && c.SM {
		out.launch, err = m.PrepareMove(out.dst, out.src, int(c.CTAs))
		if !errors.Is(err, device.ErrUnsupported) {
			return err
		}
		out.launch = nil
	}
	if d, ok := d.(device.CopyPreparer); ok {
		return d.PrepareCopy(out.dst, out.src)
	}
	return nil
}

// prepare makes a compute command's kernel ready; nil when all it writes is empty.
func (p *Program) prepare(c *plan.Cmd) (device.Launch, error) {
	if !writes(c) {
		return nil, nil
	}
	k, err := p.kernel(c)
	if err != nil {
		return nil, err
	}
	return p.world.Device(int(c.Rank)).Prepare(k)
}

// readyStreams tells each stream what it will launch.
func (p *Program) readyStreams() error {
	lists := map[device.Stream][]device.Launch{}
	for i := range p.cmds {
		if c := &p.cmds[i]; c.launch != nil {
			lists[c.stream] = append(lists[c.stream], c.launch)
		}
	}
	for i, st := range p.streams {
		s, ok := st.(device.LaunchPreparer)
		if !ok {
			continue
		}
		if err := s.PrepareLaunches(lists[st]); err != nil {
			return fmt.Errorf("stream %s of rank %d: %w", st.Name(), p.plan.Streams[i].Rank, err)
		}
	}
	return nil
}

// writes reports whether a command has a result that is not empty.
func writes(c *plan.Cmd) bool {
	return slices.ContainsFunc(c.Outs, func(r plan.Ref) bool { return r.Elements() > 0 })
}

// kernel is what a compute command computes.
func (p *Program) kernel(c *plan.Cmd) (device.Kernel, error) {
	ins, err := p.views(c.Ins)
	if err != nil {
		return device.Kernel{}, err
	}
	outs, err := p.views(c.Outs)
	if err != nil {
		return device.Kernel{}, err
	}
	if c.Op == ir.OpMatmul {
		ins[1] = repeated(ins[1], ins[0].Shape)
	}
	a := &c.Attr
	return device.Kernel{Op: c.Op, Ins: ins, Outs: outs,
		Axes: a.Axes, Value: a.Value, Int: a.Int, HasInt: a.HasInt, TA: a.TA, TB: a.TB,
		Causal: a.Causal, First: a.First, Rows: a.Rows, SMs: int(a.SMs), Red: ir.NoRed,
		Constant: c.Op == ir.OpLinear && p.constant[c.Ins[1].Buf], Fixed: p.opts.Fixed, Timed: p.opts.Timed}, nil
}

// repeated is a matmul's second operand where the first is a batch of shape
// like and it is one matrix for all: devices take operands of equal rank.
func repeated(b device.View, like []int64) device.View {
	extra := len(like) - len(b.Shape)
	if extra <= 0 {
		return b
	}
	b.Shape = slices.Concat(like[:extra], b.Shape)
	b.Strides = slices.Concat(make([]int64, extra), b.Strides)
	return b
}
