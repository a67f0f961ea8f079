package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// ReduceBy is an algorithm of AllReduce: one of the types below and in collective_lamport.go, each with the fields that
// it alone has.
type ReduceBy interface {
	// String is its name in the sources, behind "reduce".
	String() string
	// own returns the words of ReduceArgs that are the algorithm's own.
	own() ownWords
}

// Algorithms of AllReduce, those of src/collective_reduce.cuh. Group is the number of chunks that a block pushes before
// it raises their flags; 0 for 1.
type (
	// AllReduceLL is one shot, 8 bytes of data in each 16; AllReduceLL2 two shots of the same.
	AllReduceLL  struct{}
	AllReduceLL2 struct{}
	// AllReduceLL128 is one shot in LL128 lines, an epoch in each 128 bytes; AllReduceLL128x2 two shots of the same.
	AllReduceLL128   struct{}
	AllReduceLL128x2 struct{}
	// AllReducePush is two shots through staging, flags for chunks.
	AllReducePush struct{ Group int64 }
	// AllReduceScatter is the first shot of AllReducePush: Out is of a share, each of whole packs.
	AllReduceScatter struct{ Group int64 }
	// AllReduceAddends is AllReduceScatter, with the packs of each share before Split by way of host memory; their flags
	// are those that such chunks have anyway.
	AllReduceAddends struct {
		Group int64
		ByHost
	}
	// AllReducePull reads from peers, and writes to peers.
	AllReducePull struct{}
	// AllReduceSMLimited is AllReducePull by few multiprocessors. The results of Split tiles of each block that adds up,
	// the first of each Writers of its own, go by way of host memory; the first Readers blocks read the others'.
	AllReduceSMLimited struct {
		Shared int // bytes of shared memory that a block may have, 0 for enough
		ByHost
	}
	// AllReduceHost is AllReducePush of two members, with the packs from Split on by way of host memory.
	AllReduceHost struct {
		Group int64
		ByHost
	}
	// AllReduceResults is AllReducePush, with results by way of host memory: of each share those of its packs before
	// Split, in whole chunks of Threads·Unroll.
	AllReduceResults struct {
		Group int64
		ByHost
	}
)

// ByHost is the part of the data that members exchange through host memory; Split bounds it, as the algorithm says. The
// first Writers blocks write it and the Readers after them read it, unless the algorithm says otherwise. The flags of its
// chunks are the last before those in which all meet.
type ByHost struct {
	Host                    []nvlib.Ptr // of each member
	Split, Writers, Readers int64
}

// ownWords are words of ReduceArgs that not all algorithms have.
type ownWords struct {
	ByHost
	group, hostHalf int64
	throttled       bool
}

func (AllReduceLL) String() string        { return "LL" }
func (AllReduceLL2) String() string       { return "LL2" }
func (AllReduceLL128) String() string     { return "LL128" }
func (AllReduceLL128x2) String() string   { return "LL128x2" }
func (AllReducePush) String() string      { return "Push" }
func (AllReduceScatter) String() string   { return "ScatterPush" }
func (AllReduceAddends) String() string   { return "ScatterHost" }
func (AllReducePull) String() string      { return "Pull" }
func (AllReduceSMLimited) String() string { return "Few" }
func (AllReduceHost) String() string      { return "Host" }
func (AllReduceResults) String() string   { return "Results" }

func (AllReduceLL) own() ownWords          { return ownWords{} }
func (AllReduceLL2) own() ownWords         { return ownWords{} }
func (AllReduceLL128) own() ownWords       { return ownWords{} }
func (AllReduceLL128x2) own() ownWords     { return ownWords{} }
func (a AllReducePush) own() ownWords      { return ownWords{group: a.Group} }
func (a AllReduceScatter) own() ownWords   { return ownWords{group: a.Group} }
func (a AllReduceAddends) own() ownWords   { return ownWords{ByHost: a.ByHost, group: a.Group} }
func (AllReducePull) own() ownWords        { return ownWords{} }
func (a AllReduceSMLimited) own() ownWords { return ownWords{ByHost: a.ByHost} }
func (a AllReduceHost) own() ownWords      { return ownWords{ByHost: a.ByHost, group: a.Group} }
func (a AllReduceResults) own() ownWords   { return ownWords{ByHost: a.ByHost, group: a.Group} }

// AllReduce is one member's launch of an all-reduce: ReduceArgs of
// src/collective_reduce.cuh.
type AllReduce struct {
	By              ReduceBy
	DType           ir.DType
	Red             ir.Red
	Unroll          int
	Blocks, Threads int
	In, Out         []nvlib.Ptr // of each member, dense
	Data            []nvlib.Ptr // of each member, for what is pushed
	Half            int64       // bytes of a half of Data
	Flags           []nvlib.Ptr // of each member
	FlagHalf        int64
	Count           int64 // elements
	Share           int64 // halves, LL128 lines, rows or packs that a member adds up
	Slots           int64 // flags for each pair of members
}

// HostChunks is how many chunks so many packs by way of host memory are.
func HostChunks(packs int64, threads int) int64 {
	chunk := hostRows * int64(threads)
	return (packs + chunk - 1) / chunk
}

// hostRows is that of src/collective_reduce.cuh.
const hostRows = 2

// LL128Packs is how many packs of 16 bytes an LL128 line of so many rows carries, in
// 512 bytes a row.
func LL128Packs(rows int) int64 { return int64(32*rows - 4) }

// Meeting returns the launch on a member.
func (r AllReduce) Meeting(rank int) Meeting {
	switch by := r.By.(type) {
	case AllReduceSMLimited:
		return r.smLimited(by, true)
	case AllReduceLamport, AllReduceLamportx2:
		return r.lamport(rank, true)
	case AllReduceLamportHost, AllReduceLamportResults:
		return r.lamport(rank, false)
	}
	form := fmt.Sprintf("%s, %d, %d", ctype(r.DType), len(r.In), r.Unroll)
	label := fmt.Sprintf("%s_%d_%d", r.DType, len(r.In), r.Unroll)
	switch r.By.(type) {
	case AllReducePush, AllReduceScatter, AllReduceAddends, AllReducePull, AllReduceHost, AllReduceResults:
	default: // whether whole packs can be read and written
		aligned := (uint64(r.In[rank])|uint64(r.Out[rank]))%16 == 0
		form += fmt.Sprintf(", %t", aligned)
		label += fmt.Sprintf("_%t", aligned)
	}
	return Meeting{
		File: "collective_reduce", Args: "ReduceArgs",
		Body:   fmt.Sprintf("reduce%s<%s, %s>", r.By, r.red(), form),
		Symbol: symbol("all_reduce", r.By.String(), r.Red.String(), label),
		Words:  r.words(), Blocks: r.Blocks, Threads: r.Threads,
	}
}

func (r AllReduce) red() string {
	return map[ir.Red]string{ir.Sum: "RedSum", ir.Max: "RedMax", ir.Min: "RedMin", ir.Avg: "RedAvg"}[r.Red]
}

// words is what follows Team in ReduceArgs.
func (r AllReduce) words() words {
	var w words
	var own ownWords
	if r.By != nil { // else Multimem's
		own = r.By.own()
	}
	w.addrs(r.In)
	w.addrs(r.Out)
	w.addrs(r.Data)
	w.ints(r.Half)
	w.addrs(r.Flags)
	w.ints(r.FlagHalf, r.Count, r.Share, r.Slots)
	w.addrs(own.Host)
	w.ints(own.Split, own.Writers, own.Readers, max(1, own.group), own.hostHalf, truth(own.throttled))
	return w
}
