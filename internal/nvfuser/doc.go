// Package nvfuser reads the Host IR text that nvFuser prints (NVFUSER_DUMP=host_ir) and converts it to a program of
// package ir. The entry point is Import.
//
// Import has two steps. First, the reader (files lines.go, lex.go and parse_*.go) builds a tree of the dump, which
// contains the tensors with their printed axes, the statements, and the loops. The indentation of lines determines
// which statements a loop contains. If the indentation was lost when somebody pasted the dump, it is restored
// (indent.go). If the dump uses indices that it does not define, they are inferred, provided that only one choice
// fits (infer.go).
//
// Second, the translator (translate.go, and files named after the constructs that they translate) makes a host
// program from the tree. Each rank holds its part of a tensor in a buffer. The buffer has the printed axes except
// those that are split over devices. Statements of the dump that change the current stream become the statements
// "on" and "wait" of the program. A communication runs on a stream of its communicator, and the Wait of the dump
// waits until the communication has ended.
//
// Every statement keeps its position in the dump, so that later diagnostics refer to lines of the dump.
package nvfuser
