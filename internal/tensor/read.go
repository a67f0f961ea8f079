package tensor

import (
	"fmt"
	"io"
	"strconv"
)

// readAt fills p with the bytes of r at off.
func readAt(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d of %d bytes at offset %d: %w", n, len(p), off, err)
}

// quote quotes text from a file for a message, and truncates long text.
func quote(s string) string {
	const most = 100
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
