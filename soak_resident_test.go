package hocket_test

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// holders is what resident memory is resident for, in bytes.
type holders struct {
	goes    int64 // Go's heap
	mallocs int64 // malloc's heap and arenas: C libraries, the driver among them
	mapped  int64 // anonymous memory that something else mapped
	files   int64 // of files and devices
}

func (h holders) String() string {
	return fmt.Sprintf("%.1f MiB for Go, %.1f malloc's, %.1f mapped, %.1f of files", mib(h.goes), mib(h.mallocs), mib(h.mapped), mib(h.files))
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// residents reads the process's memory map; nothing where the system tells none.
func residents() (h holders) {
	text, _ := os.ReadFile("/proc/self/smaps")
	h.count(string(text), reflect.ValueOf(&h).Pointer())
	return h
}

// count adds what a memory map lists. Go's heap grows on from where it begins
// (runtime/malloc.go), and something of it lies at inGo; glibc's arenas beside the
// main one begin at multiples of 64 MiB (HEAP_MAX_SIZE in malloc/arena.c).
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

// TestHolders wants each line of a memory map counted for its holder.
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
	if h := residents(); os.PathSeparator == '/' && h != (holders{}) && h.goes == 0 {
		t.Errorf("none for Go: %v", h)
	}
}
