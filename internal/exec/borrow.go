package exec

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
)

// borrow takes the blocks of weights from the store, and those of residents from their
// device tensors: they need no bytes of the arena then, which closes up. Only parameters
// that are used by their own rank alone are taken so: peers are not shown such memory, nor
// are the libraries that collectives are given to.
func (p *Program) borrow(ctx context.Context) error {
	p.memory.lent = map[place]device.Memory{}
	p.constant = map[int32]bool{}
	p.residents = make([]*DeviceTensor, len(p.inputs))
	for i := range p.inputs {
		var err error
		name := p.inputs[i].Name
		t, weight := p.opts.Resident[name], p.opts.Store != nil && p.opts.Weights[name] && p.lasting.uploads[i] != nil
		switch {
		case t == nil && !weight || !p.lendable(i):
		case t != nil:
			err = p.settleDown(i, t)
		default:
			err = p.borrowInput(ctx, i)
		}
		if err != nil {
			return err
		}
	}
	p.findStaying()
	slices.SortFunc(p.memory.gaps, func(a, b gap) int { return cmp.Compare(a.at, b.at) })
	return nil
}

func (p *Program) borrowInput(ctx context.Context, i int) error {
	io := &p.inputs[i]
	k, err := p.opts.Store.take(ctx, p.plan.Ranks, io, p.plan.Buffers[io.Parts[0].Ref.Buf].Bytes)
	if err != nil {
		return err
	}
	if lent, err := p.lend(i, k.blocks); !lent {
		return errors.Join(err, p.opts.Store.give(k))
	}
	p.borrowed = append(p.borrowed, k)
	p.constant[io.Parts[0].Ref.Buf] = true
	p.lasting.holds[i] = &k.holding
	return nil
}

// lend lays input i in others' blocks, a rank each. Where a machine lends nothing it lies in
// the arena, and no error is returned.
func (p *Program) lend(i int, blocks []device.Memory) (bool, error) {
	lent := make([]device.Memory, len(blocks))
	for r := range lent {
		b, ok := p.world.Device(r).(device.Borrower)
		if !ok {
			return false, nil
		}
		var err error
		if lent[r], err = b.Borrow(blocks[r]); errors.Is(err, device.ErrUnsupported) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	buf := p.inputs[i].Parts[0].Ref.Buf
	for r, mem := range lent {
		p.memory.lent[place{int32(r), buf}] = mem
	}
	b := &p.plan.Buffers[buf]
	p.memory.gaps = append(p.memory.gaps, gap{b.Offset, min(plan.Aligned(b.Bytes), p.plan.ArenaBytes-b.Offset)})
	return true, nil
}

// giveBack gives what was borrowed back. The program's world is closed.
func (p *Program) giveBack() error {
	var errs []error
	for _, k := range p.borrowed {
		errs = append(errs, p.opts.Store.give(k))
	}
	errs = append(errs, p.abandoned.give())
	p.borrowed, p.abandoned = nil, nil
	return errors.Join(errs...)
}

// lendable reports whether an input's buffer can lie outside of the arena: every rank has a
// block, which nothing but that rank uses, and no other buffer lies there.
func (p *Program) lendable(i int) bool {
	io := &p.inputs[i]
	if p.lasting.shown[i] || len(io.Parts) != p.plan.Ranks || p.plan.Ranks == 0 {
		return false
	}
	buf := io.Parts[0].Ref.Buf
	b := &p.plan.Buffers[buf]
	if b.Space != plan.Arena || slices.ContainsFunc(io.Parts, func(part plan.IOPart) bool { return part.Ref.Buf != buf }) {
		return false
	}
	for o := range p.plan.Buffers {
		other := &p.plan.Buffers[o]
		if int32(o) != buf && other.Space == plan.Arena && other.Offset < b.Offset+plan.Aligned(b.Bytes) && b.Offset < other.Offset+plan.Aligned(other.Bytes) {
			return false
		}
	}
	return true
}

// gap is a stretch of the plan's arena that the program's arena lacks.
type gap struct{ at, bytes int64 }

// arenaBytes is the size of the program's arena.
func (p *Program) arenaBytes() int64 { return p.plan.ArenaBytes - p.gapsBelow(p.plan.ArenaBytes) }

// gapsBelow is how much of the gaps lies below an offset in the plan's arena.
func (p *Program) gapsBelow(at int64) int64 {
	sum := int64(0)
	for _, g := range p.memory.gaps {
		if g.at >= at {
			break
		}
		sum += g.bytes
	}
	return sum
}
