package kernels

import (
	"fmt"

	"hocket.example/hocket/internal/nvlib"
)

// Multimem is one member's launch of an all_reduce whose sums NVLink switches compute: MultimemArgs of
// src/collective_multimem.cuh. The field Data of the AllReduce holds each member's staging memory; By and Red are not
// used.
type Multimem struct {
	AllReduce
	All nvlib.Ptr // the multicast address of all members' staging memory
}

// Meeting returns the launch on the member rank.
func (m Multimem) Meeting(rank int) Meeting {
	aligned := (uint64(m.In[rank])|uint64(m.Out[rank]))%16 == 0 // whether whole packs can be accessed
	return Meeting{
		File: "collective_multimem", Upon: []string{"collective_reduce"}, Args: "MultimemArgs",
		Body:   fmt.Sprintf("reduceMultimem<%s, %d, %d, %t>", ctype(m.DType), len(m.In), m.Unroll, aligned),
		Symbol: symbol("all_reduce_multimem", fmt.Sprintf("%s_%d_%d_%t", m.DType, len(m.In), m.Unroll, aligned)),
		Words:  append(m.words(), uint64(m.All)), Blocks: m.Blocks, Threads: m.Threads,
	}
}
