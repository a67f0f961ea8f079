package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// ReduceNorm is a launch that adds up rows of all members, adds a residual, and
// normalises: NormArgs of src/collective_norm.cuh. Operands are dense and begin
// at multiples of 16 bytes, as rows do.
type ReduceNorm struct {
	DType            ir.DType
	Members, Rows    int
	Packs            int64 // of 16 bytes, of a row; at most NormPacks
	Split            int   // blocks of a row, of at most NormThreads packs each where there are more than one
	Blocks           int   // a multiple of Split
	Eps              float64
	In, Residual     nvlib.Ptr
	Weight, Sum, Out nvlib.Ptr
	Data             []nvlib.Ptr // of each member: two halves
	Half             int64
	// Read is there where a block writes what another reads: a word for each block, of
	// which every one then has but one part of a row. They begin as zeros, and are
	// cleared where the numbers of launches wrap.
	Read nvlib.Ptr
}

// Limits of ReduceNorm.
const (
	NormThreads = 256
	NormPacks   = 8 * NormThreads // of a row
)

// NormLine is how many bytes of a half each pack of each member takes.
const NormLine = 32

// Meeting returns the launch of a member.
func (r ReduceNorm) Meeting() Meeting {
	each := int64(1)
	for each*NormThreads < r.Packs {
		each *= 2
	}
	var w words
	w.addr(r.In, r.Residual, r.Weight, r.Sum, r.Out)
	w.addrs(r.Data)
	w.ints(r.Half, int64(r.Rows), r.Packs, int64(r.Split), ceil(r.Packs, int64(r.Split)))
	w.addr(r.Read)
	w.float(r.Eps)
	split := fmt.Sprint(r.Split > 1)
	return Meeting{
		Upon: []string{"collective_reduce"}, File: "collective_norm", Args: "NormArgs",
		Body:   fmt.Sprintf("reduceNorm<%s, %d, %d, %s>", ctype(r.DType), r.Members, each, split),
		Symbol: symbol("all_reduce_norm", r.DType.String(), fmt.Sprint(r.Members), fmt.Sprint(each), split),
		Words:  w, Blocks: r.Blocks, Threads: NormThreads, Shared: NormThreads * 8,
	}
}
