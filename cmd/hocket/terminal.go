package main

import (
	"os"
	"strconv"
)

// pipeColumns is the width of what no terminal shows.
const pipeColumns = 100

// columns returns the width of the terminal that f is, within reason.
func columns(f *os.File) int {
	n, ok := terminalWidth(f)
	if !ok {
		return pipeColumns
	}
	if c, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && c > 0 {
		n = c
	}
	if n == 0 { // a terminal that does not know
		return pipeColumns
	}
	return min(max(n, 40), 400)
}

func isTerminal(f *os.File) bool {
	_, ok := terminalWidth(f)
	return ok
}
