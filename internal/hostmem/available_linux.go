// Package hostmem reports how much memory the host has.
package hostmem

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Available returns the bytes that can be allocated without swapping: of the machine, of the
// control groups that hold the process, of either version, or of its address space where
// that is limited, whichever is least; 0 when it cannot be told.
func Available() int64 { return available("/", addressSpace()) }

// available is Available of the files below root and a limit of the address space, 0 for none.
func available(root string, addresses int64) int64 {
	free := int64(0)
	least := func(left int64) {
		if left > 0 && (free == 0 || left < free) {
			free = left
		}
	}
	if text, err := os.ReadFile(filepath.Join(root, "proc/meminfo")); err == nil {
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemAvailable:" {
				kib, _ := strconv.ParseInt(f[1], 10, 64)
				free = kib << 10
			}
		}
	}
	own, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup")) // where there is none the root's bound counts
	second, first := groupsOf(string(own))
	for _, group := range second {
		least(leftOf(filepath.Join(root, "sys/fs/cgroup", group)))
	}
	for _, group := range first {
		least(leftOfFirst(filepath.Join(root, "sys/fs/cgroup/memory", group)))
	}
	if addresses > 0 {
		text, _ := os.ReadFile(filepath.Join(root, "proc/self/statm"))
		pages := int64(0)
		if f := strings.Fields(string(text)); len(f) > 0 {
			pages, _ = strconv.ParseInt(f[0], 10, 64)
		}
		least(max(addresses-pages*int64(os.Getpagesize()), 1))
	}
	return free
}

// addressSpace is the limit of the process's address space, 0 for none.
func addressSpace() int64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &l); err != nil || l.Cur > 1<<60 {
		return 0
	}
	return int64(l.Cur)
}

// groupsOf lists the control groups that a /proc/…/cgroup names, and those that they are in:
// each may have a bound. second are those of the second version, first those of the first
// that bound memory. In a container it is mostly the root, "/", alone.
func groupsOf(text string) (second, first []string) {
	own, older := "/", "/"
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			own = filepath.Join("/", path)
		}
		// hierarchy:controllers:path
		if f := strings.SplitN(line, ":", 3); len(f) == 3 && slices.Contains(strings.Split(f[1], ","), "memory") {
			older = filepath.Join("/", f[2])
		}
	}
	return above(own), above(older)
}

// above lists a group and those that it is in.
func above(group string) (groups []string) {
	for ; group != "/"; group = filepath.Dir(group) {
		groups = append(groups, group)
	}
	return append(groups, "/")
}

// leftOfFirst is leftOf in the first version, where no limit is a very large one.
func leftOfFirst(group string) int64 {
	limit := readNumber(filepath.Join(group, "memory.limit_in_bytes"))
	if limit <= 0 || limit > 1<<60 {
		return 0
	}
	used := readNumber(filepath.Join(group, "memory.usage_in_bytes")) - cachedFiles(filepath.Join(group, "memory.stat"))
	return max(limit-max(used, 0), 1)
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
