// Package ir defines hocket's language: its types and layouts, the table of operations, and the syntax trees of
// programs.
//
// Parse reads a program's text, and package checker checks the program. Bind fixes the ranks and dims of a checked
// program: then all extents have values, and every rank has a position in the mesh. Errors in a program are
// Diagnostics, which have positions and suggest corrections. docs/language.md defines the meaning of programs.
package ir
