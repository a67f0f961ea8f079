package exec

import (
	"errors"
	"fmt"
	"slices"
	"weak"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// binder checks the arguments of runs, and stores the host memory from and to which the runs copy in frames.
type binder struct {
	im        *image.Image
	signature signature
	weights   *weightCache
	enqueued  *enqueued // resolves the caller's addresses
	gathers   bool      // whether this process receives the output blocks of all ranks
	inputs    map[string]ioBlocks
	outputs   map[string]ioBlocks
	frames    []*frame
	spoils    bool // whether the batch's runs update arguments in host memory
	// kept is the batch for which the frames are prepared and remain valid; the zero value if there is none.
	kept weak.Pointer[Batch]
}

// keptFrames is the largest number of frames that outlive a batch.
const keptFrames = 4

func newBinder(im *image.Image, weights *weightCache, enqueued *enqueued) *binder {
	return &binder{im: im, signature: signature{im}, weights: weights, enqueued: enqueued, inputs: byName(im.Inputs),
		outputs: byName(im.Outputs)}
}

// receives reports whether this process receives the output blocks of a rank.
func (b *binder) receives(rank int) bool { return b.gathers || b.im.World.Local(rank) }

// keep marks the frames as prepared for another execution of the batch, if its runs copy nothing from or to the host.
func (b *binder) keep(batch *Batch) {
	if n := len(batch.Runs); n <= keptFrames && !slices.Contains(copied(b.frames[:n]), true) {
		b.kept = weak.Make(batch)
	}
}

// keeps reports whether the frames are prepared for a batch.
func (b *binder) keeps(batch *Batch) bool { return b.kept == weak.Make(batch) && batch.ready() }

// trim drops frames that exceed keptFrames, and references to the caller's memory, unless the frames are kept for a
// batch.
func (b *binder) trim() {
	if b.kept != (weak.Pointer[Batch]{}) {
		return
	}
	if len(b.frames) > keptFrames {
		clear(b.frames[keptFrames:])
		b.frames = b.frames[:keptFrames]
	}
	for _, f := range b.frames {
		f.forget()
	}
}

// bind checks the inputs of all runs and prepares their blocks. Only inputs whose indices are in ins are bound; the
// other inputs are unchanged.
func (b *binder) bind(batch []Args, weights *Weights, ins []int) error {
	b.kept = weak.Pointer[Batch]{}
	if err := b.signature.check(batch, weights, ins); err != nil {
		return err
	}
	b.weights.decide(batch, weights, ins)
	var shared map[*tensor.Tensor]bool
	shared, b.spoils = b.signature.sharedInto(batch, weights, ins, b.weights.skip)
	for i, a := range batch {
		if i == len(b.frames) {
			b.frames = append(b.frames, newFrame(b.im, b.receives))
		}
		var before *Args
		if i > 0 {
			before = &batch[i-1]
		}
		if err := b.fillInputs(i, a, before, weights, ins); err != nil {
			return err
		}
		if err := b.fillDevice(b.frames[i], a); err != nil {
			return err
		}
		if err := b.frames[i].expect(a, shared); err != nil {
			return err
		}
	}
	return nil
}

// fillInputs prepares the input blocks of run i of a batch, except blocks that are on the devices. If the previous run
// has the same tensor, fillInputs reuses its blocks.
func (b *binder) fillInputs(i int, a Args, before *Args, weights *Weights, ins []int) error {
	f := b.frames[i]
	for _, k := range ins {
		io := &b.im.Inputs[k]
		n := b.im.FirstBlock[io.Name]
		t, local := a.host(io.Name, weights), a.InLocal[io.Name]
		for j := range io.Parts {
			if b.weights.skip[n] || t == nil && local == nil || !b.im.World.Local(int(io.Parts[j].Ref.Rank)) {
				f.in[n], f.spare[n] = nil, nil
			} else if local != nil {
				f.in[n], f.spare[n] = local[int(io.Parts[j].Ref.Rank)].Data, nil
			} else if before != nil && before.host(io.Name, weights) == t {
				f.in[n] = b.frames[i-1].in[n]
			} else {
				var err error
				if f.in[n], f.spare[n], err = blocks.Cut(t, &io.Parts[j], f.spare[n]); err != nil {
					return fmt.Errorf("input %s: %w", io.Name, err)
				}
			}
			n++
		}
	}
	return nil
}

// fillDevice prepares the views of the device tensors that a run copies blocks from and to.
func (b *binder) fillDevice(f *frame, a Args) (err error) {
	if f.deviceIn, err = b.borrowAll(b.inputs, len(f.in), a.DeviceIn, true); err != nil {
		return err
	}
	if f.deviceIn, err = b.addressed(f.deviceIn, b.im.Inputs, a.InAt, true); err != nil {
		return err
	}
	if f.deviceOut, err = b.borrowAll(b.outputs, len(f.get), a.DeviceOut, false); err != nil {
		return err
	}
	f.deviceOut, err = b.addressed(f.deviceOut, b.im.Outputs, a.OutAt, false)
	return err
}

// ioBlocks is an input or output of the plan together with the index of its first block.
type ioBlocks struct {
	*plan.IO
	first int
}

// byName returns a map from names to inputs or outputs.
func byName(ios []plan.IO) map[string]ioBlocks {
	all, first := map[string]ioBlocks{}, 0
	for i := range ios {
		all[ios[i].Name] = ioBlocks{&ios[i], first}
		first += len(ios[i].Parts)
	}
	return all
}

// borrowAll returns views of device tensors, one for each of n blocks. If from is set, blocks are copied from these
// views, otherwise to them. borrowAll returns nil if no block is in a device tensor.
func (b *binder) borrowAll(
	ios map[string]ioBlocks, n int, tensors map[string]*resident.DeviceTensor, from bool,
) ([]device.View, error) {
	for _, t := range tensors {
		if err := t.Lost(); err != nil {
			return nil, t.Errorf("%w", err)
		}
	}
	var views []device.View
	for name, t := range tensors {
		io := ios[name]
		if b.im.WorksIn(name, t) {
			continue
		}
		if views == nil {
			views = make([]device.View, n)
		}
		for k, part := range io.Parts {
			if !b.im.World.Local(int(part.Ref.Rank)) {
				continue
			}
			v, err := b.borrowBlock(t, k, part.Ref, from)
			if err != nil {
				return nil, t.Errorf("%w", err)
			}
			views[io.first+k] = v
		}
	}
	return views, nil
}

// borrowBlock returns a view of block k of t, for copies from the block to ref (if from is set) or from ref to the
// block.
func (b *binder) borrowBlock(t *resident.DeviceTensor, k int, ref plan.Ref, from bool) (device.View, error) {
	d := b.im.World.Device(int(ref.Rank))
	mem, err := d.Borrow(t.Block(int(ref.Rank)))
	if err != nil {
		return device.View{}, err
	}
	v := t.BlockView(k, mem)
	if ref.Dense() {
		return v, nil
	}
	return v, b.prepareCopy(ref, v, from)
}

// prepareCopy prepares a copy from v to the plan's position ref (if from is set) or from ref to v.
func (b *binder) prepareCopy(ref plan.Ref, v device.View, from bool) error {
	dst, src := b.im.View(ref), v
	if !from {
		dst, src = src, dst
	}
	return b.im.World.Device(int(ref.Rank)).PrepareCopy(dst, src)
}

// hostUploads returns an error if the prepared run would upload one of the inputs in ins from host memory. The error
// names the input.
func (b *binder) hostUploads(ins []int) error {
	f := b.frames[0]
	for _, i := range ins {
		first := b.im.FirstBlock[b.im.Inputs[i].Name]
		for n := range b.im.Inputs[i].Parts {
			if f.in[first+n] != nil && !b.weights.skip[first+n] {
				return fmt.Errorf("%w: %%%s is in host memory, but an enqueued run cannot wait for uploads: "+
					"pass the address of device memory, or bind a device tensor",
					blocks.ErrInput, b.im.Inputs[i].Name)
			}
		}
	}
	return nil
}

// addressed replaces views of blocks: if the map at has an address for a block, the new view is at that address. It
// returns views.
func (b *binder) addressed(
	views []device.View, ios []plan.IO, at map[string]map[int]uintptr, from bool,
) ([]device.View, error) {
	if len(at) == 0 {
		return views, nil
	}
	if views == nil {
		views = make([]device.View, blocksOf(ios))
	}
	n := 0
	for i := range ios {
		for k := range ios[i].Parts {
			ref := ios[i].Parts[k].Ref
			if address := at[ios[i].Name][int(ref.Rank)]; address != 0 && b.im.World.Local(int(ref.Rank)) {
				mem, err := b.enqueued.callers.At(int(ref.Rank), address, ref.Bytes())
				if err != nil {
					return nil, addressError(ios[i].Name, err)
				}
				v := device.Dense(mem, ios[i].DType, ref.Shape)
				if !ref.Dense() {
					err = b.prepareCopy(ref, v, from)
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", ios[i].Name, err)
				}
				views[n] = v
			}
			n++
		}
	}
	return views, nil
}

// addressError wraps an error about the address of an input or output.
func addressError(name string, err error) error {
	if errors.Is(err, device.ErrAddress) {
		return fmt.Errorf("%w: %s: %w", blocks.ErrInput, name, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}
