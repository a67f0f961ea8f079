package coll

import "hocket.example/hocket/ir"

// HostPart describes the part of a collective that is transferred through host memory: its size in thousandths of the
// collective's bytes, and the numbers of thread blocks that write it to host memory and read it from there.
type HostPart struct{ Permille, Writers, Readers int64 }

// HostParts holds the host parts for the different algorithms.
type HostParts struct {
	Operands  HostPart                                                 // all_reduce of more than two members
	Results   func(bytes int64) HostPart                               // part of each block of a move
	Moves     func(op ir.Op, block int64, members int) HostPart        // reduce_scatter
	Addends   func(members int, bytes int64) HostPart                  // all_reduce by the lamport algorithms
	Lamport   func(bytes int64, members int) HostPart                  // of lines that are their own flags
	SMLimited func(members int, bytes int64) (permille, readers int64) // results of an all_reduce by an SM-limited kernel
}

// MeasuredParts returns the parts that were the fastest in measurements.
func MeasuredParts() HostParts {
	return HostParts{operandsByHost, resultsByHost, movesByHost, addendsByHost, lamportByHost, smLimitedByHost}
}
