package main

import (
	"os"
	"strconv"

	xterm "golang.org/x/term"
)

// pipeColumns is the width of what no terminal shows.
const pipeColumns = 100

// columns returns the width of the terminal that f is, within reason.
func columns(f *os.File) int {
	if !isTerminal(f) {
		return pipeColumns
	}
	n, _, _ := xterm.GetSize(int(f.Fd())) // 0 or less where it does not know
	if c, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && c > 0 {
		n = c
	}
	if n <= 0 {
		return pipeColumns
	}
	return min(max(n, 40), 400)
}

func isTerminal(f *os.File) bool { return xterm.IsTerminal(int(f.Fd())) }
