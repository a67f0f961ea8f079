//go:build !(linux || darwin)

package files

import (
	"io"
	"os"
)

// mapFile reads the file.
func mapFile(f *os.File, size int) (*Mapping, error) {
	b := make([]byte, size)
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, err
	}
	return &Mapping{Bytes: b}, nil
}
