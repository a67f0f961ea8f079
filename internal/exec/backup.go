package exec

import (
	"context"
	"errors"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
)

// backup holds copies, in device memory, of all resident device tensors that a program updates.
type backup struct {
	im *image.Image
	// After trials of graph forms that fail, the failed world may still use the copies. The memory of the copies is
	// then freed when that world is closed.
	copies []*residentCopy
}

// residentCopy is a copy of a resident device tensor.
type residentCopy struct {
	of            *resident.DeviceTensor
	loan          *resident.Loan
	there, origin []device.View // by rank: the copy's memory and the resident's memory
}

// give frees the copies' memory.
func (b *backup) give() error {
	var errs []error
	for _, c := range b.copies {
		errs = append(errs, c.loan.Give())
	}
	b.copies = nil
	return errors.Join(errs...)
}

// take copies, in device memory, the tensors that the program's runs update in place. take marks the copied tensors as
// without contents until restore. The world must be idle, and is idle again when take returns.
func (b *backup) take(ctx context.Context) (err error) {
	for i, t := range b.im.Residents {
		if err == nil && t != nil && b.im.Inputs[i].Inout {
			err = b.copy(ctx, i, t)
		}
	}
	if len(b.copies) == 0 {
		return err
	}
	// memory copies may still be running, and would write to memory that is reused
	if serr := b.im.World.Sync(ctx); serr != nil {
		return serr
	}
	if err != nil {
		return errors.Join(err, b.give())
	}
	for _, c := range b.copies {
		c.of.SetContents(false)
	}
	return nil
}

// restore copies the saved contents back.
func (b *backup) restore(ctx context.Context) error {
	if len(b.copies) == 0 {
		return nil
	}
	for _, c := range b.copies {
		if err := b.copyBlocks(c.origin, c.there); err != nil {
			return err
		}
	}
	if err := b.im.World.Sync(ctx); err != nil {
		return err
	}
	for _, c := range b.copies {
		c.of.SetContents(true)
	}
	return nil
}

// copy enqueues the copy of a resident device tensor.
func (b *backup) copy(ctx context.Context, i int, t *resident.DeviceTensor) error {
	n, err := t.Spare(ctx)
	if err != nil {
		return err
	}
	ranks := b.im.Plan.Ranks
	c := &residentCopy{of: t, loan: n, there: make([]device.View, ranks), origin: make([]device.View, ranks)}
	b.copies = append(b.copies, c)
	for _, part := range b.im.Inputs[i].Parts {
		r := int(part.Ref.Rank)
		mem, err := b.im.World.Device(r).Borrow(n.Block(r))
		if err != nil {
			return err
		}
		c.there[r] = device.Dense(mem, part.Ref.DType, part.Ref.Shape)
		c.origin[r] = b.im.View(part.Ref)
	}
	return b.copyBlocks(c.there, c.origin)
}

// copyBlocks enqueues a copy of one block on each rank.
func (b *backup) copyBlocks(to, from []device.View) error {
	for r := range to {
		if err := b.im.Streams[b.im.Plan.Main[r]].Copy(to[r], from[r]); err != nil {
			return err
		}
	}
	return nil
}
