package world

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// seals fix the size of a segment, so that no process can remove memory that others have mapped.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// NewSegment creates a segment of at least size bytes. The segment is freed when no process has mapped it any more.
func NewSegment(size int) (*Segment, error) {
	if size <= 0 {
		return nil, fmt.Errorf("a segment of %d bytes", size)
	}
	fd, err := unix.MemfdCreate("hocket", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "hocket segment")
	if err := file.Truncate(int64(size)); err != nil {
		file.Close()
		return nil, fmt.Errorf("a segment of %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		file.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	s, err := mapSegment(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	return s, nil
}

// mapSegment maps a segment that this or another process has created. The returned segment owns file.
func mapSegment(file *os.File) (*Segment, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var s *Segment
	err2 := raw.Control(func(fd uintptr) {
		have, e := unix.FcntlInt(fd, unix.F_GET_SEALS, 0)
		if e != nil || have&seals != seals {
			err = fmt.Errorf("its size can change")
			return
		}
		var info unix.Stat_t
		if err = unix.Fstat(int(fd), &info); err != nil {
			return
		}
		mem, e := unix.Mmap(int(fd), 0, int(info.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if e != nil {
			err = fmt.Errorf("mapping %d bytes: %w", info.Size, e)
			return
		}
		s = &Segment{mem: mem, file: file}
	})
	if err == nil {
		err = err2
	}
	return s, err
}

func unmap(mem []byte) error { return unix.Munmap(mem) }
