// Package terminal writes to terminals: progress lines, and text without control characters. It reports their width, and
// whether colours are permitted.
package terminal

import (
	"io"
	"os"
	"strconv"
	"unicode/utf8"

	xterm "golang.org/x/term"

	"hocket.example/hocket/ir"
)

// pipeColumns is the width in columns of output that is not written to a terminal.
const pipeColumns = 100

// Columns returns the width of the terminal f in columns, limited to a sensible range.
func Columns(f *os.File) int {
	if !Is(f) {
		return pipeColumns
	}
	n, _, _ := xterm.GetSize(int(f.Fd())) // n is 0 or less if the terminal does not report its width
	if c, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && c > 0 {
		n = c
	}
	if n <= 0 {
		return pipeColumns
	}
	return min(max(n, 40), 400)
}

// Is reports whether f is a terminal.
func Is(f *os.File) bool { return xterm.IsTerminal(int(f.Fd())) }

// SameFile reports whether both outputs are the same file or pipe, which is not a terminal.
func SameFile(stdout, stderr *os.File) bool {
	out, err := stdout.Stat()
	if err != nil || Is(stdout) {
		return false
	}
	errs, err := stderr.Stat()
	return err == nil && os.SameFile(out, errs)
}

// Colours reports whether the environment permits colours on a terminal.
func Colours() bool { return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" }

// Harmless returns a writer of text to w, which is a terminal. It replaces control characters by visible signs, so that
// text from programs and files cannot control the terminal.
func Harmless(w io.Writer) io.Writer { return &harmless{w: w} }

type harmless struct {
	w    io.Writer
	part []byte // the first bytes of an incomplete character
}

func (h *harmless) Write(p []byte) (int, error) {
	text := append(h.part, p...)
	n := len(text)
	for k := 1; k < utf8.UTFMax && k <= n; k++ { // the next write may contain the remaining bytes of the last character
		if utf8.RuneStart(text[n-k]) {
			if !utf8.FullRune(text[n-k:]) {
				n -= k
			}
			break
		}
	}
	h.part = append([]byte(nil), text[n:]...)
	if _, err := io.WriteString(h.w, ir.Printable(string(text[:n]))); err != nil {
		return 0, err
	}
	return len(p), nil
}
