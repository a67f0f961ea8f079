package image

import (
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/fuse"
	"hocket.example/hocket/internal/plan"
)

// openChannels builds the plan's collectives and send/recv pairs.
func (b *builder) openChannels() error {
	dispatch, err := b.findTable()
	if err != nil {
		return err
	}
	if err := b.designChannels(dispatch); err != nil {
		return err
	}
	im := b.im
	for _, c := range im.channels {
		c.Precompile()
	}
	for i, c := range im.channels {
		if err := c.Open(); err != nil {
			return b.placeInstance(i, err)
		}
	}
	im.Algorithms = make([]string, len(im.Plan.Colls))
	for i := range im.Plan.Colls {
		c := &im.Plan.Colls[i]
		im.Algorithms[i] = im.channels[c.Channel].Algorithm(int(c.Seq))
	}
	if err := b.countStaging(); err != nil { // the size of the teams' memory is known only after the channels are open
		return err
	}
	return b.openPairs()
}

// findTable loads the table of collectives for this machine. A virtual machine, which draws the order of work at
// random, has no measurements and uses no table.
func (b *builder) findTable() (*comm.Dispatch, error) {
	im := b.im
	policy := comm.Policy{Algorithm: im.opts.Algorithm, Fixed: im.opts.Fixed, Sparing: im.opts.Sparing}
	var found comm.Found
	if !im.Caps.Virtual {
		found = comm.Find(b.machine, im.World)
		im.opts.Logger.Debug("table of collectives", "from", found.From, "hash", found.Table.Hash(), "ignored", found.Ignored)
		if found.PassedOver() {
			im.PassedOver = found.Ignored
			im.opts.Logger.Warn("the tuned table of collectives is not used; hocket tune creates a new one",
				"func", im.Plan.Func, "why", found.Ignored)
		}
	}
	dispatch := comm.NewDispatch(im.World, im.Caps, found.Table, policy)
	if policy.Algorithm != "" {
		if err := dispatch.Check(policy.Algorithm); err != nil {
			return nil, &UnknownAlgorithm{err}
		}
	}
	return dispatch, nil
}

// designChannels resolves the collectives and chooses their algorithms.
func (b *builder) designChannels(dispatch *comm.Dispatch) error {
	im := b.im
	meets, norms := im.Plan.Meets(), b.norms()
	insts := make([][]comm.Instance, len(im.Plan.Channels))
	for i := range im.Plan.Colls {
		c := &im.Plan.Colls[i]
		in := im.instance(c, meets)
		if n := norms[int32(i)]; n != nil {
			in.Norm = im.normKernel(n)
		}
		insts[c.Channel] = append(insts[c.Channel], in)
	}
	for i := range im.Plan.Channels {
		ch := &im.Plan.Channels[i]
		members := make([]comm.Member, len(ch.Team))
		for m, r := range ch.Team {
			members[m] = comm.Member{Rank: int(r), Stream: im.Streams[ch.Streams[m]]}
		}
		c, err := dispatch.Design(members, insts[i])
		if err != nil {
			return b.placeInstance(i, err)
		}
		im.channels = append(im.channels, c)
	}
	b.found = norms
	return b.countStaging()
}

// norms returns the all_reduces that a team may fuse with the add and the rms_norm after them, if the machine can have
// teams.
func (b *builder) norms() map[int32]*fuse.Norm {
	if len(b.im.World.TeamAlgorithms()) == 0 || b.im.opts.NoChains {
		return nil
	}
	return fuse.Norms(b.im.Plan)
}

// normKernel returns the description, for the team, of a launch that fuses an all_reduce with the add and the rms_norm
// after it.
func (im *Image) normKernel(n *fuse.Norm) *device.Norm {
	first := &im.Plan.Cmds[n.Members[0].Norm]
	k := &device.Norm{Eps: first.Attr.Number(0).Float, Parts: make([]device.NormPart, len(n.Members))}
	for _, m := range n.Members {
		norm, part := &im.Plan.Cmds[m.Norm], im.Plan.Cmds[m.Reduce].Part
		k.Parts[part] = device.NormPart{
			In: im.View(m.Part(im.Plan).In), Residual: im.View(m.Residual(im.Plan)), Weight: im.View(norm.Ins[1]),
			Out: im.View(norm.Outs[0]),
		}
		if m.Stored {
			k.Parts[part].Sum = im.View(norm.Ins[0])
		}
	}
	return k
}

// countStaging computes the size of the staging memory of collectives on the rank where it is largest.
func (b *builder) countStaging() error {
	im := b.im
	staging := make([]int64, im.Plan.Ranks)
	for i, c := range im.channels {
		for _, r := range im.Plan.Channels[i].Team {
			staging[r] += c.StagingBytes()
		}
	}
	im.memory.staging = slices.Max(staging)
	return b.afford()
}

// instance returns a collective with its operands resolved.
func (im *Image) instance(c *plan.Coll, meets bool) comm.Instance {
	in := comm.Instance{Pin: device.Tuning{Algo: c.Algo}, CTAs: int(c.CTAs), Shared: !im.World.HostShared(),
		Collective: device.Collective{Op: c.Op, Red: c.Red, Root: int(c.Root), Axis: int(c.Axis), Split: int(c.Split),
			AnyOrder: c.AnyOrd, Together: meets}}
	see := func(r plan.Ref) device.View {
		in.Shared = in.Shared && im.Plan.Buffers[r.Buf].Space == plan.Arena
		return im.View(r)
	}
	for _, part := range c.Parts {
		cp := comm.Part{To: int(part.To), From: int(part.From), Rows: part.Rows}
		if part.In.Present() {
			cp.In, cp.Reads = see(part.In), true
		}
		if part.Out.Present() {
			cp.Out, cp.Writes = see(part.Out), true
		}
		for _, r := range part.Counts {
			cp.Counts, cp.Counted = see(r), true
		}
		in.Parts = append(in.Parts, cp)
	}
	return in
}

// placeInstance adds the position of a collective's statement in the program to an error about that collective.
func (b *builder) placeInstance(channel int, err error) error {
	var in *comm.InstanceError
	if !errors.As(err, &in) {
		return err
	}
	p := b.im.Plan
	for i := range p.Cmds {
		c := &p.Cmds[i]
		if c.Kind != plan.Collective {
			continue
		}
		if coll := &p.Colls[c.Coll]; int(coll.Channel) == channel && int(coll.Seq) == in.Index {
			return fmt.Errorf("%s: %w", p.Where(int64(i)), err)
		}
	}
	return err
}

func (b *builder) openPairs() error {
	im := b.im
	pairs := make([]comm.Pair, len(im.Plan.Pairs))
	for i, pr := range im.Plan.Pairs {
		pairs[i] = comm.Pair{SrcRank: int(pr.Src.Rank), DstRank: int(pr.Dst.Rank), Src: im.View(pr.Src), Dst: im.View(pr.Dst)}
	}
	var err error
	b.pairs, err = comm.OpenPairs(im.World, pairs)
	return err
}
