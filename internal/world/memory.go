package world

import (
	"errors"
	"os"
	"unsafe"
)

// Segment is memory that other processes can map. The size of a segment is fixed, and its initial contents are zeros.
type Segment struct {
	mem  []byte
	file *os.File // nil if another process created the segment, or if the system has no files for shared memory
}

// Bytes returns the memory. The memory must not be used after Close.
func (s *Segment) Bytes() []byte { return s.mem }

// Close unmaps the segment from this process. It remains mapped in others.
func (s *Segment) Close() error {
	mem, file := s.mem, s.file
	s.mem, s.file = nil, nil
	var err error
	if file != nil {
		err = file.Close()
	}
	if mem != nil {
		err = errors.Join(err, unmap(mem))
	}
	return err
}

// Address returns the address of the segment in this process.
func (s *Segment) Address() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))) }
