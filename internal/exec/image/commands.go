package image

import (
	"errors"
	"fmt"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
)

// indexBlocks returns the index of each block of inputs or outputs.
func indexBlocks(ios []plan.IO) map[ioKey]int {
	m := map[ioKey]int{}
	for i := range ios {
		for k := range ios[i].Parts {
			m[ioKey{int32(i), ios[i].Parts[k].Ref.Rank}] = len(m)
		}
	}
	return m
}

func (b *builder) resolveCommands() error {
	im := b.im
	im.Cmds = make([]Command, len(im.Plan.Cmds))
	b.inputBlocks, b.outputBlocks = indexBlocks(im.Inputs), indexBlocks(im.Outputs)
	if err := b.group(); err != nil {
		return err
	}
	b.precompileRest()
	for i := range im.Plan.Cmds {
		if im.Groups[i] != nil && im.Plan.Cmds[i].Kind != plan.Collective {
			continue
		}
		if err := b.resolve(&im.Plan.Cmds[i], &im.Cmds[i]); err != nil {
			return fmt.Errorf("%s: %w", im.Plan.Where(int64(i)), err)
		}
	}
	for i := range im.Plan.Cmds {
		if im.World.Local(int(im.Plan.Cmds[i].Rank)) {
			im.Own = append(im.Own, i)
		}
	}
	return nil
}

func (b *builder) resolve(c *plan.Cmd, out *Command) error {
	im := b.im
	*out = Command{Kind: c.Kind, Stream: im.Streams[c.Stream], Elem: int(c.Elem), Marked: c.Kind != plan.Record}
	var err error
	switch c.Kind {
	case plan.Compute:
		if writes(c) {
			out.Launch, err = im.World.Device(int(c.Rank)).Prepare(b.kernel(c))
		}
	case plan.Copy:
		err = b.resolveCopy(c, out)
	case plan.Collective:
		coll := &im.Plan.Colls[c.Coll]
		out.Channel, out.Seq, out.Part = im.channels[coll.Channel], int(coll.Seq), int(c.Part)
	case plan.Group:
		posts := make([]comm.Post, len(c.Group))
		for i, t := range c.Group {
			posts[i] = comm.Post{Pair: int(t.Pair), Send: t.Send}
		}
		out.Group, err = b.pairs.Group(int(c.Rank), out.Stream, posts)
	case plan.Record, plan.WaitEvent:
		out.Event = b.events[c.Event]
	case plan.Signal:
		out.Counters = b.counters[c.Counter][c.Peer]
	case plan.WaitCounter:
		ctr := &im.Plan.Counters[c.Counter]
		out.Counters, out.Value = b.counters[c.Counter][c.Rank], c.Value
		out.PerRun = ctr.PerRun[c.Rank*ctr.Len+c.Elem]
	case plan.Input:
		out.Part = b.inputBlocks[ioKey{c.IO, c.Rank}]
		out.Dst = im.View(im.Inputs[c.IO].Of(c.Rank).Ref)
	case plan.Output:
		out.Part = b.outputBlocks[ioKey{c.IO, c.Rank}]
		out.Src = im.View(im.Outputs[c.IO].Of(c.Rank).Ref)
	}
	return err
}

// resolveCopy prepares a copy command. If the command requests a copy by a kernel, and the machine has such a kernel,
// it prepares the kernel, and otherwise the machine's usual copy.
func (b *builder) resolveCopy(c *plan.Cmd, out *Command) error {
	out.Dst, out.Src = b.im.View(c.Outs[0]), b.im.View(c.Ins[0])
	d := b.im.World.Device(int(c.Rank))
	if c.SM {
		var err error
		out.Launch, err = d.PrepareMove(out.Dst, out.Src, int(c.CTAs))
		if !errors.Is(err, device.ErrUnsupported) {
			return err
		}
		out.Launch = nil
	}
	return d.PrepareCopy(out.Dst, out.Src)
}

// readyStreams reports to each stream the launches that it will execute.
func (b *builder) readyStreams() error {
	im := b.im
	lists := map[device.Stream][]device.Launch{}
	for i := range im.Cmds {
		if c := &im.Cmds[i]; c.Launch != nil {
			lists[c.Stream] = append(lists[c.Stream], c.Launch)
		}
	}
	for i, st := range im.Streams {
		if err := st.PrepareLaunches(lists[st]); err != nil {
			return fmt.Errorf("stream %s of rank %d: %w", st.Name(), im.Plan.Streams[i].Rank, err)
		}
	}
	return nil
}
