package release

import (
	"fmt"
	"os"
	"path/filepath"
)

// PythonLibrary describes the library that Python loads.
type PythonLibrary struct {
	Path string `json:"path"`
	Build
	Agrees bool   `json:"agrees"` // whether the library and this program are of the same commit
	Error  string `json:"error,omitempty"`
}

// FindLibrary describes the library that HOCKET_LIBRARY names, or the library of a wheel that was installed together
// with this program. FindLibrary returns nil if there is no such library.
func FindLibrary() *PythonLibrary {
	path := os.Getenv("HOCKET_LIBRARY")
	if path == "-" { // "-" means that the program that embeds Python contains the library
		return nil
	}
	if self, err := os.Executable(); path == "" && err == nil {
		// These are the directories in which pip installs packages, relative to the directory of commands: in a
		// virtual environment, for Debian's Python, and with --target.
		for _, at := range []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", "."} {
			found, _ := filepath.Glob(filepath.Join(filepath.Dir(self), "..", at, "hocket", "libhocket.so"))
			if len(found) > 0 {
				path = found[0]
				break
			}
		}
	}
	if path == "" {
		return nil
	}
	l := &PythonLibrary{Path: path}
	var err error
	if l.Build, err = File(path); err != nil {
		l.Error = err.Error()
	}
	l.Agrees = l.Build.Agrees(This())
	return l
}

func (l *PythonLibrary) String() string {
	switch {
	case l.Error != "":
		return "its build cannot be read: " + l.Error
	case l.Agrees:
		return "of the same commit"
	case l.Commit == "" || l.Modified || This().Commit == "" || This().Modified:
		return "unknown whether it is of the same commit: it or this command was built without a commit, or with " +
			"uncommitted changes"
	}
	return fmt.Sprintf("of another commit, %.12s: install both from one wheel", l.Commit)
}
