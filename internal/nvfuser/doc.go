// Package nvfuser reads the Host IR text that nvFuser prints (NVFUSER_DUMP=host_ir) and converts it to a program of
// package ir. The entry point is Import.
//
// Import has two steps. First, the reader (lines, lex, parse_*) builds a tree of the dump, which contains the tensors
// with their printed axes, the statements, and the loops. Indentation determines the contents of loops; if pasting the
// dump removed it, it is restored (indent). Indices that the dump does not define are inferred if only one choice fits
// (infer).
//
// Second, the translator (translate, and the files that are named after the constructs that they translate) makes a
// host program from the tree. The part of a tensor that a rank holds becomes a buffer with the printed axes, without
// the axes that are split over devices. Changes of the current stream become the statements on and wait. A
// communication runs on a stream of its communicator, and its Wait waits until it has ended.
//
// Every statement keeps its position in the dump, so later diagnostics refer to the dump.
package nvfuser
