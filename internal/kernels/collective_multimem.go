package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/nvlib"
)

// Multimem is one member's launch of an all_reduce of sums that NVLink switches compute: MultimemArgs of
// src/collective_multimem.cuh. It does not use By and Red of the AllReduce, and Data is each member's staging memory.
type Multimem struct {
	AllReduce
	All nvlib.Ptr // the multicast address of all members' staging memory
}

// Meeting returns the launch on a member.
func (m Multimem) Meeting(rank int) Meeting {
	aligned := (uint64(m.In[rank])|uint64(m.Out[rank]))%16 == 0 // whether whole packs can be read and written
	return Meeting{
		File: "collective_multimem", Upon: []string{"collective_reduce"}, Args: "MultimemArgs",
		Body:   fmt.Sprintf("reduceMultimem<%s, %d, %d, %t>", ctype(m.DType), len(m.In), m.Unroll, aligned),
		Symbol: symbol("all_reduce_multimem", fmt.Sprintf("%s_%d_%d_%t", m.DType, len(m.In), m.Unroll, aligned)),
		Words:  append(m.words(), uint64(m.All)), Blocks: m.Blocks, Threads: m.Threads,
	}
}
