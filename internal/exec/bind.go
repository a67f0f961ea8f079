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

// binder binds arguments to runs: it checks them, and lays ready in frames what runs copy from and to.
type binder struct {
	im        *image.Image
	signature signature
	weights   *weightCache
	enqueued  *enqueued // knows what addresses of the caller's are
	gathers   bool      // this process receives the output blocks of all ranks
	inputs    map[string]ioBlocks
	outputs   map[string]ioBlocks
	frames    []*frame
	spoils    bool // the batch's runs update what they are given in the host's memory
	// kept is the batch that the frames are laid ready for, and stay so; the zero value for none.
	kept weak.Pointer[Batch]
}

// keptFrames bounds the frames that outlive a batch.
const keptFrames = 4

func newBinder(im *image.Image, weights *weightCache, enqueued *enqueued) *binder {
	return &binder{im: im, signature: signature{im}, weights: weights, enqueued: enqueued, inputs: byName(im.Inputs),
		outputs: byName(im.Outputs)}
}

// comes reports whether this process receives the output blocks of a rank.
func (b *binder) comes(rank int) bool { return b.gathers || b.im.World.Local(rank) }

// keep keeps the frames as they are for the next time that a batch runs, if it copies nothing from or to the host.
func (b *binder) keep(batch *Batch) {
	if n := len(batch.Runs); n <= keptFrames && !slices.Contains(copied(b.frames[:n]), true) {
		b.kept = weak.Make(batch)
	}
}

// keeps reports whether the frames are laid ready for a batch.
func (b *binder) keeps(batch *Batch) bool { return b.kept == weak.Make(batch) && batch.ready() }

// trim lets go of surplus frames, and of others' memory, unless the frames are kept.
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

// bind checks the inputs of all runs and lays their blocks ready.
// They look at some inputs only, if the others are as they were.
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
			b.frames = append(b.frames, newFrame(b.im, b.comes))
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

// fillInputs prepares the input blocks of run i of a batch, except those on the devices. It shares blocks with the run
// before if that has the same tensor.
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

// fillDevice lays the views ready that a run's tensors on the devices are copied from and to.
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

// ioBlocks is an input or output, and the number of its first block.
type ioBlocks struct {
	*plan.IO
	first int
}

// byName lists inputs or outputs.
func byName(ios []plan.IO) map[string]ioBlocks {
	all, first := map[string]ioBlocks{}, 0
	for i := range ios {
		all[ios[i].Name] = ioBlocks{&ios[i], first}
		first += len(ios[i].Parts)
	}
	return all
}

// borrowAll returns views of device tensors, for each of n blocks, that are copied from or else to; nil
// where there are none.
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

// borrowBlock returns a view of block k of t, for copies from it to ref, or to it from ref.
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

// prepareCopy makes a copy ready from v to what a plan places at ref, or back.
func (b *binder) prepareCopy(ref plan.Ref, v device.View, from bool) error {
	dst, src := b.im.View(ref), v
	if !from {
		dst, src = src, dst
	}
	return b.im.World.Device(int(ref.Rank)).PrepareCopy(dst, src)
}

// hostUploads names what the run laid ready would upload, of some inputs.
func (b *binder) hostUploads(ins []int) error {
	f := b.frames[0]
	for _, i := range ins {
		first := b.im.FirstBlock[b.im.Inputs[i].Name]
		for n := range b.im.Inputs[i].Parts {
			if f.in[first+n] != nil && !b.weights.skip[first+n] {
				return fmt.Errorf("%w: %%%s would be uploaded, for which an enqueued run cannot wait: "+
					"give its address, or bind a device tensor",
					blocks.ErrInput, b.im.Inputs[i].Name)
			}
		}
	}
	return nil
}

// addressed returns views at the caller's addresses, for inputs or outputs that views has in the arena.
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

// addressError is one about an input or output.
func addressError(name string, err error) error {
	if errors.Is(err, device.ErrAddress) {
		return fmt.Errorf("%w: %s: %w", blocks.ErrInput, name, err)
	}
	return fmt.Errorf("%s: %w", name, err)
}
