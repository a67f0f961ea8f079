package coll

import (
	"cmp"
	"fmt"
	"slices"

	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/kernels"
	"hocket.example/hocket/ir"
)

// MoveAlgorithm runs, as one kernel on each member, the collectives in which members send blocks to each other. It
// also runs those in which the receiver reduces the blocks.
type MoveAlgorithm struct{ move, reduce kernels.MoveKind }

const noMove = kernels.MoveKind(0xff)

// blocksOnly lists the collectives in which members send blocks to each other; blocksAdded lists those of them that
// reduce the blocks.
var (
	blocksOnly  = slices.Concat(device.Moves, blocksAdded)
	blocksAdded = []ir.Op{ir.OpReduceScatter, ir.OpReduce}
)

// MoveAlgorithms lists the algorithms in which kernels send blocks to members.
var MoveAlgorithms = []Entry{
	{Info{Name: "move-ll", Ops: blocksOnly, Takes: "all collectives except all_reduce and the uneven ones; blocks of up to 2 MiB",
		How: "each member writes its blocks into buffers (slots) of the peers; 8 of 16 bytes are flags"},
		MoveAlgorithm{kernels.MoveLL, kernels.ReduceLL}},
	{Info{Name: "move-push", Formerly: []string{"move-mixed"}, Ops: device.Moves, Memory: device.MemoryFlags,
		Takes: "collectives that only move data", How: "each member writes its blocks directly into the peers' outputs"},
		MoveAlgorithm{kernels.MovePush, noMove}},
	{Info{Name: "move-ll128", Ops: blocksOnly, Takes: "all collectives except all_reduce and the uneven ones; contiguous blocks of up to 8 MiB",
		How: "as move-ll, but with one flag for each 128 bytes"},
		MoveAlgorithm{kernels.MoveLL128, kernels.ReduceLL128}},
	{Info{Name: "move-spread", Ops: []ir.Op{ir.OpBroadcast, ir.OpReduce}, Takes: "broadcast and reduce, with three or more members",
		How: "as move-ll128, but each line is sent to one member, which forwards or adds it, so that no link carries data twice"},
		MoveAlgorithm{kernels.MoveSpread, kernels.ReduceSpread}},
	{Info{Name: "move-pull", Formerly: []string{"move-push-sum"}, Ops: blocksAdded, Memory: device.MemoryFlags,
		How: "each member reads its blocks from the peers' inputs"},
		MoveAlgorithm{noMove, kernels.ReducePull}},
	{Info{Name: "move-few", Ops: blocksAdded, Memory: device.MemoryFixed,
		Takes: "reduce_scatter and reduce; contiguous blocks at multiples of 16 bytes",
		How:   "as move-pull, but with few thread blocks, as in the algorithm few"},
		MoveAlgorithm{noMove, kernels.ReduceSMLimited}},
}

func (a MoveAlgorithm) kind(f *flow) (kernels.MoveKind, error) {
	k := a.move
	if f.reduces {
		k = a.reduce
	}
	if k == noMove {
		return k, fmt.Errorf("%w: the algorithm does not run this collective", device.ErrUnsupported)
	}
	return k, nil
}

// Supports returns an error if the algorithm cannot run c. It makes a plan for c to find out.
func (a MoveAlgorithm) Supports(t Team, tune device.Tuning, c *Collective) error {
	if c.Empty() {
		return nil
	}
	p, err := a.plan(t, tune, c)
	if err != nil {
		return err
	}
	return p.launchable()
}

// launchOf completes a tuning with the values that were fastest on two H200. If flags are sent with the data, the
// launch has one thread for every pack. If thread blocks synchronize, the launch has few blocks unless the data is
// large enough to fill a link.
func launchOf(tune device.Tuning, kind kernels.MoveKind, r blockRows, members int) (blocks, threads, unroll int) {
	bytes := r.bytes()
	switch kind {
	case kernels.MoveLL, kernels.ReduceLL:
		threads, unroll = 256, 1
		if bytes >= 512<<10 {
			threads = 512
		}
		blocks = within(bytes, int64(8*threads), 32, 128)
	case kernels.MoveLL128, kernels.ReduceLL128, kernels.MoveSpread, kernels.ReduceSpread:
		threads, unroll = 512, 1
		switch {
		case bytes < 256<<10:
			threads = 256
		case members == 2 && bytes >= 2<<20:
			unroll = 4
		case members <= 4 && bytes >= 1<<20:
			unroll = 2
		}
		blocks = within(bytes, 512, 1, 132)
	case kernels.ReduceSMLimited:
		return SMLimitedLaunch(tune, members)
	default:
		blocks, threads, unroll = 16, 512, 2
		switch {
		case bytes >= 4<<20:
			blocks, unroll = 128, 8
		case kind == kernels.ReducePull && bytes >= 128<<10:
			blocks = 32
		}
	}
	return cmp.Or(tune.Blocks, blocks), cmp.Or(tune.Threads, threads), cmp.Or(tune.Unroll, unroll)
}

// within divides bytes by each, and limits the result to the range from least to most.
func within(bytes, each, least, most int64) int {
	return int(min(max((bytes+each-1)/each, least), most))
}

// Plan returns a plan of one launch on each member, or of several launches if a block is too large for the slots.
func (a MoveAlgorithm) Plan(t Team, tune device.Tuning, c *Collective) (*Plan, error) {
	p := &Plan{}
	m, first, err := a.Shares(p, t, tune, c)
	if err != nil {
		return nil, err
	}
	flags, slots := p.moveMemory(t, m.Moves)
	p.Launches = func() ([][]Action, error) {
		for i := range m.Moves {
			for _, move := range Parts(&m.Moves[i]) {
				k, err := moveKernel(t, &move, *flags, *slots)
				if err != nil {
					return nil, err
				}
				first[i] = append(first[i], k)
			}
		}
		return first, nil
	}
	return p, nil
}

// moveFlags requests memory for the flags of moves.
func (p *Plan) moveFlags() *Area {
	flags := &Area{}
	p.halves("flags of moves", kernels.MoveFlagBytes, func(a Area) { *flags = a })
	return flags
}

// moveMemory requests memory for the flags of moves, and for slots if any move passes through slots.
func (p *Plan) moveMemory(t Team, moves []kernels.Move) (flags, slots *Area) {
	flags, slots = p.moveFlags(), &Area{}
	need, name := int64(0), "packs of moves"
	for i := range moves {
		for _, m := range Parts(&moves[i]) {
			fit(t, &m)
			need = max(need, m.SlotBytes())
			if m.Kind.LL128() { // flags of packs must not share this memory, because LL128 data could look like them
				name = "sheets of moves"
			}
		}
	}
	if need > 0 {
		p.halves(name, need, func(a Area) { *slots = a })
	}
	return flags, slots
}

// fit limits the number of thread blocks of a move to the number that can run at once.
func fit(t Team, move *kernels.Move) {
	room := t.Room(move.Threads)
	if move.Kind == kernels.ReduceSMLimited {
		room = smLimitedRoom(t, move.Threads)
	}
	move.Blocks = min(move.Blocks, room)
}

// moveKernel returns the kernel of a member's move.
func moveKernel(t Team, move *kernels.Move, flags, slots Area) (Action, error) {
	fit(t, move)
	copy(move.Flags[:], flags.At)
	if len(slots.At) > 0 {
		move.SlotHalf = slots.half()
		copy(move.Slots[:], slots.At)
	}
	k, err := move.Meeting()
	return Kernel{k}, err
}
