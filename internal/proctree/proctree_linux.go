// Package proctree reads the tree of processes from /proc.
package proctree

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Process describes a process as /proc shows it.
type Process struct {
	ID, Parent int
	State      byte // T for a stopped process, Z for a process that has ended
}

// Tree maps the ID of each process to the process's children.
type Tree map[int][]Process

// Read reads the tree of all processes.
func Read() Tree {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	t := Tree{}
	for _, name := range names {
		if p, ok := read(name); ok {
			t[p.Parent] = append(t[p.Parent], p)
		}
	}
	return t
}

// Descendants returns the descendants of a process, parents before children.
func (t Tree) Descendants(id int) []Process {
	list := slices.Clone(t[id])
	for i := 0; i < len(list); i++ {
		list = append(list, t[list[i].ID]...)
	}
	return list
}

// Find reads the process with an ID. It returns false if there is none.
func Find(id int) (Process, bool) { return read(fmt.Sprintf("/proc/%d/stat", id)) }

// read reads a file /proc/PID/stat.
func read(name string) (p Process, ok bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return p, false // the process has ended
	}
	id, _, _ := bytes.Cut(text, []byte(" "))
	rest := text[bytes.LastIndexByte(text, ')')+1:] // the name may contain any characters, including parentheses
	words := bytes.Fields(rest)
	if len(words) < 2 {
		return p, false
	}
	p.State = words[0][0]
	p.ID, err = strconv.Atoi(string(id))
	if err != nil {
		return p, false
	}
	p.Parent, err = strconv.Atoi(string(words[1]))
	return p, err == nil
}

// Work measures the progress of a process by the sum of its processor time and its context switches. The sum does not
// change while a process is stopped or only waits.
func (p Process) Work() (n uint64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.ID))
	if words := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(words) > 12 {
		for _, w := range words[11:13] { // user and system time
			ticks, _ := strconv.ParseUint(string(w), 10, 64)
			n += ticks
		}
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.ID))
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		for line := range strings.Lines(string(text)) {
			if _, count, found := strings.Cut(line, "voluntary_ctxt_switches:"); found { // and nonvoluntary
				switches, _ := strconv.ParseUint(strings.TrimSpace(count), 10, 64)
				n += switches
			}
		}
	}
	return n + uint64(len(tasks))
}
