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
	DType            ir.DType // that has bits to spare
	Members, Rows    int      // Members of 1: In is the sum already, and there is no Data
	Packs            int64    // of 16 bytes, of a row; at most NormPacks
	Blocks           int      // at most Rows; all run at once
	Eps              float64
	In, Residual     nvlib.Ptr
	Weight, Sum, Out nvlib.Ptr
	Data             []nvlib.Ptr // of each member: two halves, at first full of Unsent
	Half             int64
	// Read is there where a block writes what another reads: two halves, ReadHalf bytes
	// each, of a word for each block, of which every one then has but one row. They begin
	// as zeros, and are cleared where the numbers of launches wrap, by the launch that uses
	// the other half.
	Read     nvlib.Ptr
	ReadHalf int64
}

// NormPacks is how many packs a row of ReduceNorm has at most.
const NormPacks = 2 * normThreadsMost

// normSumming threads add up the squares of a row, as those of rms_norm do; a block has
// no fewer, and no more than normThreadsMost.
const (
	normSumming     = 256
	normThreadsMost = 1024
)

// NormThreads returns how many threads a block of ReduceNorm has for rows of so many
// packs: one for each pack, as far as that goes, so that all a row's packs of all
// members are waited for at once.
func NormThreads(packs int64) int {
	threads := normSumming
	for threads < normThreadsMost && int64(threads) < packs {
		threads *= 2
	}
	return threads
}

// Meeting returns the launch of a member.
func (r ReduceNorm) Meeting() Meeting {
	threads := NormThreads(r.Packs)
	each := max(1, ceil(r.Packs, int64(threads)))
	var w words
	w.addr(r.In, r.Residual, r.Weight, r.Sum, r.Out)
	w.addrs(r.Data)
	w.ints(r.Half, int64(r.Rows), r.Packs)
	w.addr(r.Read)
	w.ints(r.ReadHalf)
	w.float(r.Eps)
	body := fmt.Sprintf("reduceNorm<%s, %d, %d>", ctype(r.DType), r.Members, each)
	if r.Members == 1 {
		body = fmt.Sprintf("addNorm<%s, %d>", ctype(r.DType), each)
	}
	return Meeting{
		Upon: []string{"collective_reduce", "collective_lamport"}, File: "collective_norm", Args: "NormArgs", Body: body,
		Symbol: symbol("all_reduce_norm", r.DType.String(), fmt.Sprint(r.Members), fmt.Sprint(each), fmt.Sprint(threads)),
		Words:  w, Blocks: r.Blocks, Threads: threads, Shared: normSumming*8 + int(r.Packs)*16,
	}
}
