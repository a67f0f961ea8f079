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
	AllReduceLL        AllReduceKind = "LL"          // one shot, 8 bytes of data in each 16
	AllReduceLL2       AllReduceKind = "LL2"         // two shots of the same
	AllReduceLL128     AllReduceKind = "LL128"       // one shot in LL128 lines, an epoch in each 128 bytes
	AllReduceLL128x2   AllReduceKind = "LL128x2"     // two shots in LL128 lines
	AllReducePush      AllReduceKind = "Push"        // two shots through staging, flags for chunks
	AllReduceScatter   AllReduceKind = "ScatterPush" // the first shot of Push: Out is of a share, each of whole packs
	AllReduceAddends   AllReduceKind = "ScatterHost" // the same, and some packs by way of host memory
	AllReducePull      AllReduceKind = "Pull"        // reads from peers, writes to peers
	AllReduceSMLimited AllReduceKind = "Few"         // the same by few multiprocessors
	AllReduceHost      AllReduceKind = "Host"        // of two members: Push, and packs by way of host memory
	AllReduceResults   AllReduceKind = "Results"     // Push, and some results by way of host memory
)

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
	Count           int64 // elements
	Share           int64 // halves, LL128 lines, rows or packs that a member adds up
	Slots           int64 // flags for each pair of members
	Group           int64 // chunks of Threads·Unroll packs that a block of Push and its kin pushes before it tells of them; 0 for 1

	// Of Host: packs from Split on go through host memory. Of Results: of each share
	// the results of its packs before Split, in whole chunks of Threads·Unroll. They
	// are written by the first Writers blocks and read by the Readers after them;
	// their chunks' flags are the last of Slots before those in which all meet. Of
	// Addends: the packs of each share before Split, alike, with the flags that such
	// chunks have anyway. Of SMLimited: the results of Split tiles of each block that adds up,
	// the first of each Writers of its own; Readers blocks, the first, read the others'.
	Host                    []nvlib.Ptr // of each member
	Split, Writers, Readers int64
	HostHalf                int64 // bytes of a half of Host, of those of lines that are their own flags
	Shared                  int   // of SMLimited: bytes of shared memory that a block may have, 0 for enough
	Throttled               bool  // of Lamportx2: a warp has one thread look until something has come, for much data
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
	switch r.Kind {
	case AllReduceSMLimited:
		return r.smLimited(true)
	case AllReduceLamport, AllReduceLamportx2, AllReduceLamportHost, AllReduceLamportResults:
		return r.lamport(rank)
	}
	form := fmt.Sprintf("%s, %d, %d", ctype(r.DType), len(r.In), r.Unroll)
	label := fmt.Sprintf("%s_%d_%d", r.DType, len(r.In), r.Unroll)
	switch r.Kind {
	case AllReducePush, AllReduceScatter, AllReduceAddends, AllReducePull, AllReduceHost, AllReduceResults:
	default: // whether whole packs can be read and written
		aligned := (uint64(r.In[rank])|uint64(r.Out[rank]))%16 == 0
		form += fmt.Sprintf(", %t", aligned)
		label += fmt.Sprintf("_%t", aligned)
	}
	return Meeting{
		File: "collective_reduce", Args: "ReduceArgs",
		Body:   fmt.Sprintf("reduce%s<%s, %s>", r.Kind, r.red(), form),
		Symbol: symbol("all_reduce", string(r.Kind), r.Red.String(), label),
		Words:  r.words(), Blocks: r.Blocks, Threads: r.Threads,
	}
}

func (r AllReduce) red() string {
	return map[ir.Red]string{ir.Sum: "RedSum", ir.Max: "RedMax", ir.Min: "RedMin", ir.Avg: "RedAvg"}[r.Red]
}

// words is what follows Team in ReduceArgs.
func (r AllReduce) words() words {
	var w words
	calm := int64(0)
	if r.Throttled {
		calm = 1
	}
	w.addrs(r.In)
	w.addrs(r.Out)
	w.addrs(r.Data)
	w.ints(r.Half)
	w.addrs(r.Flags)
	w.ints(r.FlagHalf, r.Count, r.Share, r.Slots)
	w.addrs(r.Host)
	w.ints(r.Split, r.Writers, r.Readers, max(1, r.Group), r.HostHalf, calm)
	return w
}
