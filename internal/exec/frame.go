package exec

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// frame is the host memory of one run in flight: the blocks to upload and to read back. Frames are reused.
type frame struct {
	in    [][]byte           // by input block: the bytes to upload; nil for none
	spare []*tensor.Tensor   // by input block: storage of its own, where it needs some
	out   []*blocks.Receiver // by output
	get   [][]byte           // by output block: the bytes to download to; nil for none
	uses  []int32            // what the adversary counts
	// deviceIn and deviceOut are copies on the devices instead, by block; nil if there are none.
	deviceIn, deviceOut []device.View
	// moved is the relocated commands that the run issues if some of its blocks are not in the arena; else nil.
	moved *image.Relocation
	graph device.Graph // what a run with moved is replayed by
	lent  []bool       // by output block: it stays in place; nil if none does
}

// newFrame makes a frame. comes says from which ranks this process receives output blocks.
func newFrame(im *image.Image, comes func(rank int) bool) *frame {
	f := &frame{in: make([][]byte, blocksOf(im.Inputs)), spare: make([]*tensor.Tensor, blocksOf(im.Inputs)),
		get: make([][]byte, blocksOf(im.Outputs))}
	for i := range im.Outputs {
		f.out = append(f.out, blocks.NewReceiver(&im.Outputs[i], comes))
	}
	return f
}

// forget lets go of others' memory.
func (f *frame) forget() {
	clear(f.in)
	f.deviceIn, f.deviceOut, f.moved, f.graph, f.lent = nil, nil, nil, nil, nil
	clear(f.get)
	for _, r := range f.out {
		r.Forget()
	}
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

// local are the output blocks of ranks that own holds of.
func (f *frame) local(own func(rank int) bool) map[string]map[int]*tensor.Tensor {
	all := map[string]map[int]*tensor.Tensor{}
	for _, r := range f.out {
		for k, part := range r.IO().Parts {
			if t := r.Part(k); t != nil && own(int(part.Ref.Rank)) {
				if all[r.IO().Name] == nil {
					all[r.IO().Name] = map[int]*tensor.Tensor{}
				}
				all[r.IO().Name][int(part.Ref.Rank)] = t
			}
		}
	}
	return all
}

// blocksOf counts the blocks of inputs or outputs.
func blocksOf(ios []plan.IO) (n int) {
	for i := range ios {
		n += len(ios[i].Parts)
	}
	return n
}

// staging is what a world has buffers for: so many runs, of these transfers.
type staging struct {
	im     *image.Image
	runs   int
	blocks []bool // of inputs, then outputs
}

// reserve has the world ready for the transfers of some runs, if it was not yet.
func (s *staging) reserve(frames []*frame) error {
	blocks := copied(frames)
	if s.covers(len(frames), blocks) {
		return nil
	}
	s.runs, s.blocks = len(frames), blocks
	sizes, b := make([]int64, len(blocks)), 0
	for _, ios := range [][]plan.IO{s.im.Inputs, s.im.Outputs} {
		for i := range ios {
			for _, part := range ios[i].Parts {
				if blocks[b] {
					sizes[b] = part.Ref.Bytes()
				}
				b++
			}
		}
	}
	return s.im.World.Stage(sizes, len(frames))
}

// covers reports whether k runs of such transfers have buffers.
func (s *staging) covers(k int, blocks []bool) bool {
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

// copied returns which blocks of inputs and outputs some of the runs copy from or to the host.
func copied(frames []*frame) []bool {
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
