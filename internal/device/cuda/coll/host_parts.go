package coll

import "hocket.example/hocket/ir"

// HostPart is what of a collective goes by way of host memory, in thousandths of its bytes,
// and how many blocks write there and read from there.
type HostPart struct{ Permille, Writers, Readers int64 }

// HostParts are the parts that algorithms choose.
type HostParts struct {
	Operands  HostPart                                                 // of an all_reduce of two members
	Results   func(bytes int64) HostPart                               // of an all_reduce of more
	Moves     func(op ir.Op, block int64, members int) HostPart        // of each block
	Addends   func(members int, bytes int64) HostPart                  // of a reduce_scatter
	Lamport   func(bytes int64, members int) HostPart                  // of lines that are their own flags
	SMLimited func(members int, bytes int64) (permille, readers int64) // of results, by few blocks
}

// MeasuredParts are those that were fastest.
func MeasuredParts() HostParts {
	return HostParts{operandsByHost, resultsByHost, movesByHost, addendsByHost, lamportByHost, smLimitedByHost}
}
