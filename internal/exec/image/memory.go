package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// layOut chooses the locations of buffers, and reserves memory for all buffers that are not borrowed.
func (b *builder) layOut(ctx context.Context, params params) error {
	if err := b.borrow(ctx, params); err != nil {
		return err
	}
	if err := b.afford(); err != nil {
		return err
	}
	im := b.im
	bytes, kind := im.ArenaBytes(), device.Shared
	if im.World.HostShared() {
		kind = device.Private
	}
	for r := range im.Plan.Ranks {
		mem, err := im.World.Device(r).Alloc(max(bytes, plan.Align), kind)
		if err != nil {
			return fmt.Errorf("the arena of rank %d, %s: %w", r, tensor.Size(bytes), err)
		}
		im.memory.arenas = append(im.memory.arenas, mem)
	}
	if kind == device.Private {
		if err := b.shareBuffers(); err != nil {
			return err
		}
	}
	return b.reserveHost()
}

// shareBuffers reserves shared memory for the buffers that other ranks access, if the arena is private. All ranks
// reserve the same buffers, so that the memory has the same layout in all processes.
func (b *builder) shareBuffers() error {
	im := b.im
	for _, buf := range reached(im.Plan) {
		at := &im.Plan.Buffers[buf]
		for r := range im.Plan.Ranks {
			mem, err := im.World.Device(r).Alloc(max(at.Bytes, plan.Align), device.Shared)
			if err != nil {
				return fmt.Errorf("buffer %s of rank %d, which peers access, %s: %w", at.Name, r, tensor.Size(at.Bytes), err)
			}
			im.memory.lent[place{int32(r), buf}] = mem
		}
	}
	return nil
}

// reached returns the buffers of the arena that commands of other ranks access: symmetric buffers, and buffers from
// which a receive copies.
func reached(p *plan.Plan) (list []int32) {
	sent := map[int32]bool{}
	for i := range p.Pairs {
		sent[p.Pairs[i].Src.Buf] = true
	}
	for i := range p.Buffers {
		if b := &p.Buffers[i]; b.Space == plan.Arena && (b.Symmetric || sent[int32(i)]) {
			list = append(list, int32(i))
		}
	}
	return list
}

// reserveHost reserves host memory for the ranks that have buffers in it.
func (b *builder) reserveHost() error {
	im := b.im
	im.memory.host = make([]device.Memory, im.Plan.Ranks)
	for c := range im.Plan.Cmds {
		for _, r := range im.Plan.Touches(&im.Plan.Cmds[c]) {
			buf := &im.Plan.Buffers[r.Buf]
			if buf.Space != plan.Host || im.memory.host[r.Rank] != nil {
				continue
			}
			mem, err := im.World.Device(int(r.Rank)).Alloc(max(im.Plan.HostBytes, plan.Align), device.Pinned)
			if err != nil {
				return fmt.Errorf("host memory of rank %d, %s, for buffer %s and others: %w",
					r.Rank, tensor.Size(im.Plan.HostBytes), buf.Name, err)
			}
			im.memory.host[r.Rank] = mem
		}
	}
	return nil
}

// afford returns an error if the image needs more memory than the budget.
func (b *builder) afford() error {
	p, staging, most := b.im.Plan, b.im.memory.staging, b.im.opts.MaxArena
	need := p.ArenaBytes + staging
	switch {
	case most <= 0 || need <= most:
		return nil
	case staging == 0: // not yet known, because the arena is allocated first
		return fmt.Errorf("the plan needs %s of device memory on each rank, without the staging of collectives, %w of %s",
			tensor.Size(need), ErrBudget, tensor.Size(most))
	default:
		return fmt.Errorf("the plan needs %s of device memory on each rank (arena %s, staging of collectives %s), %w of %s",
			tensor.Size(need), tensor.Size(p.ArenaBytes), tensor.Size(staging), ErrBudget, tensor.Size(most))
	}
}

