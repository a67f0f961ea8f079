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
	Version string // of hocket's module, with the commit if it was built from a checkout; "" if it is not known
	Dirty   bool   // the checkout had changes, so that Version does not say all
	Program string // the main package
	ID      string // of the program's or library's file, as Go's linker writes it; "" if it has none
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

// buildOf reads what Go's linker notes of a program: hocket is the main module, or one that it needs.
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
	if info.Main.Path == modulePath { // else the commit is that of another module
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

// fits reports whether two processes may be of one build: of one version, and where that is not known or does not say
// all, of one file, unless they run different programs, such as the command and the library.
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

// fileID returns the ID that Go's linker wrote to the file which this code was loaded from; "" if there is none.
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
	// The ID is a name for each input and output of the link; the last is that of the file.
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
