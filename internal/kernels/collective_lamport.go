package kernels

import (
	"fmt"
	"math"

	"hocket.example/hocket/ir"
)

// The kernels of these algorithms of AllReduce are in src/collective_lamport.cuh.
type (
	// AllReduceLamport is a one-shot algorithm in which a receiver recognizes arrived data because it differs from the
	// initial contents of the memory.
	AllReduceLamport struct{}
	// AllReduceLamportx2 is the two-shot algorithm that recognizes data in the same way.
	AllReduceLamportx2 struct {
		Throttled bool // only one thread of a warp polls until data arrives, for large messages
	}
	// AllReduceLamportHost is AllReduceLamport for two members that exchange the packs from the index Split on through
	// host memory.
	AllReduceLamportHost struct {
		ByHost
		Half int64 // size in bytes of one of two halves of Host
	}
	// AllReduceLamportResults is a two-shot algorithm that writes results directly to their destination. Of each share,
	// the results of Split chunks go through host memory instead.
	AllReduceLamportResults struct{ ByHost }
)

func (AllReduceLamport) String() string        { return "Lamport" }
func (AllReduceLamportx2) String() string      { return "Lamportx2" }
func (AllReduceLamportHost) String() string    { return "LamportHost" }
func (AllReduceLamportResults) String() string { return "LamportResults" }

func (AllReduceLamport) own() ownWords          { return ownWords{} }
func (a AllReduceLamportx2) own() ownWords      { return ownWords{throttled: a.Throttled} }
func (a AllReduceLamportHost) own() ownWords    { return ownWords{ByHost: a.ByHost, hostHalf: a.Half} }
func (a AllReduceLamportResults) own() ownWords { return ownWords{ByHost: a.ByHost} }

// Unsent is the initial value of words in Data of AllReduceLamport and related algorithms. A receiver takes a word with
// this value for one that has not arrived yet.
const Unsent = math.MaxUint32

// Spares reports whether the bits of Unsent are a NaN in an element type. Kernels can then replace this NaN in operands
// by another one.
func Spares(dt ir.DType) bool { return dt == ir.F32 || dt == ir.F16 || dt == ir.BF16 }

// RowsPacks returns the number of packs of 16 bytes that a warp moves at a time if each of its threads has the given
// number of lines.
func RowsPacks(lines int) int64 { return int64(32 * lines) }

// lamport returns the launch of AllReduceLamport or a related algorithm on a member. The flag odd reports that operands
// may be unaligned.
func (r AllReduce) lamport(rank int, odd bool) Meeting {
	form := fmt.Sprintf("%s, %d, %d", ctype(r.DType), len(r.In), r.Unroll)
	label := fmt.Sprintf("%s_%d_%d", r.DType, len(r.In), r.Unroll)
	if odd { // depends on whether operands permit accesses of whole packs
		aligned := (uint64(r.In[rank])|uint64(r.Out[rank]))%16 == 0
		form, label = fmt.Sprintf("%s, %t", form, aligned), fmt.Sprintf("%s_%t", label, aligned)
	}
	return Meeting{
		Upon: []string{"collective_reduce"}, File: "collective_lamport", Args: "ReduceArgs",
		Body:   fmt.Sprintf("reduce%s<%s, %s>", r.By, r.red(), form),
		Symbol: symbol("all_reduce", r.By.String(), r.Red.String(), label),
		Words:  r.words(), Blocks: r.Blocks, Threads: r.Threads,
	}
}
