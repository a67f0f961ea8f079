// Package hostmem tells how much memory the host has.
package hostmem

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Available returns the bytes that can be allocated without swapping, of
// the machine or of the control groups that hold the process, whichever is
// least; 0 when it cannot be told.
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
	own, _ := os.ReadFile("/proc/self/cgroup") // where there is none the root's bound counts
	for _, group := range groupsOf(string(own)) {
		if left := leftOf("/sys/fs/cgroup" + group); left > 0 && (free == 0 || left < free) {
			free = left
		}
	}
	return free
}

// groupsOf lists the control group that a /proc/…/cgroup names, and those that it is in: each
// may have a bound. In a container it is mostly the root, "/", alone.
func groupsOf(text string) (groups []string) {
	own := "/"
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			own = filepath.Join("/", strings.TrimSpace(path))
		}
	}
	for ; own != "/"; own = filepath.Dir(own) {
		groups = append(groups, own)
	}
	return append(groups, "/")
}

// leftOf returns what a control group may still have; 0 where nothing bounds it. Files that
// are cached count as used there until others want the memory, as they do not in MemAvailable.
func leftOf(group string) int64 {
	limit := readNumber(filepath.Join(group, "memory.max"))
	if limit <= 0 {
		return 0
	}
	used := readNumber(filepath.Join(group, "memory.current")) - cachedFiles(filepath.Join(group, "memory.stat"))
	return max(limit-max(used, 0), 1)
}

// cachedFiles returns the bytes of files in memory that a memory.stat tells of, 0 for none.
func cachedFiles(stat string) (bytes int64) {
	text, err := os.ReadFile(stat)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && (f[0] == "active_file" || f[0] == "inactive_file") {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			bytes += n
		}
	}
	return bytes
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
