// Package nvfuser reads the Host IR text that nvFuser prints
// (NVFUSER_DUMP=host_ir) and turns it into a program of package ir.
//
// Import does it in two steps. The reader (lines, lex, parse_*) makes a tree of
// the dump: tensors with their printed axes, statements, loops by indentation.
// The translator (translate and the files named after what they translate)
// makes a host program of it: what a rank holds of a tensor is a buffer of the
// printed axes less those that are spread over devices; the current-stream
// state machine becomes on and wait; a collective runs on the stream that is
// current where it is posted.
//
// Every statement made keeps the place in the dump that it came from, so that
// whatever is found out about the program later points there.
package nvfuser
