package fakedriver

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hocket.example/hocket/internal/cabi"
	"hocket.example/hocket/internal/nvlib"
)

// memoryFiles implements device memory that fakes in other processes can map. The call cuMemCreate creates a memory
// file whose name includes the number of the GPU, and mapping the memory maps the file.
type memoryFiles struct {
	f     *GPU
	fds   map[uintptr]int // by handle
	owner map[uintptr]int32
	sizes map[uintptr]int64 // by handle: size of memory that this process created
}

// ShareMemory makes the fake's memory shareable with other processes.
func (f *GPU) ShareMemory() {
	m := &memoryFiles{f: f, fds: map[uintptr]int{}, owner: map[uintptr]int32{}, sizes: map[uintptr]int64{}}
	f.share = m.calls
}

// WantNoFiles checks that no file of fake GPU memory is open. Tests call it after all fakes of the process were closed.
func WantNoFiles(t *testing.T) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if name, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(name, fileName) {
			t.Errorf("%s is open still", name)
		}
	}
}

const fileName = "memory of fake GPU "

func (m *memoryFiles) calls(table map[string]func([]uintptr) uintptr) {
	f := m.f
	table["cuMemCreate"] = func(a []uintptr) uintptr {
		prop := cabi.Load[[4]int32](a[2])
		dev, bytes := prop[3], int64(a[1])
		taken := int64(0)
		for h, n := range m.sizes {
			if m.owner[h] == dev {
				taken += n
			}
		}
		if bytes > 16<<30 || f.Limit > 0 && taken+bytes > f.Limit {
			return nvlib.CUDAOutOfMemory
		}
		fd, err := unix.MemfdCreate(fmt.Sprint(fileName, f.number(dev)), unix.MFD_CLOEXEC)
		if err == nil {
			err = unix.Ftruncate(fd, bytes)
		}
		if err != nil {
			f.Error(err)
			return 999
		}
		h := f.handle("memory")
		m.fds[h], m.owner[h], m.sizes[h] = fd, dev, bytes
		return Set(a[0], h)
	}
	table["cuMemRelease"] = func(a []uintptr) uintptr {
		f.Live["memory"]--
		m.must(unix.Close(m.fds[a[0]]))
		delete(m.fds, a[0])
		delete(m.sizes, a[0])
		return 0
	}
	table["cuMemExportToShareableHandle"] = func(a []uintptr) uintptr {
		fd, err := unix.FcntlInt(uintptr(m.fds[a[1]]), unix.F_DUPFD_CLOEXEC, 0)
		m.must(err)
		return Set(a[0], int32(fd))
	}
	table["cuMemImportFromShareableHandle"] = func(a []uintptr) uintptr {
		name, err := os.Readlink(fmt.Sprint("/proc/self/fd/", a[1]))
		_, number, ours := strings.Cut(strings.TrimSuffix(name, " (deleted)"), fileName)
		if err != nil || !ours {
			return nvlib.CUDAInvalidImage // any error will do: the file is not memory of a GPU
		}
		fd, err := unix.FcntlInt(a[1], unix.F_DUPFD_CLOEXEC, 0)
		m.must(err)
		h := f.handle("memory")
		m.fds[h], m.owner[h] = fd, -1 // the GPU is not visible here
		for dev := range int32(f.devices) {
			if fmt.Sprint(f.number(dev)) == number {
				m.owner[h] = dev
			}
		}
		return Set(a[0], h)
	}
	table["cuMemAddressReserve"] = func(a []uintptr) uintptr {
		at := m.mmap(0, a[1], unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1)
		f.Live["addresses"]++
		return Set(a[0], at)
	}
	table["cuMemAddressFree"] = func(a []uintptr) uintptr {
		if f.Reach.ranges[a[0]] != nil {
			f.Errorf("the address range still has mapped memory when it is freed")
		}
		f.Live["addresses"]--
		m.munmap(a[0], a[1])
		return 0
	}
	table["cuMemMap"] = func(a []uintptr) uintptr {
		m.mmap(a[0], a[1], unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED, m.fds[a[3]])
		f.Live["mappings"]++
		f.Reach.ranges[a[0]] = &Mapping{a[1], m.owner[a[3]], map[int32]bool{}}
		return 0
	}
	table["cuMemUnmap"] = func(a []uintptr) uintptr {
		m.mmap(a[0], a[1], unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED, -1)
		f.Live["mappings"]--
		delete(f.Reach.ranges, a[0])
		return 0
	}
}

func (m *memoryFiles) must(err error) {
	if err != nil {
		m.f.Error(err)
	}
}

func (m *memoryFiles) mmap(at, bytes uintptr, prot, flags, fd int) uintptr {
	p, _, no := unix.Syscall6(unix.SYS_MMAP, at, bytes, uintptr(prot), uintptr(flags), uintptr(fd), 0)
	if no != 0 {
		m.must(no)
	}
	return p
}

func (m *memoryFiles) munmap(at, bytes uintptr) {
	if _, _, no := unix.Syscall(unix.SYS_MUNMAP, at, bytes, 0); no != 0 {
		m.must(no)
	}
}
