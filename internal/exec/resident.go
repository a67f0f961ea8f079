package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
)

// settleDown has input i lie in t for as long as the program is loaded, if its commands can
// work there: then runs find it there, and leave there what they make of it, and nothing is
// copied. Else runs copy from t, and to it.
func (p *Program) settleDown(i int, t *DeviceTensor) error {
	io := &p.inputs[i]
	if len(p.wrongPlace(io, t)) > 0 || !p.fills(io) {
		return nil
	}
	if io.Inout && !p.returnsWhereItLies(io) {
		return nil
	}
	if !io.Inout && p.lasting.uploads[i] == nil { // written, which nobody is to see
		return nil
	}
	if err := t.lost(); err != nil {
		return t.errorf("%w", err)
	}
	blocks := make([]device.Memory, p.plan.Ranks)
	for r := range blocks {
		blocks[r] = t.Block(r)
	}
	lent, err := p.lend(i, blocks)
	if lent {
		p.residents[i] = t
	}
	if err != nil {
		return t.errorf("%w", err)
	}
	return nil
}

// fills reports whether an input's blocks are its whole buffer, dense.
func (p *Program) fills(io *plan.IO) bool {
	for _, part := range io.Parts {
		if r := part.Ref; r.Off != 0 || !r.Dense() || p.plan.Buffers[r.Buf].Bytes != r.Bytes() {
			return false
		}
	}
	return true
}

// returnsWhereItLies reports whether what is left of an inout parameter is where it was.
func (p *Program) returnsWhereItLies(io *plan.IO) bool {
	o := p.outputOf(io)
	return o >= 0 && slices.EqualFunc(io.Parts, p.outputs[o].Parts, func(in, out plan.IOPart) bool {
		a, b := in.Ref, out.Ref
		return a.Rank == b.Rank && a.Buf == b.Buf && a.Off == b.Off && slices.Equal(a.Shape, b.Shape) && slices.Equal(a.Strides, b.Strides)
	})
}

// outputOf returns the number of the output that an inout parameter is, too.
func (p *Program) outputOf(io *plan.IO) int {
	return slices.IndexFunc(p.outputs, func(o plan.IO) bool { return io.Inout && o.Name == io.Name })
}

// findStaying finds the blocks of outputs that are where they are to be.
func (p *Program) findStaying() {
	staying := map[int]bool{}
	for i, t := range p.residents {
		if t != nil {
			staying[p.outputOf(&p.inputs[i])] = true
		}
	}
	p.stays = nil
	for o := range p.outputs {
		for range p.outputs[o].Parts {
			p.stays = append(p.stays, staying[o])
		}
	}
}

func (p *Program) residentNames() (names []string) {
	for i, t := range p.residents {
		if t != nil {
			names = append(names, p.inputs[i].Name)
		}
	}
	return names
}

// isResident reports whether the program works in t itself for an input, or an output.
func (p *Program) isResident(name string, t *DeviceTensor) bool {
	for i, r := range p.residents {
		if r == t && p.inputs[i].Name == name {
			return true
		}
	}
	return false
}

// wrongResidents says which residents a run is to be given otherwise: it would find, and
// change, what lies there.
func (p *Program) wrongResidents(d Direct) (wrong []string) {
	for i, t := range p.residents {
		if t != nil && !d.UsesOnlyAs(t, p.inputs[i].Name, p.inputs[i].Inout) {
			wrong = append(wrong, fmt.Sprintf("%s lies in a device tensor, and the run is to use that otherwise", p.inputs[i].Name))
		}
	}
	return wrong
}

// UsesOnlyAs reports whether a run takes a parameter from t, leaves it there if it is inout,
// and does nothing else with t: what is copied from it, or to it, would meet what the run
// does there.
func (d Direct) UsesOnlyAs(t *DeviceTensor, param string, inout bool) bool {
	other := func(all map[string]*DeviceTensor, name string) bool {
		for n, o := range all {
			if o == t && n != name {
				return true
			}
		}
		return false
	}
	if d.In[param] != t || other(d.In, param) {
		return false
	}
	if !inout {
		return !other(d.Out, "")
	}
	return d.Out[param] == t && !other(d.Out, param)
}

// keepResidents copies what the program's runs would update where it lies, on the devices, and
// says that the tensors hold nothing until it is restored. The world is at rest, and is so
// again then.
func (p *Program) keepResidents(ctx context.Context) (kept copies, err error) {
	for i, t := range p.residents {
		if t == nil || !p.inputs[i].Inout {
			continue
		}
		k, err := p.copyResident(ctx, i, t)
		if k != nil {
			kept = append(kept, k)
		}
		if err != nil { // those before are on their way, and what is given back is others'
			if err := p.world.Sync(ctx); err != nil {
				p.abandoned = kept
				return nil, err
			}
			return nil, errors.Join(err, kept.give())
		}
	}
	if len(kept) == 0 {
		return nil, nil
	}
	if err := p.world.Sync(ctx); err != nil {
		p.abandoned = kept
		return nil, err
	}
	for _, k := range kept {
		k.of.setContents(false)
	}
	return kept, nil
}

// copies are those of all residents that a program updates.
type copies []*copyOf

// restore brings back what was kept.
func (p *Program) restore(ctx context.Context, kept copies) error {
	if len(kept) == 0 {
		return nil
	}
	for _, k := range kept {
		if err := p.copyBlocks(k.back, k.there); err != nil {
			return err
		}
	}
	if err := p.world.Sync(ctx); err != nil {
		return err
	}
	for _, k := range kept {
		k.of.setContents(true)
	}
	return nil
}

func (kept copies) give() error {
	var errs []error
	for _, k := range kept {
		errs = append(errs, k.of.of.lender.give(k.loan))
	}
	return errors.Join(errs...)
}

// copyOf is a copy of a resident, on the devices.
type copyOf struct {
	of          *DeviceTensor
	loan        *loan
	there, back []device.View // by rank: where the copy is, and where it is of
}

// copyResident begins to copy a resident. What it returns is to be given back, also with an
// error.
func (p *Program) copyResident(ctx context.Context, i int, t *DeviceTensor) (*copyOf, error) {
	bytes := make([]int64, p.plan.Ranks)
	for _, part := range t.io.Parts {
		bytes[part.Ref.Rank] = part.Ref.Bytes()
	}
	n, err := t.of.lender.take(context.WithoutCancel(ctx), bytes) // others may come to use its world
	if err != nil {
		return nil, err
	}
	k := &copyOf{of: t, loan: n, there: make([]device.View, p.plan.Ranks), back: make([]device.View, p.plan.Ranks)}
	for _, part := range p.inputs[i].Parts {
		r := part.Ref.Rank
		mem, err := p.world.Device(int(r)).(device.Borrower).Borrow(n.blocks[r])
		if err != nil {
			return k, err
		}
		k.there[r] = device.Dense(mem, part.Ref.DType, part.Ref.Shape)
		if k.back[r], err = p.view(part.Ref); err != nil {
			return k, err
		}
	}
	return k, p.copyBlocks(k.there, k.back)
}

// copyBlocks begins to copy a block on each rank.
func (p *Program) copyBlocks(to, from []device.View) error {
	for r := range to {
		if err := p.streams[p.plan.Main[r]].Copy(to[r], from[r]); err != nil {
			return err
		}
	}
	return nil
}
