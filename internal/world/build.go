package world

import (
	"bufio"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// build identifies the version from which a process's hocket was built. Processes of different builds cannot share a
// world, because they would plan and run the same program differently.
type build struct {
	Version string // version of hocket's module, with the commit if hocket was built from a checkout; "" if unknown
	Dirty   bool   // whether the checkout had uncommitted changes, which Version does not identify
	Program string // the main package
	ID      string // ID that Go's linker wrote into the program or library; "" if it has none
}

// thisBuild returns the build of this process. Tests replace it.
var thisBuild = sync.OnceValue(func() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return build{}
	}
	b := buildOf(info)
	b.ID = fileID()
	return b
})

const modulePath = "hocket.example/hocket"

// buildOf returns the build that Go's linker recorded in a program. hocket is the main module, or a
// dependency.
func buildOf(info *debug.BuildInfo) build {
	b := build{Program: info.Path}
	module := info.Main
	for _, d := range info.Deps {
		if d.Path == modulePath {
			module = *d
			if d.Replace != nil {
				module.Version = d.Replace.Version
			}
		}
	}
	if module.Path != modulePath {
		return b
	}
	if module.Version != "(devel)" {
		b.Version = module.Version
	}
	if info.Main.Path == modulePath { // otherwise the recorded commit is that of another module
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && b.Version == "":
				b.Version = "commit " + s.Value
			case s.Key == "vcs.modified":
				b.Dirty = s.Value == "true"
			}
		}
	}
	return b
}

// fits reports whether two processes may have the same build. Both must have the same version. If the version is
// unknown, or does not identify the build, they must execute the same file. Processes of different programs, such as
// the command and the library, need not execute the same file.
func (b build) fits(o build) bool {
	if b.Version != "" && o.Version != "" && b.Version != o.Version || b.Dirty != o.Dirty {
		return false
	}
	exact := b.Version != "" && o.Version != "" && !b.Dirty
	return exact || b.Program != o.Program || b.ID == "" || o.ID == "" || b.ID == o.ID
}

func (b build) String() string {
	text := b.Version
	if text == "" {
		text = "an unknown version"
	}
	if b.Dirty {
		text += " with changes"
	}
	text = b.Program + " of " + text
	if id := b.ID; id != "" && (b.Version == "" || b.Dirty) {
		text += ", build " + id[:min(len(id), 16)]
	}
	return text
}

// sameBuild returns an error that describes how the builds of the processes differ, or nil.
func (w *World) sameBuild(members []membership) error {
	e := &DisagreeError{What: "the build of hocket"}
	var distinct []build
	for r, m := range members {
		i := slices.IndexFunc(distinct, func(b build) bool { return b.fits(m.Build) })
		if i < 0 {
			i, distinct = len(distinct), append(distinct, m.Build)
		}
		e.Values = append(e.Values, w.mesh.value(r, 0, distinct[i].String()))
	}
	if len(distinct) > 1 {
		return e
	}
	return nil
}

// fileID returns the ID that Go's linker wrote into the file from which this code was loaded; "" if
// there is none.
func fileID() string {
	path := fileAt(reflect.ValueOf(fileID).Pointer())
	if path == "" {
		return ""
	}
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	s := f.Section(".note.go.buildid")
	if s == nil || s.Size > 4<<10 {
		return ""
	}
	note, err := s.Data()
	if err != nil || len(note) < 16 {
		return ""
	}
	// The ID contains the names of the inputs and outputs of the link; the last one is the ID of the file.
	id := strings.TrimRight(string(note[16:]), "\x00")
	id = id[strings.LastIndexByte(id, '/')+1:]
	return hex.EncodeToString([]byte(id))[:min(2*len(id), 40)]
}

// fileAt returns the name of the file that is mapped at the given address.
func fileAt(address uintptr) string {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return ""
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		var lo, hi uintptr
		words := strings.Fields(lines.Text())
		if len(words) < 6 {
			continue
		}
		if _, err := fmt.Sscanf(words[0], "%x-%x", &lo, &hi); err == nil && lo <= address && address < hi {
			return strings.Join(words[5:], " ")
		}
	}
	return ""
}
