// Package ir is hocket's language: its types and layouts, the table of operations, and programs as trees.
//
// Parse reads a text, and package checker checks it. Bind fixes the ranks and dims of a checked program: extents then
// have values, and every rank a place in the mesh. Errors in a program are Diagnostics, which have positions and say
// what to do. docs/language.md defines the meaning of programs.
package ir
