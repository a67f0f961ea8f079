//go:build linux || darwin

package files

import (
	"os"
	"syscall"
)

func mapFile(f *os.File, size int) (*Mapping, error) {
	b, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &Mapping{Bytes: b, unmap: func() error { return syscall.Munmap(b) }}, nil
}
