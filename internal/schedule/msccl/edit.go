package msccl

import (
	"fmt"
	"iter"
	"slices"

	"hocket.example/hocket/internal/schedule"
)

// Syncs lists the places of the steps that wait for a step of another block.
func (f *File) Syncs() []schedule.Place {
	var out []schedule.Place
	for r := range f.GPUs {
		for t := range f.GPUs[r].TBs {
			for i, s := range f.GPUs[r].TBs[t].Steps {
				if s.DepID >= 0 {
					out = append(out, schedule.Place{Rank: r, Block: t, Index: i, Name: s.Type})
				}
			}
		}
	}
	return out
}

// Without returns a copy of f in which the step at a place has no dependence. It returns nil if the step has no
// dependence in f.
func (f *File) Without(at schedule.Place) schedule.File {
	out := f.Clone()
	s := out.Step(at)
	if s == nil {
		return nil
	}
	s.DepID, s.Dep = -1, -1
	return out
}

// depending returns a copy of f in which the step at a place waits for another step of its rank. If the step already
// has a dependence, a nop with the new dependence is inserted.
func (f *File) depending(at, on schedule.Place) *File {
	out := f.Clone()
	s, first := out.Step(at), out.Step(on)
	if s == nil || first == nil || first.Type == "nop" {
		return nil
	}
	first.HasDep = 1
	if s.DepID < 0 {
		s.DepID, s.Dep = on.Block, on.Index
		return out
	}
	g := &out.GPUs[at.Rank]
	tb := &g.TBs[at.Block]
	tb.Steps = slices.Insert(tb.Steps, at.Index, Step{Type: "nop", SrcBuf: "i", SrcOff: -1, DstBuf: "o", DstOff: -1,
		DepID: on.Block, Dep: on.Index})
	for i := range tb.Steps {
		tb.Steps[i].S = i
	}
	for t := range g.TBs {
		for i := range g.TBs[t].Steps {
			if s := &g.TBs[t].Steps[i]; s.DepID == at.Block && s.Dep >= at.Index {
				s.Dep++
			}
		}
	}
	return out
}

// Repairs proposes edited copies of the algorithm, each with one additional dependence between steps. The first
// proposals of a repair add a dependence to a step of the finding. The next proposals add a dependence to any step of a
// block of the finding. The last proposals set hasdep on a step for which another step waits, so that it signals its
// progress.
func (f *File) Repairs(refuted *schedule.Report) iter.Seq[schedule.Repair] {
	return func(yield func(schedule.Repair) bool) {
		propose := func(at, on schedule.Place) bool {
			out := f.depending(at, on)
			return out == nil || yield(schedule.Repair{File: out, Text: fmt.Sprintf(
				"rank %d, tb %d, op %d waits for tb %d, op %d", at.Rank, at.Block, at.Index, on.Block, on.Index)})
		}
		if p := refuted.Findings[0].Places; len(p) == 2 && p[0].Rank == p[1].Rank && p[0].Block != p[1].Block {
			if !propose(p[0], p[1]) || !propose(p[1], p[0]) {
				return
			}
			for _, order := range [][2]int{{0, 1}, {1, 0}} {
				at, on := p[order[0]], p[order[1]]
				for i := at.Index; i >= 0; i-- {
					for j := on.Index; j < len(f.GPUs[on.Rank].TBs[on.Block].Steps); j++ {
						at.Index, on.Index = i, j
						if !propose(at, on) {
							return
						}
					}
				}
			}
		}
		for r := range f.GPUs {
			for t := range f.GPUs[r].TBs {
				for i, s := range f.GPUs[r].TBs[t].Steps {
					if s.HasDep == 1 {
						continue
					}
					out := f.Clone()
					out.Step(schedule.Place{Rank: r, Block: t, Index: i}).HasDep = 1
					if !yield(schedule.Repair{File: out,
						Text: fmt.Sprintf("rank %d, tb %d, op %d reports (hasdep)", r, t, i)}) {
						return
					}
				}
			}
		}
	}
}
