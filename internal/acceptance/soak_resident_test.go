package acceptance_test

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"hocket.example/hocket/internal/cabi"
)

// holders has the size in bytes of the process's resident memory, separated by the parts of the process that allocated
// it.
type holders struct {
	goes    int64 // Go's heap
	mallocs int64 // malloc's heap and arenas: used by C libraries, among them the driver
	mapped  int64 // other anonymous memory
	files   int64 // mapped files and devices
}

func (h holders) String() string {
	return fmt.Sprintf("%.1f MiB for Go, %.1f malloc's, %.1f mapped, %.1f of files", mib(h.goes), mib(h.mallocs),
		mib(h.mapped), mib(h.files))
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// residents reads the process's memory map; it returns zeros if the system has none.
func residents() (h holders) {
	text, _ := os.ReadFile("/proc/self/smaps")
	h.count(string(text), reflect.ValueOf(&h).Pointer())
	return h
}

// count adds the sizes of the regions in a memory map, as /proc/self/smaps lists them, to h. Go's heap is one region
// that contains inGo and grows at its end (runtime/malloc.go). All of glibc's arenas but the first begin at multiples
// of 64 MiB (HEAP_MAX_SIZE in malloc/arena.c).
func (h *holders) count(text string, inGo uintptr) {
	const arena = 64 << 20
	var of *int64
	for line := range strings.Lines(text) {
		var from, to, kib int64
		var perms string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &perms); n == 3 {
			path := strings.TrimSpace(line[min(len(line), strings.LastIndexByte(line, ' ')):])
			switch {
			case path == "[heap]":
				of = &h.mallocs
			case strings.HasPrefix(path, "/"):
				of = &h.files
			case from>>32 == int64(inGo>>32):
				of = &h.goes
			case from%arena == 0 && to-from <= arena:
				of = &h.mallocs
			default:
				of = &h.mapped
			}
		} else if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kib); n == 1 && of != nil {
			*of += kib << 10
		}
	}
}

// malloced returns how much of malloc's memory is in use, in all arenas. malloced returns 0 without glibc 2.33, or if
// the calling convention differs: mallinfo2(3) returns a struct through an address passed as the first argument.
func malloced() int64 {
	if runtime.GOARCH != "amd64" || !cabi.Callable {
		return 0
	}
	lib, err := cabi.Open([]string{"libc.so.6"})
	if err != nil {
		return 0
	}
	f, err := lib.Lookup("mallinfo2")
	if err != nil {
		return 0
	}
	const mapped, used, words = 4, 7, 10 // indices of hblkhd and uordblks
	info := cabi.NewBlock(8 * words)
	defer info.Free()
	f.Call(info.Addr(0))
	return cabi.Load[int64](info.Addr(8*mapped)) + cabi.Load[int64](info.Addr(8*used))
}

// TestMalloced checks malloced while malloc allocates and frees memory.
func TestMalloced(t *testing.T) {
	before := malloced()
	if before == 0 {
		t.Skip("this malloc does not report its memory in use")
	}
	lib, err := cabi.Open([]string{"libc.so.6"})
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]*cabi.Func{"malloc": {}, "free": {}}
	if err := lib.Resolve(table); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{1 << 16, 1 << 22} { // malloc takes the first block from an arena, and maps the second
		p := table["malloc"].Call(uintptr(n))
		if more := malloced() - before; more < n || more > n+1<<15 {
			t.Errorf("%d bytes more are in use, want %d", more, n)
		}
		table["free"].Call(p)
		if more := malloced() - before; more > 1<<15 {
			t.Errorf("%d freed bytes still count as in use", more)
		}
	}
}

// TestHolders checks that each region of a memory map is counted for the part of the process that allocated it.
func TestHolders(t *testing.T) {
	var h holders
	h.count(`00400000-01000000 r-xp 00000000 fe:00 24   /usr/bin/server
Size:              12288 kB
Rss:                1024 kB
20d51000-26d82000 rw-p 00000000 00:00 0                                  [heap]
Rss:                2048 kB
Pss:                2048 kB
c000000000-c00c400000 rw-p 00000000 00:00 0
Rss:                3072 kB
7f3c44000000-7f3c44a21000 rw-p 00000000 00:00 0
Rss:                4096 kB
7f3c44a21000-7f3c48000000 ---p 00000000 00:00 0
Rss:                   0 kB
7f3c4a125000-7f3c4a925000 rw-p 00000000 00:00 0
Rss:                 512 kB
200000000-200200000 rw-s 00000000 00:06 11   /dev/nvidia-uvm
Rss:                 256 kB
`, 0xc000123450)
	if want := (holders{3 << 20, 6 << 20, 512 << 10, 1280 << 10}); h != want {
		t.Errorf("%v, want %v", h, want)
	}
	if h := residents(); h != (holders{}) && h.goes == 0 {
		t.Errorf("none for Go: %v", h)
	}
}
