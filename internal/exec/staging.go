package exec

import (
	"hocket.example/hocket/internal/exec/image"
	"hocket.example/hocket/internal/plan"
)

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

// copied tells which blocks of inputs and outputs are copied from or to the host in some
// of the runs.
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
