package coll

import (
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/device/cuda/strided"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// copyAlgorithm copies blocks into the other members' results with copy engines. Two kernels of one thread block
// enclose the copies. The first waits until all results may be written, the second waits until all results are written.
// Each member issues its copies to the other members on its own stream, which was faster than on other streams. The
// block that stays with the member is copied concurrently on another stream.
type copyAlgorithm struct{}

// RoutedAlgorithms lists the algorithms that transfer some of the data by copy engines or through host memory, instead
// of by kernels over the links between GPUs.
var RoutedAlgorithms = []Entry{
	{Info{Name: "move-copy", Ops: device.Moves, Memory: device.MemoryFlags, CopyEngines: true, Takes: "collectives that only move data",
		How: "copy engines write into the peers' outputs, between two kernels of one thread block that synchronize the ranks: the copies use no SMs"},
		copyAlgorithm{}},
	{Info{Name: "move-host", Ops: []ir.Op{ir.OpAllGather, ir.OpAllToAll}, HostLink: true,
		Takes: "all_gather, all_to_all; contiguous blocks of 4 MiB or more",
		How:   "as move-push, but a part of each block goes through host memory; once if all members get it"},
		HostMove{}},
}

// Supports returns an error if copy engines cannot run c.
func (a copyAlgorithm) Supports(t Team, tune device.Tuning, c *Collective) error {
	if c.Empty() {
		return nil
	}
	_, err := a.plan(t, tune, c)
	return err
}

func (copyAlgorithm) plan(t Team, tune device.Tuning, c *Collective) (*MovePlan, error) {
	if tune.Blocks|tune.Threads|tune.Unroll != 0 {
		return nil, fmt.Errorf("%w: copy engines are not tuned", device.ErrUnsupported)
	}
	return enginePlan(t, tune, c)
}

// enginePlan plans c as copies in which copy engines store blocks into the receivers' results. It returns an error if
// copy engines cannot make these stores, because an input would have to be copied first or because the rows of blocks
// are unsuitable.
func enginePlan(t Team, tune device.Tuning, c *Collective) (*MovePlan, error) {
	p, err := MoveAlgorithm{kernels.MovePush, noMove}.plan(t, tune, c)
	switch {
	case err != nil:
		return nil, err
	case p.stage > 0:
		return nil, fmt.Errorf("%w: a result overlaps an operand", device.ErrUnsupported)
	case len(p.Moves) < 2:
		return nil, fmt.Errorf("%w: %d members", device.ErrUnsupported, len(p.Moves))
	}
	for i := range p.Moves {
		m := &p.Moves[i]
		if len(m.Extents) > 1 || len(m.Extents) == 1 && m.Run < strided.WideRow {
			return nil, fmt.Errorf("%w: blocks are rows of %d contiguous bytes in the shape %v, which a copy cannot have", device.ErrUnsupported, m.Run, m.Extents)
		}
		for q := range m.Members {
			if max(m.SrcStrides[q][0], m.DstStrides[q][0]) >= 1<<31 {
				return nil, fmt.Errorf("%w: rows 2 GiB apart", device.ErrUnsupported)
			}
		}
	}
	return p, nil
}

// Plan makes each member copy its blocks between two kernels that synchronize all members.
func (a copyAlgorithm) Plan(t Team, tune device.Tuning, c *Collective) (*Plan, error) {
	m, err := a.plan(t, tune, c)
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	flags := p.moveFlags()
	p.Launches = func() ([][]Action, error) {
		list := make([][]Action, len(m.Moves))
		for i := range m.Moves {
			meet := kernels.Move{Kind: kernels.MoveMeet, Members: len(m.Moves), Me: i, Run: 1, Blocks: 1, Threads: 32, Unroll: 1}
			var around [2]Action
			for k := range around {
				if around[k], err = moveKernel(t, &meet, *flags, Area{}); err != nil {
					return nil, err
				}
			}
			list[i] = []Action{around[0], enginePushes(&m.Moves[i]), around[1]}
		}
		return list, nil
	}
	return p, nil
}

// enginePushes returns the copies of a member's blocks. Copies to other members run on the member's own stream. The
// member's own block is copied on another stream.
func enginePushes(share *kernels.Move) Copies {
	var far, near []nvlib.Rect
	for k := 1; k <= share.Members; k++ {
		q := (share.Me + k) % share.Members // each member begins with a different receiver
		r := nvlib.Rect{Dst: share.Dst[q], Src: share.Src[q], Width: share.Run, Height: 1}
		if len(share.Extents) == 1 {
			r.Height, r.DstPitch, r.SrcPitch = share.Extents[0], share.DstStrides[q][0], share.SrcStrides[q][0]
		}
		switch {
		case q == share.Me && share.Own:
			near = append(near, r)
		case share.To>>q&1 != 0:
			far = append(far, r)
		}
	}
	lists := slices.DeleteFunc([][]nvlib.Rect{far, near}, func(l []nvlib.Rect) bool { return len(l) == 0 })
	if len(lists) == 0 {
		return Copies{}
	}
	return Copies{Own: lists[0], Beside: lists[1:]}
}
