package exec

import (
	"fmt"
	"maps"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/resident"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// frame is the host memory of one run in flight: what is uploaded and what is
// read back, block by block. Frames are kept and used again.
type frame struct {
	in    [][]byte           // by input block: the bytes to upload; nil for none
	spare []*tensor.Tensor   // by input block: storage of its own, where it needs some
	out   []*blocks.Receiver // by output
	get   [][]byte           // by output block: the bytes to download to; nil for none
	uses  []int32            // see adversary
	// deviceIn and deviceOut are what is copied on the devices instead, by block; nil where
	// that is nothing.
	deviceIn, deviceOut []device.View
}

// keptFrames bounds the frames that outlive a batch.
const keptFrames = 4

func (p *Program) newFrame() *frame {
	f := &frame{in: make([][]byte, blocksOf(p.im.Inputs)), spare: make([]*tensor.Tensor, blocksOf(p.im.Inputs)),
		get: make([][]byte, blocksOf(p.im.Outputs))}
	for i := range p.im.Outputs {
		f.out = append(f.out, blocks.NewReceiver(&p.im.Outputs[i], p.comes))
	}
	return f
}

// blocksOf counts the blocks of inputs or outputs.
func blocksOf(ios []plan.IO) (n int) {
	for i := range ios {
		n += len(ios[i].Parts)
	}
	return n
}

// trimFrames lets go of surplus frames, and of others' memory.
func (p *Program) trimFrames() {
	if len(p.frames) > keptFrames {
		clear(p.frames[keptFrames:])
		p.frames = p.frames[:keptFrames]
	}
	for _, f := range p.frames {
		clear(f.in)
		f.deviceIn, f.deviceOut = nil, nil
		clear(f.get)
		for _, r := range f.out {
			r.Forget()
		}
	}
}

// fillFrames checks the inputs of all runs and lays their blocks ready.
// They look at some inputs only, if the others are as they were.
func (p *Program) fillFrames(batch []Args, weights *Weights, ins []int) error {
	if err := p.checkBatch(batch, weights, ins); err != nil {
		return err
	}
	p.decideUploads(batch, weights, ins)
	var shared map[*tensor.Tensor]bool
	shared, p.spoils = p.sharedInto(batch, weights, ins)
	for i, a := range batch {
		if i == len(p.frames) {
			p.frames = append(p.frames, p.newFrame())
		}
		var before *Args
		if i > 0 {
			before = &batch[i-1]
		}
		if err := p.fillInputs(i, a, before, weights, ins); err != nil {
			return err
		}
		if err := p.fillDevice(p.frames[i], a); err != nil {
			return err
		}
		if err := p.frames[i].expect(a, shared); err != nil {
			return err
		}
	}
	return nil
}

// fillInputs lays the blocks of inputs of run i of a batch ready, but for what is on the
// devices. A tensor that the run before was given too shares its blocks.
func (p *Program) fillInputs(i int, a Args, before *Args, weights *Weights, ins []int) error {
	f := p.frames[i]
	for _, k := range ins {
		io := &p.im.Inputs[k]
		b := p.im.FirstBlock[io.Name]
		t, local := a.host(io.Name, weights), a.InLocal[io.Name]
		for j := range io.Parts {
			if p.uploaded.skip[b] || t == nil && local == nil || !p.local(io.Parts[j].Ref.Rank) {
				f.in[b], f.spare[b] = nil, nil
			} else if local != nil {
				f.in[b], f.spare[b] = local[int(io.Parts[j].Ref.Rank)].Data, nil
			} else if before != nil && before.host(io.Name, weights) == t {
				f.in[b] = p.frames[i-1].in[b]
			} else {
				var err error
				if f.in[b], f.spare[b], err = blocks.Cut(t, &io.Parts[j], f.spare[b]); err != nil {
					return fmt.Errorf("input %s: %w", io.Name, err)
				}
			}
			b++
		}
	}
	return nil
}

// fillDevice lays the views ready that a run's tensors on the devices are copied from and to.
func (p *Program) fillDevice(f *frame, a Args) (err error) {
	if f.deviceIn, err = p.borrowAll(p.inputs, len(f.in), a.DeviceIn, true); err != nil {
		return err
	}
	if f.deviceIn, err = p.addressed(f.deviceIn, p.im.Inputs, a.InAt, true); err != nil {
		return err
	}
	if f.deviceOut, err = p.borrowAll(p.outputs, len(f.get), a.DeviceOut, false); err != nil {
		return err
	}
	f.deviceOut, err = p.addressed(f.deviceOut, p.im.Outputs, a.OutAt, false)
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
func (p *Program) borrowAll(
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
		if p.im.WorksIn(name, t) {
			continue
		}
		if views == nil {
			views = make([]device.View, n)
		}
		for k, part := range io.Parts {
			if !p.local(part.Ref.Rank) {
				continue
			}
			v, err := p.borrowBlock(t, k, part.Ref, from)
			if err != nil {
				return nil, t.Errorf("%w", err)
			}
			views[io.first+k] = v
		}
	}
	return views, nil
}

// borrowBlock returns a view of block k of t, for copies from it to ref, or to it from ref.
func (p *Program) borrowBlock(t *resident.DeviceTensor, k int, ref plan.Ref, from bool) (device.View, error) {
	d := p.im.World.Device(int(ref.Rank))
	mem, err := d.Borrow(t.Block(int(ref.Rank)))
	if err != nil {
		return device.View{}, err
	}
	v := t.BlockView(k, mem)
	if ref.Dense() {
		return v, nil
	}
	return v, p.prepareCopy(ref, v, from)
}

// prepareCopy makes a copy ready from v to what a plan places at ref, or back.
func (p *Program) prepareCopy(ref plan.Ref, v device.View, from bool) error {
	dst, src := p.im.View(ref), v
	if !from {
		dst, src = src, dst
	}
	return p.im.World.Device(int(ref.Rank)).PrepareCopy(dst, src)
}

// expect lays ready what the host receives of a run's outputs, straight in the caller's
// tensors where these are not shared.
func (f *frame) expect(a Args, shared map[*tensor.Tensor]bool) error {
	b := 0
	for _, r := range f.out {
		name := r.IO().Name
		if a.DeviceOut[name] != nil || a.Enqueued { // left on the devices
			r.Skip()
		} else if err := r.Expect(a.Into[name], shared[a.Into[name]]); err != nil {
			return err
		}
		for k := range r.Blocks() {
			f.get[b] = r.Block(k)
			b++
		}
	}
	return nil
}

// outputs joins the global outputs of a run that has ended.
func (f *frame) outputs() (map[string]*tensor.Tensor, error) {
	outs := make(map[string]*tensor.Tensor, len(f.out))
	for _, r := range f.out {
		t, err := r.Finish()
		if err != nil {
			return nil, err
		}
		if t != nil {
			outs[r.IO().Name] = t
		}
	}
	return outs, nil
}

// sharedInto are the tensors to receive outputs that share bytes with another tensor of the
// batch: what is given to a run may be read when outputs of one before it come, and what
// one rank is given when those of another do. Not so where a single run updates in place
// what every rank has a part of its own of: then spoils is set, since what it was given may
// be gone when it fails.
func (p *Program) sharedInto(batch []Args, weights *Weights, ins []int) (shared map[*tensor.Tensor]bool, spoils bool) {
	shared = map[*tensor.Tensor]bool{}
	var into []*tensor.Tensor
	for _, a := range batch {
		into = slices.AppendSeq(into, maps.Values(a.Into))
	}
	if len(into) == 0 {
		return shared, false
	}
	given := map[*tensor.Tensor]bool{}
	for _, a := range batch {
		for _, parts := range a.InLocal {
			for _, t := range parts {
				given[t] = true
			}
		}
		take := func(name string, t *tensor.Tensor) {
			switch b := p.im.FirstBlock[name]; {
			case t == nil:
			case b < len(p.uploaded.skip) && p.uploaded.skip[b]: // it is on the devices before the runs begin
			case len(batch) == 1 && p.updates(name, t, a.Into):
				spoils = true
			default:
				given[t] = true
			}
		}
		for name, t := range a.In {
			take(name, t)
		}
		for _, i := range ins {
			if name := p.im.Inputs[i].Name; a.In[name] == nil {
				take(name, a.host(name, weights))
			}
		}
	}
	for i, meets := range tensor.Overlaps(slices.AppendSeq(slices.Clone(into), maps.Keys(given))) {
		if meets && i < len(into) {
			shared[into[i]] = true
		}
	}
	return shared, spoils
}

// updates reports whether a run may write an output to the very tensor that it is given as
// an input.
func (p *Program) updates(input string, t *tensor.Tensor, into map[string]*tensor.Tensor) bool {
	for output, o := range into {
		if o == t && p.inPlace(input, output) {
			return true
		}
	}
	return false
}

// inPlace reports whether each rank has the same block of an input and of an output, and no
// other rank has it.
func (p *Program) inPlace(input, output string) bool {
	is := func(name string) func(io plan.IO) bool { return func(io plan.IO) bool { return io.Name == name } }
	i, o := slices.IndexFunc(p.im.Inputs, is(input)), slices.IndexFunc(p.im.Outputs, is(output))
	if i < 0 || o < 0 {
		return false
	}
	same := func(a, b plan.IOPart) bool {
		return a.Ref.Rank == b.Ref.Rank && slices.Equal(a.Lo, b.Lo) && slices.Equal(a.Ref.Shape, b.Ref.Shape)
	}
	parts := p.im.Outputs[o].Parts
	for k := range parts {
		if slices.ContainsFunc(parts[:k], func(part plan.IOPart) bool { return slices.Equal(part.Lo, parts[k].Lo) }) {
			return false
		}
	}
	return slices.EqualFunc(p.im.Inputs[i].Parts, parts, same)
}

// staged is what a world has buffers for: so many runs, of these transfers.
type staged struct {
	runs   int
	blocks []bool // of inputs, then outputs
}

// covers reports whether k runs of such transfers have buffers.
func (s *staged) covers(k int, blocks []bool) bool {
	if k > s.runs || len(s.blocks) != len(blocks) {
		return false
	}
	for b, copied := range blocks {
		if copied && !s.blocks[b] {
			return false
		}
	}
	return true
}

// stage has the world ready for the transfers of the first k frames, if it was not yet.
func (p *Program) stage(k int) error {
	blocks := p.copied(p.frames[:k])
	if p.staged.covers(k, blocks) {
		return nil
	}
	p.staged = staged{k, blocks}
	sizes, b := make([]int64, len(blocks)), 0
	for _, ios := range [][]plan.IO{p.im.Inputs, p.im.Outputs} {
		for i := range ios {
			for _, part := range ios[i].Parts {
				if blocks[b] {
					sizes[b] = part.Ref.Bytes()
				}
				b++
			}
		}
	}
	return p.im.World.Stage(sizes, k)
}

// copied tells which blocks of inputs and outputs are copied from or to the host in some
// of the runs.
func (p *Program) copied(frames []*frame) []bool {
	ins := len(frames[0].in)
	blocks := make([]bool, ins+len(frames[0].get))
	for _, f := range frames {
		for b := range f.in {
			blocks[b] = blocks[b] || f.in[b] != nil
		}
		for b := range f.get {
			blocks[ins+b] = blocks[ins+b] || f.get[b] != nil
		}
	}
	return blocks
}

// localBlocks are the blocks of this process's ranks, where there are peers.
func (p *Program) localBlocks(f *frame) map[string]map[int]*tensor.Tensor {
	if p.peers == nil {
		return nil
	}
	all := map[string]map[int]*tensor.Tensor{}
	for _, r := range f.out {
		for k, part := range r.IO().Parts {
			if t := r.Part(k); t != nil && p.local(part.Ref.Rank) {
				if all[r.IO().Name] == nil {
					all[r.IO().Name] = map[int]*tensor.Tensor{}
				}
				all[r.IO().Name][int(part.Ref.Rank)] = t
			}
		}
	}
	return all
}
