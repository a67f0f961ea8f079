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

// Available returns the number of bytes that can be allocated without swapping; 0 if unknown. The result is the
// smallest of three numbers: the available memory of the machine, the unused part of the memory limits of the process's
// control groups (of both versions), and the unused part of the process's limit of address space.
func Available() int64 { return available("/", addressSpace()) }

// available is Available, with system files that are read below the folder root. addresses is the limit of the address
// space; 0 if there is none.
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
	own, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup")) // without this file only the root group is considered
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

// addressSpace returns the limit of the process's address space; 0 if there is none.
func addressSpace() int64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &l); err != nil || l.Cur > 1<<60 {
		return 0
	}
	return int64(l.Cur)
}

// groupsOf lists the control groups in a /proc/…/cgroup file, and their ancestors, because each group may have a limit.
// second holds groups of cgroup version 2, and first groups of the memory controller of version 1. In a container there
// is often only the root, "/".
func groupsOf(text string) (second, first []string) {
	own, older := "/", "/"
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			own = filepath.Join("/", path)
		}
		// The line has the form hierarchy:controllers:path.
		if f := strings.SplitN(line, ":", 3); len(f) == 3 && slices.Contains(strings.Split(f[1], ","), "memory") {
			older = filepath.Join("/", f[2])
		}
	}
	return above(own), above(older)
}

// above lists a group and its ancestors.
func above(group string) (groups []string) {
	for ; group != "/"; group = filepath.Dir(group) {
		groups = append(groups, group)
	}
	return append(groups, "/")
}

// leftOfFirst is leftOf for cgroup version 1, in which a very large limit means no limit.
func leftOfFirst(group string) int64 {
	limit := readNumber(filepath.Join(group, "memory.limit_in_bytes"))
	if limit <= 0 || limit > 1<<60 {
		return 0
	}
	used := readNumber(filepath.Join(group, "memory.usage_in_bytes")) - cachedFiles(filepath.Join(group, "memory.stat"))
	return max(limit-max(used, 0), 1)
}

// leftOf returns the number of bytes that processes of a control group may still allocate; 0 if the group has no limit.
// The group's usage includes cached files, which are dropped when memory is needed. Cached files do not count as used
// here, as in MemAvailable of /proc/meminfo.
func leftOf(group string) int64 {
	limit := readNumber(filepath.Join(group, "memory.max"))
	if limit <= 0 {
		return 0
	}
	used := readNumber(filepath.Join(group, "memory.current")) - cachedFiles(filepath.Join(group, "memory.stat"))
	return max(limit-max(used, 0), 1)
}

// cachedFiles returns the bytes of cached files that a memory.stat file reports; 0 if unknown.
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

// readNumber returns the number in a file; 0 if there is none, for example "max".
func readNumber(path string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}
