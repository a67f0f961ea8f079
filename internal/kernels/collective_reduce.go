package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// ReduceBy is an algorithm of AllReduce. It is one of the types below or in collective_lamport.go. Only the algorithm
// uses the fields of its type.
type ReduceBy interface {
	// String returns the algorithm's name in the sources, where it follows "reduce".
	String() string
	// own returns the words of the kernel's argument, ReduceArgs, that only this algorithm uses.
	own() ownWords
}

// The kernels of these algorithms of AllReduce are in src/collective_reduce.cuh. Group is the number of chunks that a
// block pushes before it raises their flags; 0 means 1.
type (
	// AllReduceLL is a one-shot algorithm with 8 bytes of data and 8 of flags in each 16 bytes; AllReduceLL2 is the
	// two-shot algorithm.
	AllReduceLL  struct{}
	AllReduceLL2 struct{}
	// AllReduceLL128 is a one-shot algorithm in LL128 lines: each 128 bytes contain the launch's number as flag.
	// AllReduceLL128x2 is the two-shot algorithm.
	AllReduceLL128   struct{}
	AllReduceLL128x2 struct{}
	// AllReducePush is a two-shot algorithm through staging memory, with one flag for each chunk.
	AllReducePush struct{ Group int64 }
	// AllReduceScatter is the first phase of AllReducePush: Out holds one share. Each share consists of whole packs.
	AllReduceScatter struct{ Group int64 }
	// AllReduceAddends is AllReduceScatter, except that the packs of each share before the index Split go through host
	// memory. The chunks use the same flags as without host memory.
	AllReduceAddends struct {
		Group int64
		ByHost
	}
	// AllReducePull loads operands from peers' memory, and stores results to peers' memory.
	AllReducePull struct{}
	// AllReduceSMLimited is AllReducePull on few multiprocessors. Each thread block that adds sends the results of
	// Split of its tiles, the first of every Writers tiles, through host memory. The first Readers thread blocks read
	// the results of the other members.
	AllReduceSMLimited struct {
		Shared int // bytes of shared memory that a block may use, or 0 for the default
		ByHost
	}
	// AllReduceHost is AllReducePush for two members that exchange the packs from the index Split on through host
	// memory.
	AllReduceHost struct {
		Group int64
		ByHost
	}
	// AllReduceResults is AllReducePush, except that some results go through host memory: those of the packs before the
	// index Split of each share, in whole chunks of Threads·Unroll packs.
	AllReduceResults struct {
		Group int64
		ByHost
	}
)

// ByHost describes the part of the data that members exchange through host memory. Split is the boundary between this
// part and the other part, as the algorithm defines it. The first Writers blocks of the grid write the data to host
// memory and the next Readers blocks read it, unless the algorithm defines something else. The flags of the part's
// chunks precede the flags with which all blocks synchronize at the end.
type ByHost struct {
	Host                    []nvlib.Ptr // by member: address of its host memory
	Split, Writers, Readers int64
}

// ownWords holds the words of ReduceArgs that are used only by some algorithms.
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

// AllReduce is one member's launch of an all_reduce: ReduceArgs of src/collective_reduce.cuh.
type AllReduce struct {
	By              ReduceBy
	DType           ir.DType
	Red             ir.Red
	Unroll          int
	Blocks, Threads int
	In, Out         []nvlib.Ptr // by member: address of its dense operand, and of its result
	Data            []nvlib.Ptr // by member: address of the memory that peers push data to
	Half            int64       // size in bytes of one of the two halves of Data
	Flags           []nvlib.Ptr // by member: address of its flags
	FlagHalf        int64
	Count           int64 // elements
	Share           int64 // number of LL lines, LL128 lines, rows or packs that a member reduces
	Slots           int64 // number of flags for each pair of members
}

// HostChunks returns the number of chunks in which the given number of packs goes through host memory.
func HostChunks(packs int64, threads int) int64 {
	chunk := hostRows * int64(threads)
	return (packs + chunk - 1) / chunk
}

// hostRows must equal hostRows of src/collective_reduce.cuh.
const hostRows = 2

// LL128Packs returns the number of packs of 16 bytes that an LL128 line of the given number of rows carries; a row has
// 512 bytes.
func LL128Packs(rows int) int64 { return int64(32*rows - 4) }

// Meeting returns the launch on the member rank.
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
	default: // depends on whether operands permit accesses of whole packs
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

// words returns the words of the kernel's argument, ReduceArgs, that follow Team.
func (r AllReduce) words() words {
	var w words
	var own ownWords
	if r.By != nil { // By is nil for Multimem
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
