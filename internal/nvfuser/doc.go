// Package nvfuser reads the Host IR text that nvFuser prints (NVFUSER_DUMP=host_ir) and turns it into a program of
// package ir. Begin with Import.
//
// Import has two steps. The reader (lines, lex, parse_*) makes a tree of the dump: tensors with their printed axes,
// statements, and loops by indentation, which is restored where a paste lost it (indent). Indices that the dump does
// not define are inferred if only one choice fits (infer).
//
// The translator (translate, and the files named after what they translate) makes a host program of the tree. The part
// of a tensor that a rank has is a buffer with the printed axes, without those that are split over devices. The state
// of "current stream" becomes statements on and wait. A communication runs on a stream of its communicator, and its
// Wait waits for its end.
//
// Every statement keeps its position in the dump, so later diagnostics refer to the dump.
package nvfuser
