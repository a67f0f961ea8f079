package kernels

import (
	"fmt"
	"math"

	"hocket.example/hocket/ir"
)

// Algorithms of AllReduce, those of src/collective_lamport.cuh.
const (
	AllReduceLamport        AllReduceKind = "Lamport"        // one shot of lines that are their own flags
	AllReduceLamportx2      AllReduceKind = "Lamportx2"      // two shots of the same
	AllReduceLamportHost    AllReduceKind = "LamportHost"    // of two members: one shot of the same, and packs by way of host memory
	AllReduceLamportResults AllReduceKind = "LamportResults" // two shots, of which results go straight to where they belong, some by way of host memory
)

// Unsent is the word that Data of AllReduceLamport and its kin is full of where nothing
// is under way.
const Unsent = math.MaxUint32

// Spares reports whether a type has bits to spare for Unsent: whether that is NaNs.
func Spares(dt ir.DType) bool { return dt == ir.F32 || dt == ir.F16 || dt == ir.BF16 }

// RowsPacks is how many packs of 16 bytes a warp moves of which each thread has so many
// lines.
func RowsPacks(lines int) int64 { return int64(32 * lines) }

// lamport is the launch of AllReduceLamport and its kin on a member.
func (r AllReduce) lamport(rank int) Meeting {
	form := fmt.Sprintf("%s, %d, %d", ctype(r.DType), len(r.In), r.Unroll)
	label := fmt.Sprintf("%s_%d_%d", r.DType, len(r.In), r.Unroll)
	if len(r.Host) == 0 { // whether whole packs can be read and written
		aligned := (uint64(r.In[rank])|uint64(r.Out[rank]))%16 == 0
		form, label = fmt.Sprintf("%s, %t", form, aligned), fmt.Sprintf("%s_%t", label, aligned)
	}
	return Meeting{
		Upon: []string{"collective_reduce"}, File: "collective_lamport", Args: "ReduceArgs",
		Body:   fmt.Sprintf("reduce%s<%s, %s>", r.Kind, r.red(), form),
		Symbol: symbol("all_reduce", string(r.Kind), r.Red.String(), label),
		Words:  r.words(), Blocks: r.Blocks, Threads: r.Threads,
	}
}
