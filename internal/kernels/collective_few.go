package kernels

import (
	"cmp"
	"fmt"

	"hocket.example/hocket/internal/device"
)

// smLimitedShared is the largest shared memory, in bytes, of a block of reduceFew of src/collective_few.cuh; Hopper has
// 227 KiB.
const smLimitedShared = 208 << 10

// SMLimitedStages returns the number of stages that fit into a block's shared memory in reduceFew. The argument shared
// is the size of that memory in bytes, or 0 for the default. A stage holds unroll packs of 16 bytes of each member for
// each thread. The kernel needs at least 2 stages.
func SMLimitedStages(shared, members, threads, unroll int) int {
	return min(8, min(cmp.Or(shared, smLimitedShared), smLimitedShared)/smLimitedStage(members, threads, unroll))
}

func smLimitedStage(members, threads, unroll int) int { return 16 * members * threads * unroll }

// smLimitedTile is the size of a tile in packs of each thread. For data that goes through host memory, a thread block
// of AllReduceSMLimited signals the other members after each tile.
const smLimitedTile = 8

// SMLimitedTile returns the size of a tile of a thread block in packs of 16 bytes.
func SMLimitedTile(threads int) int64 { return smLimitedTile * int64(threads) }

// Slots returns the number of flags that each pair of members needs for the given number of thread blocks.
func (a AllReduceSMLimited) Slots(blocks int) int64 {
	return 2*BlocksMost + a.Split*(int64(blocks)-a.Readers)
}

// smLimited returns the launch of r by the kernel reduceFew. If all is set, each member reduces its share of one result
// and stores it to all members. Otherwise the result belongs only to the member that computes it.
func (r AllReduce) smLimited(by AllReduceSMLimited, all bool) Meeting {
	stages, bale := SMLimitedStages(by.Shared, len(r.In), r.Threads, r.Unroll), 1
	if by.Split > 0 {
		bale = smLimitedTile / r.Unroll
	}
	form := fmt.Sprintf("%d, %d, %d, %d, %t, %d", len(r.In), r.Unroll, stages, r.Threads, all, bale)
	return Meeting{
		File: "collective_few", Upon: []string{"collective_reduce"}, Args: "ReduceArgs",
		Body:   fmt.Sprintf("reduceFew<%s, %s, %s>", r.red(), ctype(r.DType), form),
		Symbol: symbol("reduce_few", r.Red.String(), fmt.Sprintf("%s_%d_%d_%d_%d_%t_%d", r.DType, len(r.In), r.Unroll, stages, r.Threads, all, bale)),
		Words:  r.words(), Blocks: r.Blocks, Threads: r.Threads, Shared: stages * smLimitedStage(len(r.In), r.Threads, r.Unroll),
	}
}

// smLimited returns the launch of a Move with the kind ReduceSMLimited. The kernel uses the flags of the Move.
func (m *Move) smLimited() (Meeting, error) {
	if len(m.Extents) > 0 || !m.full(m.targets()) || !m.full(m.sources()) {
		return Meeting{}, fmt.Errorf("%w: the members' blocks are not contiguous, or not aligned to 16 bytes", device.ErrUnsupported)
	}
	if SMLimitedStages(m.Shared, m.Members, m.Threads, m.Unroll) < 2 {
		return Meeting{}, fmt.Errorf("%w: %d threads with unroll %d for %d members need more shared memory than a block has",
			device.ErrUnsupported, m.Threads, m.Unroll, m.Members)
	}
	by := AllReduceSMLimited{Shared: m.Shared}
	r := AllReduce{By: by, DType: m.DType, Red: m.Red, Unroll: m.Unroll, Blocks: m.Blocks, Threads: m.Threads,
		In: m.Src[:m.Members], Out: m.Dst[:m.Members],
		Flags: m.Flags[:m.Members], FlagHalf: MoveFlagBytes, Slots: 2 * BlocksMost}
	if m.Own {
		r.Count, r.Share = m.Run/m.DType.Size(), m.Run/16
	}
	return r.smLimited(by, false), nil
}
