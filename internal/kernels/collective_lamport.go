package kernels

import (
	"fmt"
	"math"

	"hocket.example/hocket/ir"
)

// Algorithms of AllReduce, those of src/collective_lamport.cuh.
type (
	// AllReduceLamport is one shot of lines that are their own flags.
	AllReduceLamport struct{}
	// AllReduceLamportx2 is two shots of the same.
	AllReduceLamportx2 struct {
		Throttled bool // a warp has one thread look until something has come, for much data
	}
	// AllReduceLamportHost is AllReduceLamport of two members, with the packs from Split on by way of host memory.
	AllReduceLamportHost struct {
		ByHost
		Half int64 // bytes of a half of Host
	}
	// AllReduceLamportResults is two shots, of which results go straight to where they belong: those of Split chunks of
	// each share by way of host memory.
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

// Unsent is the word that Data of AllReduceLamport and its kin is full of where nothing
// is under way.
const Unsent = math.MaxUint32

// Spares reports whether a type has bits to spare for Unsent: whether that is NaNs.
func Spares(dt ir.DType) bool { return dt == ir.F32 || dt == ir.F16 || dt == ir.BF16 }

// RowsPacks is how many packs of 16 bytes a warp moves of which each thread has so many
// lines.
func RowsPacks(lines int) int64 { return int64(32 * lines) }

// lamport is the launch of AllReduceLamport and its kin on a member; odd: operands may begin anywhere.
func (r AllReduce) lamport(rank int, odd bool) Meeting {
	form := fmt.Sprintf("%s, %d, %d", ctype(r.DType), len(r.In), r.Unroll)
	label := fmt.Sprintf("%s_%d_%d", r.DType, len(r.In), r.Unroll)
	if odd { // whether whole packs can be read and written
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
