package exec

import (
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/exec/blocks"
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/internal/tensor"
)

// frame holds the host memory of one run in flight: the blocks to upload and to download. Frames are reused.
type frame struct {
	in    [][]byte           // by input block: the bytes to upload; nil for no upload
	spare []*tensor.Tensor   // by input block: separate memory, if the block needs it
	out   []*blocks.Receiver // by output
	get   [][]byte           // by output block: the memory to download to; nil for no download
	uses  []int32            // the adversary's counts of remaining uses for the run
	// deviceIn and deviceOut hold, by block, views of device memory that the run copies from and to, instead of host
	// memory; nil if there are none.
	deviceIn, deviceOut []device.View
	// moved holds the relocated commands that the run issues if some of its blocks are not in the arena; nil if all
	// blocks are in the arena.
	moved *image.Relocation
	graph device.Graph // the graph that replays runs with the commands in moved
	lent  []bool       // by output block: whether the block remains in the arena; nil if none does
}

// newFrame returns a frame. receives reports the ranks whose output blocks this process receives.
func newFrame(im *image.Image, receives func(rank int) bool) *frame {
	f := &frame{in: make([][]byte, blocksOf(im.Inputs)), spare: make([]*tensor.Tensor, blocksOf(im.Inputs)),
		get: make([][]byte, blocksOf(im.Outputs))}
	for i := range im.Outputs {
		f.out = append(f.out, blocks.NewReceiver(&im.Outputs[i], receives))
	}
	return f
}

// forget drops the references to the caller's memory.
func (f *frame) forget() {
	clear(f.in)
	f.deviceIn, f.deviceOut, f.moved, f.graph, f.lent = nil, nil, nil, nil, nil
	clear(f.get)
	for _, r := range f.out {
		r.Forget()
	}
}

// expect prepares the memory for the outputs that the host receives. Outputs are received directly into the caller's
// tensors, unless other operations may still read these.
func (f *frame) expect(a Args, shared map[*tensor.Tensor]bool) error {
	b := 0
	for _, r := range f.out {
		name := r.IO().Name
		if a.DeviceOut[name] != nil || a.Enqueued { // remains on the devices
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

// outputs assembles the global outputs of a run that has ended.
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

// local returns the output blocks of the ranks for which own returns true.
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

// blocksOf returns the number of blocks of inputs or outputs.
func blocksOf(ios []plan.IO) (n int) {
	for i := range ios {
		n += len(ios[i].Parts)
	}
	return n
}

// staging describes the transfers for which a world has reserved buffers: the number of runs, and the blocks that each
// of these runs transfers.
type staging struct {
	im     *image.Image
	runs   int
	blocks []bool // by block, inputs before outputs: whether the block is transferred
}

// reserve makes the world allocate buffers for the transfers of the runs, unless the world already has these buffers.
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

// covers reports whether there are buffers for k runs that transfer the given blocks.
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

// copied returns, for each block of the inputs and outputs, whether some run copies it from or to the host.
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
