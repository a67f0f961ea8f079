package exec

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// frame is the host memory of one run in flight: what is uploaded and what is
// read back, block by block. Frames are kept and used again.
type frame struct {
	in   [][]byte         // by input block: the bytes to upload; nil for none
	held []*tensor.Tensor // by input block: storage of its own, where it needs some
	out  []reception      // by output
	get  [][]byte         // by output block: the bytes to download to; nil for none
	uses []int32          // see adversary
	// direct is what is copied on the devices instead, by block; nil for nothing.
	direct struct{ in, out []device.View }
}

// ioKey names one rank's block of an input or output.
type ioKey struct{ io, rank int32 }

// blockIndex numbers the blocks of inputs and of outputs, in plan order.
type blockIndex struct{ in, out map[ioKey]int }

func indexBlocks(ios []plan.IO) map[ioKey]int {
	m := map[ioKey]int{}
	for i := range ios {
		for k := range ios[i].Parts {
			m[ioKey{int32(i), ios[i].Parts[k].Ref.Rank}] = len(m)
		}
	}
	return m
}

// held returns ios without the entries of ranks that hold no block.
func held(ios []plan.IO) []plan.IO {
	kept := slices.Clone(ios)
	for i := range kept {
		kept[i].Parts = slices.DeleteFunc(slices.Clone(kept[i].Parts), func(part plan.IOPart) bool { return !part.Ref.Present() })
	}
	return kept
}

// partOf returns the block of io that rank holds, or nil.
func partOf(io *plan.IO, rank int32) *plan.IOPart {
	for k := range io.Parts {
		if io.Parts[k].Ref.Rank == rank {
			return &io.Parts[k]
		}
	}
	return nil
}

// fillFrames checks the inputs of all runs and lays their blocks ready.
func (p *Program) fillFrames(batch []map[string]*tensor.Tensor, direct []Direct, weights map[string]*tensor.Tensor) error {
	if err := p.checkBatch(batch, direct); err != nil {
		return err
	}
	p.rest(batch, weights)
	var shared map[*tensor.Tensor]bool
	shared, p.spoils = p.sharedInto(batch, direct)
	for i, inputs := range batch {
		if i == len(p.frames) {
			p.frames = append(p.frames, p.newFrame())
		}
		var before map[string]*tensor.Tensor
		if i > 0 {
			before = batch[i-1]
		}
		if err := p.fill(i, inputs, before); err != nil {
			return err
		}
		d := directOf(direct, i)
		if err := p.fillDirect(p.frames[i], d); err != nil {
			return err
		}
		if err := p.aim(p.frames[i], d, shared); err != nil {
			return err
		}
	}
	return nil
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
	w, ok := p.world.(device.Stager)
	if !ok {
		return nil
	}
	blocks := p.copied(p.frames[:k])
	if p.staged.covers(k, blocks) {
		return nil
	}
	p.staged = staged{k, blocks}
	sizes, b := make([]int64, len(blocks)), 0
	for _, ios := range [][]plan.IO{p.inputs, p.outputs} {
		for i := range ios {
			for _, part := range ios[i].Parts {
				if blocks[b] {
					sizes[b] = part.Ref.Bytes()
				}
				b++
			}
		}
	}
	return w.Stage(sizes, k)
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

// keptFrames bounds the frames that outlive a batch.
const keptFrames = 4

func (p *Program) trimFrames() {
	if len(p.frames) > keptFrames {
		clear(p.frames[keptFrames:])
		p.frames = p.frames[:keptFrames]
	}
	for _, f := range p.frames { // others' memory
		clear(f.in)
		f.direct.in, f.direct.out = nil, nil
		clear(f.get)
		for i := range f.out {
			f.out[i].forget()
		}
	}
}

// wrongInput says what is wrong with an input, if anything is.
func wrongInput(io *plan.IO, t *tensor.Tensor) []string {
	switch {
	case t == nil:
		return []string{fmt.Sprintf("%s is missing", io.Name)}
	case t.Check() != nil:
		return []string{fmt.Sprintf("%s: %v", io.Name, t.Check())}
	case t.DType != io.DType || !slices.Equal(t.Shape, io.Shape):
		want := &tensor.Tensor{DType: io.DType, Shape: io.Shape}
		return []string{fmt.Sprintf("%s is %s, want %s", io.Name, t, want)}
	}
	return nil
}

func inputError(wrong []string) error {
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrInput, strings.Join(wrong, "; "))
}

func (p *Program) newFrame() *frame {
	ins, outs := 0, 0
	for i := range p.inputs {
		ins += len(p.inputs[i].Parts)
	}
	f := &frame{in: make([][]byte, ins), held: make([]*tensor.Tensor, ins)}
	for i := range p.outputs {
		f.out = append(f.out, newReception(&p.outputs[i]))
		outs += len(p.outputs[i].Parts)
	}
	f.get = make([][]byte, outs)
	return f
}

// fill lays the blocks of inputs of run i of a batch ready, but for what is on the devices. A
// tensor that the run before was given too shares its blocks.
func (p *Program) fill(i int, inputs, before map[string]*tensor.Tensor) error {
	f, b := p.frames[i], 0
	for k := range p.inputs {
		io := &p.inputs[k]
		t := inputs[io.Name]
		for j := range io.Parts {
			if p.lasting.rests[b] || t == nil {
				f.in[b], f.held[b] = nil, nil
			} else if before[io.Name] == t {
				f.in[b] = p.frames[i-1].in[b]
			} else if err := f.cut(b, t, &io.Parts[j]); err != nil {
				return fmt.Errorf("input %s: %w", io.Name, err)
			}
			b++
		}
	}
	return nil
}

// cut makes block b out of part of t: the caller's bytes where they lie together, else a
// copy.
func (f *frame) cut(b int, t *tensor.Tensor, part *plan.IOPart) error {
	if own := tensor.Window(t, part.Lo, part.Ref.Shape); own != nil {
		f.in[b] = own
		return nil
	}
	if f.held[b] == nil {
		var err error
		if f.held[b], err = tensor.New(t.DType, part.Ref.Shape); err != nil {
			return err
		}
	}
	f.in[b] = f.held[b].Data
	return tensor.CopyBox(f.held[b], make([]int64, len(part.Lo)), t, part.Lo, part.Ref.Shape)
}
