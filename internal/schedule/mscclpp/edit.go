package mscclpp

import (
	"slices"

	"hocket.example/hocket/internal/schedule"
)

// list returns the list of operations that a place is in, and its index there; nil where there is no such place.
func (f *File) list(at schedule.Place) (*[]Op, int) {
	if at.Rank < 0 || at.Rank >= len(f.GPUs) || at.Block < 0 || at.Block >= len(f.GPUs[at.Rank].Threadblocks) {
		return nil, 0
	}
	ops := &f.GPUs[at.Rank].Threadblocks[at.Block].Ops
	i := at.Index
	if at.Inner > 0 {
		if i < 0 || i >= len(*ops) {
			return nil, 0
		}
		ops, i = &(*ops)[i].Ops, at.Inner-1
	}
	if i < 0 || i > len(*ops) {
		return nil, 0
	}
	return ops, i
}

// Delete returns a copy of f without the operation at a place; nil where there is none.
func (f *File) Delete(at schedule.Place) *File {
	out := f.Clone()
	ops, i := out.list(at)
	if ops == nil || i >= len(*ops) {
		return nil
	}
	*ops = slices.Delete(*ops, i, i+1)
	return out
}

// Insert returns a copy of f with an operation more, before the one at a place; nil where there is no such place.
func (f *File) Insert(at schedule.Place, o Op) *File {
	out := f.Clone()
	ops, i := out.list(at)
	if ops == nil {
		return nil
	}
	*ops = slices.Insert(*ops, i, o)
	return out
}
