// Package nvfuser reads the Host IR text that nvFuser prints
// (NVFUSER_DUMP=host_ir) and turns it into a program of package ir.
//
// Import does it in two steps. The reader (lines, lex, parse_*) makes a tree of
// the dump: tensors with their printed axes, statements, loops by indentation,
// which is restored where a paste lost it (indent). Indices that the dump does
// not define are inferred where one choice fits (infer).
// The translator (translate and the files named after what they translate)
// makes a host program of it: what a rank holds of a tensor is a buffer of the
// printed axes less those that are spread over devices; the current-stream
// state machine becomes on and wait; a communication runs on a stream of its
// communicator, and its Wait waits for its end.
//
// Every statement made keeps the place in the dump that it came from, so that
// whatever is found out about the program later points there.
package nvfuser
