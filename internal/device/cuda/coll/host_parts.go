package coll

import "hocket.example/hocket/ir"

// HostPart describes the part of a collective's data that is transferred through host memory. Permille is the size of
// the part in thousandths of the collective's bytes. Writers and Readers are the numbers of thread blocks that write
// the part to host memory and read it from there.
type HostPart struct{ Permille, Writers, Readers int64 }

// HostParts holds, for each algorithm, the part of the data that is transferred through host memory.
type HostParts struct {
	Operands  HostPart                                                 // all_reduce of two members
	Results   func(bytes int64) HostPart                               // results of an all_reduce, more than two members
	Moves     func(op ir.Op, block int64, members int) HostPart        // of each block that members send to each other
	Addends   func(members int, bytes int64) HostPart                  // reduce_scatter
	Lamport   func(bytes int64, members int) HostPart                  // all_reduce by the lamport algorithms
	SMLimited func(members int, bytes int64) (permille, readers int64) // results of an all_reduce by an SM-limited kernel
}

// MeasuredParts returns the parts that were the fastest in measurements.
func MeasuredParts() HostParts {
	return HostParts{operandsByHost, resultsByHost, movesByHost, addendsByHost, lamportByHost, smLimitedByHost}
}
