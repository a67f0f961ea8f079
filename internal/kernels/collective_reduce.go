package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// AllReduceKind is an algorithm of src/collective_reduce.cuh for all-reduce.
type AllReduceKind string

// Algorithms of AllReduce.
const (
	AllReduceLL        AllReduceKind = "LL"        // one shot, 8 bytes of data in each 16
	AllReduceLL2       AllReduceKind = "LL2"       // two shots of the same
	AllReduceLL128     AllReduceKind = "LL128"     // one shot in sheets, an epoch in each 128 bytes
	AllReduceLL128x2   AllReduceKind = "LL128x2"   // two shots in sheets
	AllReducePush      AllReduceKind = "Push"      // two shots through staging, chunks of a block
	AllReducePushWarp  AllReduceKind = "PushWarp"  // the same, chunks of a warp
	AllReduceStage     AllReduceKind = "Stage"     // one shot through staging, chunks of a block
	AllReduceStageWarp AllReduceKind = "StageWarp" // the same, chunks of a warp
	AllReduceBulk      AllReduceKind = "Bulk"      // one shot by bulk copies through shared memory
	AllReduceMixed     AllReduceKind = "Mixed"     // Push, with the end of the data in sheets
	AllReducePull      AllReduceKind = "Pull"      // reads from peers, writes to peers
)

// reduceForms are the functions, and what their last template argument says:
// whether arrays begin at multiples of 16 bytes, or another thing.
var reduceForms = map[AllReduceKind]struct{ function, last string }{
	AllReduceLL:        {"reduceLL", ""},
	AllReduceLL2:       {"reduceLL2", ""},
	AllReduceLL128:     {"reduceLL128", ""},
	AllReduceLL128x2:   {"reduceLL128x2", ""},
	AllReducePush:      {"reducePush", "false"},
	AllReducePushWarp:  {"reducePush", "true"},
	AllReduceStage:     {"reduceStage", "false"},
	AllReduceStageWarp: {"reduceStage", "true"},
	AllReduceBulk:      {"reduceBulk", "true"},
	AllReduceMixed:     {"reduceMixed", "true"},
	AllReducePull:      {"reducePull", "true"},
}

// AllReduce is one member's launch of an all-reduce: ReduceArgs of
// src/collective_reduce.cuh.
type AllReduce struct {
	Kind            AllReduceKind
	DType           ir.DType
	Red             ir.Red
	Unroll          int
	Blocks, Threads int
	In, Out         []nvlib.Ptr // of each member, dense
	Data            []nvlib.Ptr // of each member, for what is pushed
	Half            int64       // bytes of a half of Data
	Flags           []nvlib.Ptr // of each member
	FlagHalf        int64
	Count           int64       // elements
	Share           int64       // halves, sheets or packs that a member adds up
	Slots           int64       // flags for each pair of members
	Stages          int64       // logarithm of the chunks that shared memory holds for each group
	Sheets          []nvlib.Ptr // of each member, for the end of the data
	SheetHalf       int64
	Rest            int64 // packs before that end
}

// A group of AllReduceBulk's threads, those of them that add up, and what of
// shared memory all groups have.
const (
	BulkThreads = 128
	BulkAdders  = 96
	bulkShared  = 208 << 10
)

// BulkStages returns the logarithm of the chunks of so many packs a thread that
// shared memory holds for each group of a block; false: too few.
func BulkStages(threads, unroll int) (int64, bool) {
	log := int64(5)
	for log > 0 && bulkBytes(threads, unroll, log) > bulkShared {
		log--
	}
	return log, log >= 3
}

// bulkBytes is the shared memory of a block.
func bulkBytes(threads, unroll int, log int64) int {
	return threads / BulkThreads << log * 16 * (1 + BulkAdders*unroll)
}

// SheetPacks is how many packs of 16 bytes a sheet of so many rows carries, in
// 512 bytes a row.
func SheetPacks(rows int) int64 { return int64(32*rows - 4) }

// MixedRows is how many rows the sheets of AllReduceMixed have.
const MixedRows = 2

// mixedRest is how much AllReduceMixed leaves to sheets: what links carry while
// two flags are under way.
const mixedRest = 2 << 20 / 16

// Mix divides packs of 16 bytes between the shares of an AllReduceMixed, of whole
// cache lines, and at most two sheets for each warp; false: there are too few.
func (r *AllReduce) Mix(packs, members int64) (sheets int64, ok bool) {
	rest := min(mixedRest, int64(r.Blocks*r.Threads/32)*2*SheetPacks(MixedRows))
	r.Share = ceil(packs-rest, 8*members) * 8
	r.Rest = r.Share * members
	return ceil(packs-r.Rest, SheetPacks(MixedRows)), r.Rest <= packs && int64(r.Blocks*r.Threads*r.Unroll) <= r.Share
}

// Meeting returns the launch on a member.
func (r AllReduce) Meeting(rank int) Meeting {
	form, members := reduceForms[r.Kind], len(r.In)
	last := form.last
	if last == "" {
		last = fmt.Sprint((uint64(r.In[rank])|uint64(r.Out[rank]))%16 == 0)
	}
	red := map[ir.Red]string{ir.Sum: "RedSum", ir.Max: "RedMax", ir.Min: "RedMin", ir.Avg: "RedAvg"}[r.Red]
	var w words
	w.addrs(r.In)
	w.addrs(r.Out)
	w.addrs(r.Data)
	w.ints(r.Half)
	w.addrs(r.Flags)
	w.ints(r.FlagHalf, r.Count, r.Share, r.Slots, r.Stages)
	w.addrs(r.Sheets)
	w.ints(r.SheetHalf, r.Rest)
	m := Meeting{
		File: "collective_reduce", Args: "ReduceArgs",
		Body:   fmt.Sprintf("%s<%s, %s, %d, %d, %s>", form.function, red, ctype(r.DType), members, r.Unroll, last),
		Symbol: symbol("all_reduce", string(r.Kind), r.Red.String(), r.DType.String(), fmt.Sprint(members), fmt.Sprint(r.Unroll), last),
		Words:  w, Blocks: r.Blocks, Threads: r.Threads,
	}
	if r.Kind == AllReduceBulk {
		m.Upon, m.File, m.Shared = []string{m.File, "bulk"}, "collective_bulk", bulkBytes(r.Threads, r.Unroll, r.Stages)
	}
	return m
}
