//go:build !linux

package world

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// NewSegment creates a segment of at least size bytes, which only this process can use.
func NewSegment(size int) (*Segment, error) {
	if size <= 0 {
		return nil, fmt.Errorf("a segment of %d bytes", size)
	}
	words := make([]uint64, (size+7)/8)
	return &Segment{mem: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size)}, nil
}

func mapSegment(*os.File) (*Segment, error) { return nil, errors.ErrUnsupported }

func unmap([]byte) error { return nil }