// borrow obtains the memory of weights from the store, and the memory of resident parameters from their device tensors.
// The arena does not contain the borrowed memory, and is smaller. Only parameters that are used by their own rank alone
// are borrowed: borrowed memory is accessible neither to peers nor to libraries that run collectives.
func (b *builder) borrow(ctx context.Context, params params) error {
	im := b.im
	im.memory.lent = map[place]device.Memory{}
	im.Residents = make([]*resident.DeviceTensor, len(im.Inputs))
	im.Shared = make([]*resident.Weight, len(im.Inputs))
	for i := range im.Inputs {
		io := &im.Inputs[i]
		t := im.opts.Resident[io.Name]
		weight := im.opts.Store != nil && im.opts.Weights[io.Name] && im.Uploads[i] != nil
		if t == nil && !weight || !lendable(im.Plan, io, params.shown[i]) {
			continue
		}
		var err error
		if t != nil {
			err = b.borrowResident(i, t)
		} else {
			err = b.borrowWeight(ctx, i)
		}
		if err != nil {
			return err
		}
	}
	im.Stays = staying(im)
	slices.SortFunc(im.memory.gaps, func(a, b gap) int { return cmp.Compare(a.at, b.at) })
	return nil
}

// borrowWeight makes input i use the store's blocks.
func (b *builder) borrowWeight(ctx context.Context, i int) error {
	im := b.im
	io := &im.Inputs[i]
	w, err := im.opts.Store.Take(ctx, im.Plan.Ranks, io, im.Plan.Buffers[io.Parts[0].Ref.Buf].Bytes)
	if err != nil {
		return err
	}
	if lent, err := b.lend(i, w.Block); !lent {
		return errors.Join(err, im.opts.Store.Give(w))
	}
	im.Shared[i] = w
	return nil
}

// borrowResident makes input i use the blocks of t, if the plan's commands can work there. Runs then read and update t
// in place, without copies. Otherwise runs copy from t and to t.
func (b *builder) borrowResident(i int, t *resident.DeviceTensor) error {
	im := b.im
	io := &im.Inputs[i]
	switch {
	case len(t.Unlike(io, im.Plan.Ranks)) > 0 || !fills(im.Plan, io),
		io.Inout && !returnsInPlace(io, im.Outputs),
		!io.Inout && im.Uploads[i] == nil: // the plan overwrites an input that is not inout, but t must not change
		return nil
	}
	if err := t.Lost(); err != nil {
		return t.Errorf("%w", err)
	}
	lent, err := b.lend(i, t.Block)
	if lent {
		im.Residents[i] = t
	}
	if err != nil {
		return t.Errorf("%w", err)
	}
	return nil
}

// lend makes input i use borrowed blocks, one for each rank. On machines that do not lend memory the input is in the
// arena, and no error is returned.
func (b *builder) lend(i int, block func(rank int) device.Memory) (bool, error) {
	im := b.im
	lent := make([]device.Memory, im.Plan.Ranks)
	for r := range lent {
		var err error
		if lent[r], err = im.World.Device(r).Borrow(block(r)); errors.Is(err, device.ErrUnsupported) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	buf := im.Inputs[i].Parts[0].Ref.Buf
	for r, mem := range lent {
		im.memory.lent[place{int32(r), buf}] = mem
	}
	at := &im.Plan.Buffers[buf]
	im.memory.gaps = append(im.memory.gaps, gap{at.Offset, min(plan.Aligned(at.Bytes), im.Plan.ArenaBytes-at.Offset)})
	return true, nil
}

// staying returns, by output block, whether the block is computed in its device tensor.
func staying(im *Image) (stays []bool) {
	outputs := map[int]bool{}
	for i, t := range im.Residents {
		if t != nil {
			outputs[outputOf(&im.Inputs[i], im.Outputs)] = true
		}
	}
	for o := range im.Outputs {
		for range im.Outputs[o].Parts {
			stays = append(stays, outputs[o])
		}
	}
	return stays
}
