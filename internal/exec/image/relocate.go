package image

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
)

// A block of an input or output is movable if only computations and copies of the same rank use its buffer. Peers and
// channels then do not use the block's address, so a run may use the caller's memory instead.

// Relocation holds the commands of runs that use the caller's memory for some movable blocks.
type Relocation struct {
	// Cmds holds the commands to issue instead of the image's commands with these indices; a nil entry means that nothing
	// is issued.
	Cmds     map[int]*Command
	moved    map[place]bool
	launches []device.Launch
}

// Release releases the launches. No issued run may still use these commands.
func (r *Relocation) Release() {
	for _, l := range r.launches {
		l.Release()
	}
}

// findMovable reports, for each block of inputs and of outputs, whether it is movable.
func (b *builder) findMovable() (in, out []bool) {
	im := b.im
	bufs := b.studyBuffers()
	movable := func(io *plan.IO) bool {
		return !io.Inout && fills(im.Plan, io) && !slices.ContainsFunc(io.Parts, func(part plan.IOPart) bool {
			at := &bufs[part.Ref.Buf]
			lent := im.memory.lent[place{part.Ref.Rank, part.Ref.Buf}] != nil
			return at.ios != 1 || at.shown || lent || part.Ref.Bytes() == 0 ||
				im.Plan.Buffers[part.Ref.Buf].Space != plan.Arena
		})
	}
	for i := range im.Inputs {
		yes := im.Uploads[i] != nil && movable(&im.Inputs[i])
		in = append(in, slices.Repeat([]bool{yes}, len(im.Inputs[i].Parts))...)
	}
	for i := range im.Outputs {
		out = append(out, slices.Repeat([]bool{movable(&im.Outputs[i])}, len(im.Outputs[i].Parts))...)
	}
	return in, out
}

// movableNames returns the names of the inputs or outputs whose first block is movable.
func movableNames(ios []plan.IO, movable []bool) (names []string) {
	n := 0
	for i := range ios {
		if parts := len(ios[i].Parts); parts > 0 {
			if movable[n] {
				names = append(names, ios[i].Name)
			}
			n += parts
		}
	}
	return names
}

// use records how a plan uses a buffer.
type use struct {
	ios   int  // number of inputs and outputs in the buffer
	shown bool // whether a command other than a computation or copy of the buffer's own rank uses the buffer
}

func (b *builder) studyBuffers() []use {
	im := b.im
	bufs := make([]use, len(im.Plan.Buffers))
	for _, ios := range [][]plan.IO{im.Inputs, im.Outputs} {
		for i := range ios {
			seen := map[int32]bool{}
			for _, part := range ios[i].Parts {
				if buf := part.Ref.Buf; !seen[buf] {
					seen[buf] = true
					bufs[buf].ios++
				}
			}
		}
	}
	for i := range im.Plan.Cmds {
		c := &im.Plan.Cmds[i]
		if c.Kind == plan.Input || c.Kind == plan.Output {
			continue
		}
		reads, writes := im.Plan.Accesses(c)
		for _, r := range slices.Concat(reads, writes) {
			if !im.relocatable(i) || r.Rank != c.Rank {
				bufs[r.Buf].shown = true
			}
		}
	}
	return bufs
}

// relocatable reports whether a command can be resolved again for operands at other addresses.
func (im *Image) relocatable(i int) bool {
	kind, g := im.Plan.Cmds[i].Kind, im.Groups[i]
	return (kind == plan.Compute || kind == plan.Copy) && (g == nil || g.kernel != nil)
}

// Relocate resolves the commands of runs whose input and output blocks are in the given memories. The memories are
// indexed by block; nil means that the block remains in the arena. The blocks must be movable, and the memories must be
// aligned like buffers.
func (im *Image) Relocate(in, out []device.Memory) (*Relocation, error) {
	at := *im
	at.memory.lent = maps.Clone(im.memory.lent)
	r, b := &Relocation{Cmds: map[int]*Command{}, moved: map[place]bool{}}, &builder{im: &at}
	for _, i := range im.Own {
		c, rank := &im.Cmds[i], im.Plan.Cmds[i].Rank
		var ref plan.Ref
		var mem device.Memory
		switch io := im.Plan.Cmds[i].IO; c.Kind {
		case plan.Input:
			ref, mem = im.Inputs[io].Of(rank).Ref, in[c.Part]
		case plan.Output:
			ref, mem = im.Outputs[io].Of(rank).Ref, out[c.Part]
		}
		if mem != nil {
			at.memory.lent[place{rank, ref.Buf}], r.moved[place{rank, ref.Buf}] = mem, true
			r.Cmds[i] = nil
		}
	}
	lists := map[device.Stream][]device.Launch{}
	for _, i := range im.Own {
		last, cmd, err := b.relocate(i, r)
		if cmd == nil {
			continue
		}
		if err != nil {
			r.Release()
			return nil, fmt.Errorf("%s: %w", im.Plan.Where(int64(i)), err)
		}
		r.Cmds[last] = cmd
		if cmd.Launch != nil {
			r.launches = append(r.launches, cmd.Launch)
			lists[cmd.Stream] = append(lists[cmd.Stream], cmd.Launch)
		}
	}
	var errs []error
	for st, list := range lists {
		errs = append(errs, st.PrepareLaunches(list))
	}
	if err := errors.Join(errs...); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// relocate resolves command i, or the launch of its group, if it uses a relocated buffer and r does not yet contain the
// result. Otherwise it returns no command. last is the index of the command or, for a group, of the group's last
// command.
func (b *builder) relocate(i int, r *Relocation) (last int, cmd *Command, err error) {
	im, c := b.im, &b.im.Plan.Cmds[i]
	moved := func(ref plan.Ref) bool { return r.moved[place{ref.Rank, ref.Buf}] }
	if !im.relocatable(i) || !slices.ContainsFunc(im.Plan.Touches(c), moved) {
		return i, nil, nil
	}
	cmd, last = &Command{}, i
	g := im.Groups[i]
	if g == nil {
		return i, cmd, b.resolve(c, cmd)
	}
	last = g.Members[len(g.Members)-1]
	if r.Cmds[last] != nil {
		return last, nil, nil
	}
	*cmd = im.Cmds[last]
	cmd.Launch, err = im.World.Device(int(c.Rank)).Prepare(g.kernel(b))
	return last, cmd, err
}
