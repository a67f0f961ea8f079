package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/nvlib"
	"hocket.example/hocket/ir"
)

// ReduceNorm is a launch that adds the rows of all members, adds a residual, and normalises: NormArgs of
// src/collective_norm.cuh. Operands are dense, and they and their rows are aligned to 16 bytes.
type ReduceNorm struct {
	DType            ir.DType // a type for which Spares returns true
	Members, Rows    int      // if Members is 1, In already holds the sum, and Data is not used
	Packs            int64    // number of packs of 16 bytes in a row; at most NormPacks
	Blocks           int      // number of thread blocks, at most Rows; all run concurrently
	Eps              float64
	In, Residual     nvlib.Ptr
	Weight, Sum, Out nvlib.Ptr   // if Sum is 0, the sum is not stored
	Data             []nvlib.Ptr // by member: address of memory in two halves, initially filled with Unsent
	Half             int64
	// Read is the address of flags; it is set if a thread block writes data that another block reads. The flags have
	// two halves of ReadHalf bytes, with one word for each block; each block then has only one row. The halves are
	// initially zero. When epochs wrap around, a launch that uses one half sets the other half to zero.
	Read     nvlib.Ptr
	ReadHalf int64
}

// NormPacks is the largest number of packs of a row of ReduceNorm.
const NormPacks = 2 * normThreadsMost

// normSumming is the number of threads that add the squares of a row, as in rms_norm. A block has at least normSumming
// and at most normThreadsMost threads.
const (
	normSumming     = 256
	normThreadsMost = 1024
)

// NormThreads returns the number of threads of a block of ReduceNorm for rows of the given number of packs. If
// possible, there is one thread for each pack, so that a block waits for the packs of all members at the same time.
func NormThreads(packs int64) int {
	threads := normSumming
	for threads < normThreadsMost && int64(threads) < packs {
		threads *= 2
	}
	return threads
}

// Meeting returns the launch on one member.
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
