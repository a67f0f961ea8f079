package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"hocket.example/hocket/internal/release"
)

// version returns the version, with the commit if it is known.
var version = func() string { return release.This().String() }

func versionText() string {
	return fmt.Sprintf("hocket %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// versionInfo is what version --json prints.
type versionInfo struct {
	Number string `json:"number"`
	release.Build
	Library *versionOfLibrary `json:"library,omitempty"`
}

// versionOfLibrary describes the library that Python loads.
type versionOfLibrary struct {
	Path string `json:"path"`
	release.Build
	Agrees bool   `json:"agrees"` // it is of the same commit as the command
	Error  string `json:"error,omitempty"`
}

func (a *app) versionCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "version [--json]",
		Short: "Print the version, and whether Python's library agrees",
		Long: `Print the version, the commit if it is known, the version of Go and the platform. If
Python's library is installed with this command, or HOCKET_LIBRARY names a file, a
second line says whether both are of one commit.`,
		Example: "  hocket version",
		Args:    nothing,
		RunE: func(*cobra.Command, []string) error {
			v := &versionInfo{Number: release.Version, Build: release.This(), Library: library()}
			a.out.Version = v
			io.WriteString(a.text, versionText())
			if v.Library != nil {
				fmt.Fprintf(a.text, "library %s: %s\n", v.Library.Path, v.Library)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&a.json, "json", a.json, "print one JSON object")
	return c
}

// library describes the library that HOCKET_LIBRARY names, or the library of a wheel that was installed together with
// this command. It returns nil if there is none.
func library() *versionOfLibrary {
	path := os.Getenv("HOCKET_LIBRARY")
	if path == "-" { // the program that runs Python contains the library
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
	l := &versionOfLibrary{Path: path}
	var err error
	if l.Build, err = release.File(path); err != nil {
		l.Error = err.Error()
	}
	l.Agrees = l.Build.Agrees(release.This())
	return l
}

func (l *versionOfLibrary) String() string {
	switch {
	case l.Error != "":
		return "its build cannot be read: " + l.Error
	case l.Agrees:
		return "of the same commit"
	case l.Commit == "" || l.Modified || release.This().Commit == "" || release.This().Modified:
		return "unknown whether it is of the same commit: it or this command was built without a commit, or with " +
			"uncommitted changes"
	}
	return fmt.Sprintf("of another commit, %.12s: install both from one wheel", l.Commit)
}

func nothing(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("no argument is allowed; found %q", args[0])
	}
	return nil
}
