// Package hostmem tells how much memory the host has.
package hostmem

import (
	"os"
	"strconv"
	"strings"
)

// Available returns the bytes that can be allocated without swapping, of
// the machine or of the control group that holds the process, whichever is
// less; 0 when it cannot be told.
func Available() int64 {
	free := int64(0)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemAvailable:" {
				kib, _ := strconv.ParseInt(f[1], 10, 64)
				free = kib << 10
			}
		}
	}
	limit, used := readNumber("/sys/fs/cgroup/memory.max"), readNumber("/sys/fs/cgroup/memory.current")
	if limit > 0 && (free == 0 || limit-used < free) {
		free = max(limit-used, 1)
	}
	return free
}

// readNumber returns the number that a file holds, 0 for anything else ("max").
func readNumber(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}
