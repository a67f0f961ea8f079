// Package ir is hocket's language: types and layouts, the table of operations,
// programs as trees, and what reads, checks, binds, builds and prints them.
//
// Read parses a text and checks it; Parse and Check are its halves. NewBuilder
// makes a program from Go. Bind fixes ranks and dims of what Check accepted:
// then extents have values, and every rank a place in the mesh. What is wrong
// with a program is Diagnostics, with places and what to do. docs/language.md
// says what programs mean.
package ir
